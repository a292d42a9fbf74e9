//! Reads a log for a group, and waits at its end.

use std::sync::Arc;

use tokio::sync::watch;

use super::Partition;
use crate::broker::{BoxFuture, BrokerError, Reader};
use crate::record::Delivered;

/// Read at once: enough to make a read cheap, little enough to hold.
const CHUNK: usize = 512;

pub(super) struct LogReader {
    next: u64,
    partition: Arc<Partition>,
    end: watch::Receiver<u64>,
}

impl LogReader {
    pub(super) fn new(next: u64, partition: Arc<Partition>) -> Self {
        Self {
            next,
            end: partition.end.subscribe(),
            partition,
        }
    }

    async fn read(&mut self) -> Result<Vec<Delivered>, BrokerError> {
        loop {
            let next = self.next;
            // It cannot be closed: the partition that we hold has the other end.
            self.end
                .wait_for(|end| *end > next)
                .await
                .map_err(|_| BrokerError::Closed)?;
            let records = self.partition.log.read(next, CHUNK).await?;
            if let Some(last) = records.last() {
                self.next = last.offset + 1;
                return Ok(records);
            }
            // Retention took what was there.
            self.next = self.partition.log.span().start.max(next + 1);
        }
    }
}

impl Reader for LogReader {
    fn next(&mut self) -> BoxFuture<'_, Result<Vec<Delivered>, BrokerError>> {
        Box::pin(self.read())
    }
}
