//! What changes need, read before it is their turn.
//!
//! There is one writer, and looking a message up takes longer than changing it. So a request for a change
//! looks up its message first, many at the same time, and the writer takes what they found: unless the
//! message was changed since, which [`Recent`] knows. Then it looks by itself.

use foldhash::fast::FixedState;
use foldhash::{HashMap, HashMapExt};
use std::hash::BuildHasher;
use std::sync::atomic::Ordering;

use super::Shared;
use super::batch::row_of;
use super::codec::{self, Location};
use super::tables::{Table, Tables};
use crate::store::{Change, change};
use crate::{Error, Message, MessageId};

/// A message as it was when so many batches were written.
pub(super) struct Ahead {
    pub(super) batches: u64,
    pub(super) location: Location,
    pub(super) message: Message,
}

impl Shared {
    /// Looks messages up, until they come to so many bytes; at least one. `None` where there is none, or it cannot
    /// be read: the writer tells why.
    pub(super) fn look_ahead(&self, changes: &[Change]) -> Vec<Option<Ahead>> {
        // IMPORTANT: before anything is read. What is written later counts as a change since.
        let batches = self.batches.load(Ordering::Acquire);
        let found = self.with_tables(|tables| {
            let look = |wanted: &Change| {
                let found = self.find(tables, &wanted.id).ok().flatten();
                found.map(|(location, message)| Ahead {
                    batches,
                    location,
                    message,
                })
            };
            let (mut found, mut bytes) = (Vec::with_capacity(changes.len()), 0);
            for wanted in changes {
                let ahead = look(wanted);
                bytes += ahead
                    .as_ref()
                    .map_or(0, |ahead| change::held_bytes(&ahead.message));
                found.push(ahead);
                if bytes >= self.sizes.ahead_bytes {
                    break;
                }
            }
            Ok(found)
        });
        found.unwrap_or_else(|_| changes.iter().map(|_| None).collect())
    }

    fn find(&self, tables: &Tables, id: &MessageId) -> Result<Option<(Location, Message)>, Error> {
        let row = tables.get(Table::Ids, id.as_str().as_bytes(), self.identity)?;
        let Some(location) = row.and_then(|row| Location::decode(&row)) else {
            return Ok(None);
        };
        let (table, key) = row_of(location);
        // The message may have moved between the two.
        let row = tables.get(table, &key, self.identity)?;
        let message = row.and_then(|row| codec::decode(&row).ok());
        Ok(message.map(|message| match table {
            Table::Due => (location, self.doubted(location.due_key, message)),
            _ => (location, message),
        }))
    }
}

/// Which messages were changed lately, and by which batch.
pub(super) struct Recent {
    /// How many of them it remembers, at least.
    remembered: usize,
    /// The batch that is being made.
    batch: u64,
    /// Everything that was changed after this batch is known.
    known_after: u64,
    /// The batch in which `latest` was begun.
    begun: u64,
    latest: HashMap<u64, u64>,
    earlier: HashMap<u64, u64>,
}

impl Recent {
    pub(super) fn new(remembered: usize) -> Self {
        Self {
            remembered,
            batch: 0,
            known_after: 0,
            begun: 0,
            latest: HashMap::new(),
            earlier: HashMap::new(),
        }
    }

    /// Nothing is known of what was changed up to this batch.
    pub(super) fn after(batches: u64, remembered: usize) -> Self {
        Self {
            known_after: batches,
            ..Self::new(remembered)
        }
    }

    /// Another batch is being made, after so many others.
    pub(super) fn begin(&mut self, written: u64) {
        self.batch = written + 1;
    }

    /// This batch changes a message.
    pub(super) fn note(&mut self, id: &MessageId) {
        if self.latest.len() >= self.remembered {
            self.earlier = std::mem::take(&mut self.latest);
            // Some of what the batch changed that `earlier` begins with went with the one before.
            self.known_after = self.begun;
            self.begun = self.batch;
        }
        self.latest.insert(number(id), self.batch);
    }

    /// Whether a message is as it was when so many batches were written.
    pub(super) fn is_unchanged(&self, id: &MessageId, batches: u64) -> bool {
        let number = number(id);
        let changed = self
            .latest
            .get(&number)
            .or_else(|| self.earlier.get(&number));
        batches >= self.known_after && changed.is_none_or(|changed| *changed <= batches)
    }
}

/// An id as a number. Of two with the same number one is read once more than it had to be.
fn number(id: &MessageId) -> u64 {
    FixedState::with_seed(0).hash_one(id.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMEMBERED: usize = 65_536;

    fn id(number: usize) -> MessageId {
        MessageId::new(number.to_string()).unwrap()
    }

    #[test]
    fn what_was_read_before_a_change_does_not_count() {
        let mut recent = Recent::new(100);
        recent.begin(4);
        assert!(recent.is_unchanged(&id(1), 4));
        recent.note(&id(1));
        // Not even within the batch that changes it.
        assert!(!recent.is_unchanged(&id(1), 4));
        assert!(recent.is_unchanged(&id(2), 4));
        recent.begin(5);
        assert!(!recent.is_unchanged(&id(1), 4));
        assert!(recent.is_unchanged(&id(1), 5));
    }

    #[test]
    fn what_is_older_than_all_that_is_remembered_does_not_count() {
        let mut recent = Recent::new(REMEMBERED);
        let (mut batch, mut noted) = (0, 0);
        while recent.known_after == 0 {
            recent.begin(batch);
            batch += 1;
            for _ in 0..1000 {
                recent.note(&id(noted));
                noted += 1;
            }
        }
        assert!(noted >= REMEMBERED);
        // It was changed in the first batch, and that is forgotten.
        assert!(!recent.earlier.contains_key(&number(&id(0))));
        assert!(!recent.is_unchanged(&id(0), 0));
        let someone = id(usize::MAX);
        assert!(!recent.is_unchanged(&someone, recent.known_after - 1));
        assert!(recent.is_unchanged(&someone, recent.known_after));
        // Of those after that all are known.
        for number in 0..noted {
            let changed = number as u64 / 1000 + 1;
            if changed > recent.known_after {
                assert!(!recent.is_unchanged(&id(number), changed - 1), "{number}");
            }
        }
    }
}
