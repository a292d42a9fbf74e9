//! What waits for one destination.

use std::collections::VecDeque;

use crate::Timestamp;
use crate::store::{DueKey, Scheduled};

/// What waits for one destination, and what runs there.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) due: VecDeque<Scheduled>,
    /// When it began to have something in it, as a number: a later one is larger.
    pub(super) since: u64,
    /// Attempts at a host, or batches for the bus.
    pub(super) running: usize,
    pub(super) is_ready: bool,
    /// How often in a row it could not be served.
    pub(super) setbacks: u32,
    /// Nothing goes before this moment.
    pub(super) held_until: Option<Timestamp>,
    /// So many more results are awaited one at a time: the destination took nothing a moment ago.
    pub(super) probation: u8,
    /// Large payloads that attempts at the host hold.
    pub(super) large: usize,
    /// What the destination waits for.
    pub(super) starved: Starved,
    /// Here there are some in the store that are not in the queue.
    pub(super) forgotten: Option<DueRange>,
}

/// A destination waits until a payload of so many bytes fits into what attempts may hold: a small one, a large one, or
/// either.
#[derive(Debug, Default)]
pub(super) struct Starved([Option<usize>; 2]);

impl Starved {
    /// It waits for this. Answers whether it did not wait for one of that size before.
    pub(super) fn want(&mut self, is_large: bool, bytes: usize) -> bool {
        let wanted = &mut self.0[usize::from(is_large)];
        let is_new = wanted.is_none();
        wanted.get_or_insert(bytes);
        is_new
    }

    pub(super) fn wants(&self, is_large: bool) -> Option<usize> {
        self.0[usize::from(is_large)]
    }

    /// It does not wait for one of that size any more. Answers whether it did.
    pub(super) fn forget(&mut self, is_large: bool) -> bool {
        self.0[usize::from(is_large)].take().is_some()
    }
}

/// A part of the due index, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DueRange {
    pub(super) first: DueKey,
    pub(super) last: DueKey,
}

impl DueRange {
    pub(super) fn of(due_key: DueKey) -> Self {
        Self {
            first: due_key,
            last: due_key,
        }
    }

    /// From the first of both to the last of both.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            first: self.first.min(other.first),
            last: self.last.max(other.last),
        }
    }

    /// What is left of it from a place on.
    pub(super) fn from(self, first: DueKey) -> Option<Self> {
        let first = self.first.max(first);
        (first <= self.last).then_some(Self { first, ..self })
    }
}
