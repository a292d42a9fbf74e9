//! Requests that the writer does one at a time: topics that come and go, records that move.

use super::catalog::{self, Key};
use super::engine::row_key;
use super::fault;
use super::request::{Alone, Request};
use super::retire::Moved;
use super::state::{Span, TopicState, lock};
use super::writer::Writer;
use crate::broker::BrokerError;
use crate::topic::{Topic, TopicName};

impl Writer {
    pub(super) fn write_alone(&mut self, request: Alone) {
        let (ack, result) = match request {
            Alone::Put(topic, ack) => (ack, self.put_topic(&topic)),
            Alone::Remove(topic, ack) => (ack, self.remove_topic(&topic)),
            Alone::Move(topic, moved, ack) => (ack, self.move_rows(&topic, &moved)),
            // The writer ends with it, and looks out for it.
            Alone::Close(_) => return Request::Alone(request).refuse(BrokerError::Closed),
        };
        let _ = ack.send(result);
    }

    fn put_topic(&mut self, topic: &Topic) -> Result<(), BrokerError> {
        let shared = self.shared.clone();
        let (id, next) = lock(&shared.topics).number_of(topic.name());
        let declaration = serde_json::to_vec(topic).map_err(|error| BrokerError::Io {
            doing: format!("encoding topic {}", topic.name()),
            source: error.into(),
        })?;
        self.commit_now(&shared, |batch| {
            batch.put(&Key::Topic(id), declaration);
            batch.put(&Key::NextTopic, catalog::numbers([u64::from(next)]));
        })?;
        lock(&shared.topics).put(id, next, topic.clone());
        Ok(())
    }

    fn remove_topic(&mut self, name: &TopicName) -> Result<(), BrokerError> {
        let shared = self.shared.clone();
        let Some(topic) = lock(&shared.topics).state(name) else {
            return Ok(());
        };
        let logs = lock(&shared.topics).logs_of(topic.id);
        self.commit_now(&shared, |batch| {
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
        })?;
        lock(&shared.topics).remove(&topic);
        // If this fails the records are removed when the store is opened again.
        if let Err(error) = self.free_topic(&topic) {
            tracing::warn!(topic = %name, %error, "the records of a removed topic are still there");
        }
        Ok(())
    }

    /// Gives back the space of a topic that was removed.
    fn free_topic(&mut self, topic: &TopicState) -> Result<(), BrokerError> {
        let shared = self.shared.clone();
        let failed = |error| fault::reading(|| format!("topic {}", topic.name), error);
        if let Some(engine) = shared.engine().as_ref() {
            engine
                .drop_segments(topic.id, 0, u32::MAX)
                .map_err(failed)?;
        }
        // The engine frees what was dropped before the last commit.
        self.commit_now(&shared, |_| {})?;
        if let Some(engine) = shared.engine_mut().as_mut() {
            engine.remove_dropped().map_err(failed)?;
            engine.delete_topic(topic.id).map_err(failed)?;
        }
        Ok(())
    }

    fn move_rows(&mut self, topic: &TopicState, moved: &[Moved]) -> Result<(), BrokerError> {
        if topic.is_removed() {
            return Ok(());
        }
        let shared = self.shared.clone();
        let segment = lock(&topic.segments).aside();
        // A log may have been trimmed meanwhile; what is left of it is still among the rows.
        let kept: Vec<_> = moved
            .iter()
            .filter_map(|moved| {
                let contents = moved.log.lock();
                let span = *contents
                    .spans
                    .iter()
                    .find(|span| span.first.offset == moved.span)?;
                Some((moved, Span { segment, ..span }))
            })
            .collect();
        self.commit_now(&shared, |batch| {
            for (moved, span) in &kept {
                let partition = moved.log.partition;
                batch.put_span(topic.id, partition, *span);
                for (last, row) in &moved.rows {
                    batch.put_row(topic.id, row_key(segment, partition, *last), row);
                }
            }
        })?;
        for (moved, span) in kept {
            moved.log.lock().move_span(span.first.offset, segment);
        }
        Ok(())
    }
}
