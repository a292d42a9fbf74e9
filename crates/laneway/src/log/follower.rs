//! Reads a partition of a log.

use std::fmt;

use bytes::Bytes;

use super::{Error, Log};
use crate::broker::Reader;

/// Reads a partition of a [`Log`]: every record from an offset on, in order.
pub struct Follower {
    log: Log,
    partition: u32,
    next: u64,
    reader: Option<Box<dyn Reader>>,
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower")
            .field("log", &self.log)
            .field("partition", &self.partition)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

impl Follower {
    pub(super) fn new(log: Log, partition: u32, from: u64) -> Self {
        Self {
            log,
            partition,
            next: from,
            reader: None,
        }
    }

    /// The partition.
    #[must_use]
    pub fn partition(&self) -> u32 {
        self.partition
    }

    /// The offset from which on it reads. The next record is there, or behind it.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.next
    }

    /// The next records with their offsets, at least one; waits for them. May be dropped and called again: nothing is
    /// lost.
    ///
    /// # Errors
    /// [`Error::Fault`] if the next record cannot be given, now or later. After any other error, call it again, after a
    /// pause: it goes on where it was.
    pub async fn next(&mut self) -> Result<Vec<(u64, Bytes)>, Error> {
        self.log.turn(self.partition)?;
        let access = &self.log.shared.access;
        access.check_open()?;
        let reader = self.reader.get_or_insert_with(|| {
            let log = self.log.at(self.partition);
            access.broker().logs().follow(log, self.next)
        });
        let records = reader.next().await?;
        if let Some(last) = records.last() {
            self.next = last.offset + 1;
        }
        let records = records.into_iter();
        Ok(records
            .map(|found| (found.offset, found.record.payload.clone()))
            .collect())
    }
}
