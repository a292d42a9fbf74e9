//! Facts that were sent and not read back.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{Promise, Request};
use crate::record::{Basis, Fact, Pack, Record, Reign, Row};

/// A fact that was sent. Its bytes are never changed: it may land at any time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sent {
    sequence: u64,
    pub(super) bytes: Bytes,
    /// One for each row.
    pub(super) promises: Vec<Promise>,
    pub(super) barriers: Vec<Request>,
    is_alone: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Outbox {
    /// The last sequence that was given to a fact.
    sequence: u64,
    /// An `Owner` that was not read back.
    announced: Option<Bytes>,
    facts: VecDeque<Sent>,
}

impl Outbox {
    pub(super) fn announced(&mut self, bytes: Bytes) {
        self.announced = Some(bytes);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.facts.is_empty()
    }

    /// Nothing goes behind an `open` or `close` that was not read back.
    pub(super) fn has_room(&self, most: usize) -> bool {
        self.facts.len() < most && !self.facts.iter().any(|sent| sent.is_alone)
    }

    /// What was not read back, in order.
    pub(super) fn sent(&self) -> Vec<Bytes> {
        let facts = self.facts.iter().map(|sent| sent.bytes.clone());
        self.announced.iter().cloned().chain(facts).collect()
    }

    /// Makes a fact of as much of `queue` as fits, and freezes its bytes. Barriers need no room.
    pub(super) fn send(
        &mut self,
        epoch: u64,
        reign: Reign,
        basis: Basis,
        queue: &mut Vec<(Row, Promise)>,
        barriers: Vec<Request>,
    ) -> Bytes {
        let mut pack = Pack::default();
        let mut promises = Vec::new();
        let mut rest = Vec::new();
        for (row, promise) in queue.drain(..) {
            // Once one did not fit, later ones of its message must not overtake it.
            let pushed = if rest.is_empty() {
                pack.push(row)
            } else {
                Err(row)
            };
            match pushed {
                Ok(()) => promises.push(promise),
                Err(row) => rest.push((row, promise)),
            }
        }
        *queue = rest;
        let rows = pack.into_rows();
        let is_alone = matches!(rows[..], [Row::Open(_) | Row::Close(_)]);
        self.sequence += 1;
        let fact = Fact {
            epoch,
            reign,
            sequence: self.sequence,
            basis,
            rows,
        };
        let bytes = Record::Fact(fact).encode();
        self.facts.push_back(Sent {
            sequence: self.sequence,
            bytes: bytes.clone(),
            promises,
            barriers,
            is_alone,
        });
        bytes
    }

    /// A fact of this reign was read back. `None`: none with this sequence was sent.
    pub(super) fn confirm(&mut self, sequence: u64) -> Option<Sent> {
        let index = self
            .facts
            .iter()
            .position(|sent| sent.sequence == sequence)?;
        self.facts.remove(index)
    }

    /// Gives up all facts, and their sequences.
    pub(super) fn dissolve(&mut self) -> Vec<Promise> {
        self.announced = None;
        if let Some(first) = self.facts.front() {
            self.sequence = first.sequence - 1;
        }
        let facts = std::mem::take(&mut self.facts);
        let promises = facts.into_iter().flat_map(|sent| {
            let barriers = sent.barriers.into_iter().map(Promise::Request);
            sent.promises.into_iter().chain(barriers)
        });
        promises.collect()
    }
}
