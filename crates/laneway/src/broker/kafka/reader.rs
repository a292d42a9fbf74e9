//! Reads a partition from its queue, which the client fills as far ahead as it may.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::Consumer as _;
use rdkafka::message::Message as _;

use super::assignment::OwnedPartition;
use super::message::{delivered, is_tombstone};
use crate::broker::{BoxFuture, BrokerError, Reader};
use crate::record::Delivered;
use crate::topic::Kind;

/// Given to the bus at once, whichever is reached first.
const CHUNK: usize = 512;
const CHUNK_BYTES: usize = 4 << 20;

pub(super) struct PartitionReader {
    owned: Arc<OwnedPartition>,
    /// Nothing before this comes, unless the partition lost its end.
    next: u64,
    /// Whether another one has read before, and has taken from the queue what is not there any more.
    is_again: bool,
}

impl PartitionReader {
    pub(super) fn new(owned: Arc<OwnedPartition>, next: u64, is_again: bool) -> Self {
        Self {
            owned,
            next,
            is_again,
        }
    }

    async fn read(&mut self) -> Result<Vec<Delivered>, BrokerError> {
        if self.is_again {
            // The partition is taken anew, from its position on.
            self.owned.lose();
            return Err(self.owned.not_ours());
        }
        loop {
            let arrived = self.owned.arrived.clone();
            let mut arriving = std::pin::pin!(arrived.notified());
            // Listens from here on, so that nothing is missed between looking and waiting.
            arriving.as_mut().enable();
            let (records, next) = self.take();
            if !records.is_empty() {
                return Ok(records);
            }
            match next {
                Next::Waits => tokio::task::yield_now().await,
                Next::Arrives => arriving.await,
                Next::Earlier => {
                    // The partition lost its end, and what we know of it may be about records that are gone.
                    self.owned.lose();
                    return Err(self.owned.not_ours());
                }
            }
        }
    }

    /// What is in the queue, and what is after it.
    fn take(&mut self) -> (Vec<Delivered>, Next) {
        let (mut records, mut bytes, mut tombstones) = (Vec::new(), 0, 0);
        let mut fetched = self.owned.fetched.lock();
        let Some(fetched) = &mut *fetched else {
            return (records, Next::Arrives);
        };
        let mut next = Next::Waits;
        while records.len() + tombstones < CHUNK && bytes < CHUNK_BYTES {
            match fetched.queue.poll(Duration::ZERO) {
                Some(Ok(message)) => {
                    let offset = u64::try_from(message.offset()).unwrap_or_default();
                    if offset < self.next {
                        next = Next::Earlier;
                        break;
                    }
                    self.next = offset + 1;
                    if is_tombstone(&message) && self.owned.handle.topic.kind() == Kind::Domain {
                        tombstones += 1;
                        continue;
                    }
                    let record = delivered(&message);
                    bytes += record.record.size();
                    records.push(record);
                }
                // The client goes on by itself.
                Some(Err(error)) => {
                    tracing::debug!(partition = self.owned.partition, %error, "reading");
                }
                None => {
                    next = Next::Arrives;
                    break;
                }
            }
        }
        // Before the lock is gone: see `OwnedPartition::at_the_end`.
        if let Some(last) = records.last() {
            fetched.given = last.offset + 1;
        }
        if tombstones > 0 {
            let telling = &fetched.client.context().telling;
            telling.gauges.passed_over(tombstones as u64);
        }
        (records, next)
    }
}

/// What comes after what was taken from a queue.
enum Next {
    /// More waits there.
    Waits,
    /// Nothing yet.
    Arrives,
    /// A record from before the last one.
    Earlier,
}

impl Reader for PartitionReader {
    fn next(&mut self) -> BoxFuture<'_, Result<Vec<Delivered>, BrokerError>> {
        Box::pin(self.read())
    }
}
