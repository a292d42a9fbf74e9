//! Requests that are committed one at a time: topics that come and go, records that move.

use std::collections::VecDeque;
use std::sync::Arc;

use super::batch::Batch;
use super::catalog::{self, Key};
use super::engine::{Engine, row_key};
use super::fault;
use super::request::{Ack, Alone, Request};
use super::retire::Moved;
use super::state::{LogState, Span, TopicState};
use super::writer::Writer;
use crate::broker::BrokerError;
use crate::topic::{Topic, TopicName};

/// What a request changes in memory once its commit is durable, and where its answer goes.
pub(super) enum Then {
    Put {
        id: u32,
        next: u32,
        topic: Box<Topic>,
        ack: Ack<()>,
    },
    Remove(Arc<TopicState>, Ack<()>),
    Free(Arc<TopicState>, Ack<()>),
    Move {
        /// The logs, with where their spans begin.
        logs: Vec<(Arc<LogState>, u64)>,
        segment: u32,
        ack: Ack<()>,
    },
}

impl Then {
    /// The commit failed.
    pub(super) fn refuse(self, error: BrokerError) {
        match self {
            Self::Put { ack, .. } | Self::Remove(_, ack) | Self::Move { ack, .. } => {
                let _ = ack.send(Err(error));
            }
            Self::Free(topic, ack) => not_freed(&topic.name, &error, ack),
        }
    }
}

/// The topic is removed all the same: its records go when the store is opened again.
pub(super) fn not_freed(topic: &TopicName, error: &BrokerError, ack: Ack<()>) {
    tracing::warn!(%topic, %error, "the records of a removed topic are still there");
    let _ = ack.send(Ok(()));
}

impl Writer {
    /// Fills the batch of a request. `None` if it is answered already.
    pub(super) fn write_alone(
        &self,
        engine: &Engine,
        batch: &mut Batch<'_>,
        request: Alone,
    ) -> Option<Then> {
        match request {
            Alone::Put(topic, ack) => self.put_topic(batch, topic, ack),
            Alone::Remove(topic, ack) => self.remove_topic(batch, &topic, ack),
            Alone::Free(topic, ack) => free_topic(engine, batch, topic, ack),
            Alone::Move(topic, moved, ack) => move_rows(batch, &topic, &moved, ack),
        }
    }

    /// The commit of a request is durable.
    pub(super) fn finish_alone(&self, then: Then, waiting: &mut VecDeque<Request>) {
        match then {
            Then::Put {
                id,
                next,
                topic,
                ack,
            } => {
                self.shared.topics.lock().put(id, next, *topic);
                let _ = ack.send(Ok(()));
            }
            Then::Remove(topic, ack) => {
                self.shared.topics.lock().remove(&topic);
                waiting.push_front(Request::Alone(Alone::Free(topic, ack)));
            }
            Then::Free(topic, ack) => match self.forget_topic(&topic) {
                Ok(()) => drop(ack.send(Ok(()))),
                Err(error) => not_freed(&topic.name, &error, ack),
            },
            Then::Move { logs, segment, ack } => {
                for (log, first) in logs {
                    log.lock().move_span(first, segment);
                }
                let _ = ack.send(Ok(()));
            }
        }
    }

    fn put_topic(&self, batch: &mut Batch<'_>, topic: Topic, ack: Ack<()>) -> Option<Then> {
        let (id, next) = self.shared.topics.lock().number_of(topic.name());
        let declaration = match serde_json::to_vec(&topic) {
            Ok(declaration) => declaration,
            Err(error) => {
                let _ = ack.send(Err(BrokerError::Io {
                    doing: format!("encoding topic {}", topic.name()),
                    source: error.into(),
                }));
                return None;
            }
        };
        batch.sync();
        batch.put(&Key::Topic(id), declaration);
        batch.put(&Key::NextTopic, catalog::numbers([u64::from(next)]));
        Some(Then::Put {
            id,
            next,
            topic: Box::new(topic),
            ack,
        })
    }

    fn remove_topic(&self, batch: &mut Batch<'_>, name: &TopicName, ack: Ack<()>) -> Option<Then> {
        let topics = self.shared.topics.lock();
        let Some(topic) = topics.state(name) else {
            let _ = ack.send(Ok(()));
            return None;
        };
        let logs = topics.logs_of(topic.id);
        drop(topics);
        batch.sync();
        batch.remove(&Key::Topic(topic.id));
        for log in &logs {
            let contents = log.lock();
            let partition = log.partition;
            batch.remove(&Key::Start(topic.id, partition));
            for span in &contents.spans {
                batch.remove(&Key::Span(topic.id, partition, span.first.offset));
            }
            for group in contents.positions.keys() {
                batch.remove(&Key::Position(topic.id, partition, group.clone()));
            }
        }
        Some(Then::Remove(topic, ack))
    }

    /// Removes the files of a topic whose records were dropped.
    fn forget_topic(&self, topic: &TopicState) -> Result<(), BrokerError> {
        let failed = |error| fault::reading(|| format!("topic {}", topic.name), error);
        if let Some(engine) = self.shared.engine_mut().as_mut() {
            engine.remove_dropped().map_err(failed)?;
            engine.delete_topic(topic.id).map_err(failed)?;
        }
        Ok(())
    }
}

/// Drops the records of a topic that was removed. The engine frees what was dropped before the last commit, so an empty
/// one follows.
fn free_topic(
    engine: &Engine,
    batch: &mut Batch<'_>,
    topic: Arc<TopicState>,
    ack: Ack<()>,
) -> Option<Then> {
    if let Err(error) = engine.drop_segments(topic.id, 0, u32::MAX) {
        let error = fault::reading(|| format!("topic {}", topic.name), error);
        not_freed(&topic.name, &error, ack);
        return None;
    }
    batch.sync();
    Some(Then::Free(topic, ack))
}

fn move_rows(
    batch: &mut Batch<'_>,
    topic: &TopicState,
    moved: &[Moved],
    ack: Ack<()>,
) -> Option<Then> {
    if topic.is_removed() {
        let _ = ack.send(Ok(()));
        return None;
    }
    let segment = topic.segments.lock().aside();
    batch.sync();
    let mut logs = Vec::new();
    for moved in moved {
        // A log may have been trimmed meanwhile; what is left of it is still among the rows.
        let contents = moved.log.lock();
        let mut spans = contents.spans.iter();
        let Some(span) = spans.find(|span| span.first.offset == moved.span).copied() else {
            continue;
        };
        drop(contents);
        let partition = moved.log.partition;
        batch.put_span(topic.id, partition, Span { segment, ..span });
        for (last, row) in &moved.rows {
            batch.put_row(topic.id, row_key(segment, partition, *last), row);
        }
        logs.push((moved.log.clone(), span.first.offset));
    }
    Some(Then::Move { logs, segment, ack })
}
