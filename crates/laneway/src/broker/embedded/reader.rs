//! Reads a log for a group, and waits at its end.

use std::sync::Arc;

use tokio::sync::watch;

use super::{Membership, Partition};
use crate::broker::{BoxFuture, BrokerError, Reader};
use crate::record::Delivered;
use crate::settle::Position;

/// Read at once: enough to make a read cheap, little enough to hold.
const CHUNK: usize = 512;

pub(super) struct LogReader {
    number: u32,
    position: Position,
    next: u64,
    partition: Arc<Partition>,
    end: watch::Receiver<u64>,
    membership: Arc<Membership>,
}

impl LogReader {
    pub(super) fn new(
        number: u32,
        position: Position,
        partition: Arc<Partition>,
        membership: Arc<Membership>,
    ) -> Self {
        Self {
            number,
            next: position.low(),
            position,
            end: partition.end.subscribe(),
            partition,
            membership,
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
    fn partition(&self) -> u32 {
        self.number
    }

    fn epoch(&self) -> u64 {
        self.membership.epoch
    }

    fn position(&self) -> &Position {
        &self.position
    }

    fn next(&mut self) -> BoxFuture<'_, Result<Vec<Delivered>, BrokerError>> {
        Box::pin(self.read())
    }
}
