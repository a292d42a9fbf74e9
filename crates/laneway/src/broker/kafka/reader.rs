//! Reads a partition from its queue, which the client fills as far ahead as it may.

use std::sync::Arc;
use std::time::Duration;

use super::claim::{Fetched, Holding};
use super::cluster::lock;
use super::message::delivered;
use crate::broker::{BoxFuture, BrokerError, Reader};
use crate::record::Delivered;

/// Given to the bus at once, whichever is reached first.
const CHUNK: usize = 512;
const CHUNK_BYTES: usize = 4 << 20;

pub(super) struct PartitionReader {
    holding: Arc<Holding>,
    /// Nothing before this comes, unless the partition lost its end.
    next: u64,
}

impl PartitionReader {
    pub(super) fn new(holding: Arc<Holding>, next: u64) -> Self {
        Self { holding, next }
    }

    async fn read(&mut self) -> Result<Vec<Delivered>, BrokerError> {
        loop {
            let arrived = self.holding.arrived.clone();
            let mut arriving = std::pin::pin!(arrived.notified());
            // Listens from here on, so that nothing is missed between looking and waiting.
            arriving.as_mut().enable();
            let records = self.take()?;
            if !records.is_empty() {
                return Ok(records);
            }
            arriving.await;
        }
    }

    /// What is in the queue.
    fn take(&mut self) -> Result<Vec<Delivered>, BrokerError> {
        let (mut records, mut bytes) = (Vec::new(), 0);
        {
            let fetched = lock(&self.holding.fetched);
            let Some(Fetched { queue, .. }) = &*fetched else {
                return Ok(records);
            };
            while records.len() < CHUNK && bytes < CHUNK_BYTES {
                match queue.poll(Duration::ZERO) {
                    Some(Ok(message)) => {
                        let record = delivered(&message);
                        if record.offset < self.next {
                            break;
                        }
                        self.next = record.offset + 1;
                        bytes += record.record.size();
                        records.push(record);
                    }
                    // The client goes on by itself.
                    Some(Err(error)) => {
                        tracing::debug!(partition = self.holding.partition, %error, "reading");
                    }
                    None => return Ok(records),
                }
            }
        }
        if records.len() < CHUNK && bytes < CHUNK_BYTES {
            // The partition lost its end, and what we know of it may be about records that are gone.
            self.holding.lose();
            return Err(self.holding.not_ours());
        }
        Ok(records)
    }
}

impl Reader for PartitionReader {
    fn next(&mut self) -> BoxFuture<'_, Result<Vec<Delivered>, BrokerError>> {
        Box::pin(self.read())
    }
}
