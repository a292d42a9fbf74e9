//! Logs of raw records, and reading them without a group.

use std::ops::Range;
use std::sync::Arc;

use tokio::sync::watch;

use super::{Embedded, Inner, Partition, TopicState};
use crate::broker::log::{LogPartition, Logs};
use crate::broker::{BoxFuture, Broker, BrokerError, Reader};
use crate::record::Delivered;
use crate::settle::Position;
use crate::topic::{Growth, Strategy, Topic, TopicName};

/// Read at once: enough to make a read cheap, little enough to hold.
const CHUNK: usize = 512;

/// The identity of a log is kept as the position of a group of this name in its first partition.
const IDENTITY: &str = "laneway-identity";

/// What became of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Open,
    Deleted,
    /// The broker is closed.
    Closed,
}

impl TopicState {
    /// Tells the followers of a topic what became of it.
    pub(super) fn end(&self, life: Life) {
        for partition in &self.partitions {
            partition.life.send_replace(life);
        }
    }
}

impl Logs for Embedded {
    fn open<'a>(
        &'a self,
        topic: &'a Topic,
        strategy: Strategy,
    ) -> BoxFuture<'a, Result<String, BrokerError>> {
        Box::pin(async move {
            self.declare(topic, strategy, Growth::Refused).await?;
            // Held until it is drawn, so that two who open the log draw one identity.
            let topics = self.inner.topics.write().await;
            let state = super::find(&topics, topic.name())?;
            if let Some(identity) = identity(&state).await? {
                return Ok(identity);
            }
            let drawn = Position::at(rand::random_range(1..u64::MAX));
            if let Some(first) = state.partitions.first() {
                first.log.sync_position(IDENTITY, &drawn).await?;
            }
            Ok(text(&drawn))
        })
    }

    fn identity<'a>(
        &'a self,
        topic: &'a TopicName,
    ) -> BoxFuture<'a, Result<Option<String>, BrokerError>> {
        Box::pin(self.inner.log_identity(topic))
    }

    fn bounds<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
    ) -> BoxFuture<'a, Result<Range<u64>, BrokerError>> {
        Box::pin(async move {
            let partition = self.inner.partition(topic, partition).await?;
            Ok(partition.log.span())
        })
    }

    fn trim<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        before: u64,
    ) -> BoxFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move {
            let partition = self.inner.partition(topic, partition).await?;
            partition.log.trim(before).await
        })
    }

    fn follow(&self, log: LogPartition, from: u64) -> Box<dyn Reader> {
        Box::new(LogFollower {
            broker: self.inner.clone(),
            log,
            next: from,
            source: None,
        })
    }
}

impl Inner {
    async fn log_identity(&self, topic: &TopicName) -> Result<Option<String>, BrokerError> {
        match self.topic(topic).await {
            Ok(state) => identity(&state).await,
            Err(BrokerError::UnknownTopic(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

async fn identity(state: &TopicState) -> Result<Option<String>, BrokerError> {
    let Some(first) = state.partitions.first() else {
        return Ok(None);
    };
    let drawn = first.log.position(IDENTITY).await?;
    Ok(drawn.as_ref().map(text))
}

fn text(drawn: &Position) -> String {
    format!("{:016x}", drawn.low())
}

/// Reads a log, and waits at its end.
struct LogFollower {
    broker: Arc<Inner>,
    log: LogPartition,
    next: u64,
    source: Option<Source>,
}

struct Source {
    partition: Arc<Partition>,
    end: watch::Receiver<u64>,
    life: watch::Receiver<Life>,
}

impl LogFollower {
    async fn read(&mut self) -> Result<Vec<Delivered>, BrokerError> {
        let LogPartition {
            topic, partition, ..
        } = &self.log;
        let source = if let Some(source) = &mut self.source {
            source
        } else {
            self.log.check(self.broker.log_identity(topic).await?)?;
            let partition = self.broker.partition(topic, *partition).await?;
            self.source.insert(Source {
                end: partition.end.subscribe(),
                life: partition.life.subscribe(),
                partition,
            })
        };
        let next = self.next;
        let span = source.partition.log.span();
        if next < span.start {
            return Err(self.log.trimmed(next, span.start).into());
        }
        if next > span.end {
            return Err(self.log.shortened(next, span.end).into());
        }
        let life = tokio::select! {
            biased;
            life = source.life.wait_for(|life| *life != Life::Open) => {
                life.map_or(Life::Closed, |life| *life)
            }
            // It cannot be closed: the partition that we hold has the other end.
            _ = source.end.wait_for(|end| *end > next) => Life::Open,
        };
        match life {
            Life::Open => {}
            Life::Closed => return Err(BrokerError::Closed),
            Life::Deleted => {
                let now = self.broker.log_identity(topic).await?;
                self.log.check(now)?;
                return Err(BrokerError::UnknownTopic(topic.clone()));
            }
        }
        let records = source.partition.log.read(next, CHUNK).await?;
        match (records.first(), records.last()) {
            (Some(first), Some(last)) if first.offset == next => {
                self.next = last.offset + 1;
                Ok(records)
            }
            _ => {
                let first = source.partition.log.span().start;
                Err(self.log.trimmed(next, first).into())
            }
        }
    }
}

impl Reader for LogFollower {
    fn next(&mut self) -> BoxFuture<'_, Result<Vec<Delivered>, BrokerError>> {
        Box::pin(self.read())
    }
}
