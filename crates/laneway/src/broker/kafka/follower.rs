//! Reads a partition of a log without a group.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::message::Message as _;
use tokio::time::sleep;

use super::follow_client::FollowedPartition;
use super::logs::identity_of;
use super::message::delivered;
use super::server::Kafka;
use crate::broker::log::{LogPartition, Logs};
use crate::broker::{BoxFuture, BrokerError, Reader};
use crate::record::Delivered;

/// Given at once, whichever is reached first.
const CHUNK: usize = 512;
const CHUNK_BYTES: usize = 4 << 20;

/// A follower that waits looks this often what the catalog says of the topic.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// And this often one of those that share a client asks the cluster.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Between two tries to read.
const ANEW_AFTER: Duration = Duration::from_millis(50);

pub(super) struct LogFollower {
    server: Arc<Kafka>,
    log: LogPartition,
    next: u64,
    source: Option<FollowedPartition>,
}

/// What comes after what was taken from a queue.
enum Next {
    /// Nothing yet, or more.
    Waits,
    /// The client does not go on.
    Stopped,
}

impl LogFollower {
    pub(super) fn new(server: Arc<Kafka>, log: LogPartition, from: u64) -> Self {
        Self {
            server,
            log,
            next: from,
            source: None,
        }
    }

    async fn read(&mut self) -> Result<Vec<Delivered>, BrokerError> {
        loop {
            if self.source.is_none() {
                self.source = Some(self.open().await?);
            }
            let Some(source) = &self.source else {
                continue;
            };
            let arrived = source.arrived.clone();
            let mut arriving = std::pin::pin!(arrived.notified());
            // Listens from here on, so that nothing is missed between looking and waiting.
            arriving.as_mut().enable();
            let (records, next) = take(source, &mut self.next);
            if let Next::Stopped = next {
                // What has happened is looked at when it is opened anew.
                self.source = None;
            }
            if !records.is_empty() {
                return Ok(records);
            }
            if self.source.is_none() {
                sleep(ANEW_AFTER).await;
                continue;
            }
            tokio::select! {
                biased;
                () = arriving => {}
                () = sleep(LOOK_EVERY) => {
                    let looked = self.look().await;
                    if looked.is_err() {
                        self.source = None;
                        looked?;
                    }
                }
            }
        }
    }

    /// Begins to read, if the offset is within what there is.
    async fn open(&self) -> Result<FollowedPartition, BrokerError> {
        self.check_topic().await?;
        let LogPartition {
            topic, partition, ..
        } = &self.log;
        let bounds = self.server.bounds(topic, *partition).await?;
        if self.next < bounds.start {
            return Err(self.log.trimmed(self.next, bounds.start).into());
        }
        if self.next > bounds.end {
            return Err(self.log.shortened(self.next, bounds.end).into());
        }
        let name = self.server.names.topic(topic);
        let Kafka {
            follow_clients,
            options,
            telling,
            ..
        } = &*self.server;
        let followed = follow_clients.follow(options, telling, &name, (*partition, self.next));
        followed.map_err(|error| self.server.failed("following a log", error))
    }

    /// Looks whether the topic is the one that was opened: what the catalog says, and from time to time the cluster.
    async fn look(&self) -> Result<(), BrokerError> {
        self.server.check_open()?;
        let declared = self.server.last_declared(&self.log.topic);
        let is_same = declared.is_some_and(|entry| identity_of(entry.born) == self.log.identity);
        let is_due = || {
            let source = self.source.as_ref();
            source.is_some_and(|source| source.is_to_check(ASK_EVERY))
        };
        if is_same && !is_due() {
            return Ok(());
        }
        match self.check_topic().await {
            // While no broker answers, the client waits for one.
            Err(BrokerError::Server { doing, detail, .. }) => {
                tracing::debug!(doing, detail, "looking at a log failed, retrying");
                Ok(())
            }
            checked => checked,
        }
    }

    async fn check_topic(&self) -> Result<(), BrokerError> {
        let found = self.server.find(&self.log.topic).await?;
        let now = found.map(|handle| identity_of(handle.born));
        Ok(self.log.check(now)?)
    }
}

/// What is in the queue of a partition, and what is after it.
fn take(source: &FollowedPartition, next: &mut u64) -> (Vec<Delivered>, Next) {
    let (mut records, mut bytes) = (Vec::new(), 0);
    while records.len() < CHUNK && bytes < CHUNK_BYTES {
        match source.queue.poll(Duration::ZERO) {
            Some(Ok(message)) => {
                let offset = u64::try_from(message.offset()).unwrap_or_default();
                if offset < *next {
                    // The partition lost its end.
                    return (records, Next::Stopped);
                }
                *next = offset + 1;
                let record = delivered(&message);
                bytes += record.record.size();
                records.push(record);
            }
            Some(Err(error)) => {
                tracing::debug!(%error, "following begins anew");
                return (records, Next::Stopped);
            }
            None => break,
        }
    }
    (records, Next::Waits)
}

impl Reader for LogFollower {
    fn next(&mut self) -> BoxFuture<'_, Result<Vec<Delivered>, BrokerError>> {
        Box::pin(self.read())
    }
}
