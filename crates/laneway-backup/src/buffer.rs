//! What waits to be written: bounded, and only the newest of each row.

use std::collections::BTreeMap;
use std::sync::Arc;

use laneway_cluster::apply::{Head, Kept};
use laneway_delay::MessageId;

use crate::rows::Changed;

/// About what a row takes without its body.
const ROW: usize = 512;

#[derive(Debug)]
pub(crate) struct Buffer {
    changes: BTreeMap<MessageId, Option<Arc<Kept>>>,
    bytes: usize,
    most: usize,
    head: Option<Head>,
    /// How often something was noted.
    notes: u64,
    /// The copy has to be filled anew, so that changes are of no use.
    is_dropping: bool,
}

/// What was noted, and the head that it leads to.
pub(crate) type Taken = (BTreeMap<MessageId, Option<Arc<Kept>>>, Option<Head>);

impl Buffer {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            changes: BTreeMap::new(),
            bytes: 0,
            most,
            head: None,
            notes: 0,
            is_dropping: true,
        }
    }

    /// `false`: it was too much, and is gone.
    pub(crate) fn note(&mut self, changes: Vec<Changed>, head: &Head) -> bool {
        self.notes += 1;
        self.head = Some(head.clone());
        if self.is_dropping {
            return true;
        }
        for (id, row) in changes {
            self.bytes += weight(row.as_deref());
            if let Some(before) = self.changes.insert(id, row) {
                self.bytes -= weight(before.as_deref());
            }
        }
        if self.bytes > self.most {
            self.drop_all();
            return false;
        }
        true
    }

    pub(crate) fn drop_all(&mut self) {
        self.changes = BTreeMap::new();
        self.bytes = 0;
        self.is_dropping = true;
    }

    /// From here on changes are kept.
    pub(crate) fn keep(&mut self) {
        self.drop_all();
        self.is_dropping = false;
    }

    pub(crate) const fn is_dropping(&self) -> bool {
        self.is_dropping
    }

    pub(crate) const fn notes(&self) -> u64 {
        self.notes
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The epoch of the owner, once it is known.
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.head.as_ref().map(|head| head.epoch)
    }

    pub(crate) fn take(&mut self) -> Taken {
        self.bytes = 0;
        (std::mem::take(&mut self.changes), self.head.clone())
    }
}

fn weight(row: Option<&Kept>) -> usize {
    ROW + row.map_or(0, |row| row.image.body.len())
}
