//! What was changed since the last commit. Reads consult it before the disk.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use laneway_delay::MessageId;

use crate::row::{Bare, BodyMark};

/// What an entry of the overlay takes beside its row, about.
const OVERHEAD: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Overlay {
    pub(crate) rows: BTreeMap<MessageId, Pending>,
    /// Keys without a value.
    pub(crate) index: BTreeMap<Vec<u8>, Entered>,
    /// Topics whose counts have changed.
    pub(crate) topics: BTreeSet<String>,
    /// What the rows take in memory, about.
    pub(crate) bytes: usize,
}

/// A row that was changed.
#[derive(Debug)]
pub(crate) struct Pending {
    /// The body that the id has on disk.
    pub(crate) on_disk: Option<BodyMark>,
    /// `None`: it was removed.
    pub(crate) row: Option<Bare>,
    /// The body, if it is not the one on disk.
    pub(crate) body: Bytes,
}

/// What became of a key without a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// It is not on disk.
    Added,
    /// It is on disk.
    Removed,
}

impl Pending {
    fn bytes(&self) -> usize {
        let row = self.row.as_ref().map_or(0, |row| 2 * row.encoded.len());
        OVERHEAD + row + self.body.len()
    }

    /// Whether the row has a body that has to be written.
    pub(crate) fn is_body_new(&self) -> bool {
        let body = self.row.as_ref().and_then(|row| row.body);
        body.is_some() && body != self.on_disk
    }
}

impl Overlay {
    /// Puts a row, or `None` for a removed one, in the place of what the id has. `on_disk` is the mark of the body on disk.
    pub(crate) fn put(
        &mut self,
        id: &MessageId,
        on_disk: Option<BodyMark>,
        row: Option<Bare>,
        body: &Bytes,
    ) {
        let mut pending = Pending {
            on_disk,
            row,
            body: Bytes::new(),
        };
        if pending.is_body_new() {
            pending.body = body.clone();
        }
        self.bytes += pending.bytes();
        if let Some(before) = self.rows.insert(id.clone(), pending) {
            self.bytes -= before.bytes();
        }
    }

    pub(crate) fn enter(&mut self, key: Vec<u8>) {
        match self.index.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(Entered::Added);
            }
            // It is on disk, and stays there.
            Entry::Occupied(occupied) if *occupied.get() == Entered::Removed => {
                occupied.remove();
            }
            Entry::Occupied(_) => {}
        }
    }

    pub(crate) fn strike(&mut self, key: Vec<u8>) {
        match self.index.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(Entered::Removed);
            }
            // It never came to the disk.
            Entry::Occupied(occupied) if *occupied.get() == Entered::Added => {
                occupied.remove();
            }
            Entry::Occupied(_) => {}
        }
    }
}
