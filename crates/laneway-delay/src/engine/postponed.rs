use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Timestamp;
use crate::store::Scheduled;

/// Messages that are due and were put off: nothing is sent to their receiver now. They keep their place in
/// the store, where nothing is written, and are looked at again when their time is over.
#[derive(Debug)]
pub(super) struct Postponed {
    heap: BinaryHeap<Reverse<Entry>>,
    bound: usize,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    until: Timestamp,
    waiting: Scheduled,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let key = |entry: &Self| (entry.until, entry.waiting.due_key);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Postponed {
    pub(super) fn new(bound: usize) -> Self {
        Self {
            heap: BinaryHeap::new(),
            bound,
        }
    }

    /// Whether another one fits.
    pub(super) fn has_room(&self) -> bool {
        self.heap.len() < self.bound
    }

    pub(super) fn push(&mut self, waiting: Scheduled, until: Timestamp) {
        self.heap.push(Reverse(Entry { until, waiting }));
    }

    /// The next one whose time is over.
    pub(super) fn pop(&mut self, now: Timestamp) -> Option<Scheduled> {
        let Reverse(first) = self.heap.peek()?;
        if first.until > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry.waiting)
    }

    /// When the next one's time is over.
    pub(super) fn next_wake(&self) -> Option<Timestamp> {
        self.heap.peek().map(|Reverse(entry)| entry.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Version;
    use crate::store::{DueKey, Route};

    #[test]
    fn they_come_back_when_their_time_is_over_and_not_before() {
        let at = Timestamp::from_millis;
        let waiting = |serial| Scheduled {
            due_key: DueKey { at: at(1), serial },
            version: Version::FIRST,
            route: Route::from_u64(1),
            payload_bytes: 0,
        };
        let mut postponed = Postponed::new(2);
        postponed.push(waiting(1), at(20));
        postponed.push(waiting(2), at(10));
        assert!(!postponed.has_room());
        assert_eq!(postponed.next_wake(), Some(at(10)));
        assert_eq!(postponed.pop(at(9)), None);
        assert_eq!(postponed.pop(at(10)), Some(waiting(2)));
        assert_eq!(postponed.pop(at(19)), None);
        assert_eq!(postponed.pop(at(99)), Some(waiting(1)));
    }
}
