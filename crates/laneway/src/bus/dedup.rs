//! Remembers the events that were handled lately, so that the same event id is not handled twice.

use std::collections::{HashSet, VecDeque};

use parking_lot::Mutex;
use smol_str::SmolStr;

/// The last so many event ids.
#[derive(Debug)]
pub(super) struct Dedup {
    most: usize,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    ids: HashSet<SmolStr>,
    order: VecDeque<SmolStr>,
}

impl Dedup {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            seen: Mutex::default(),
        }
    }

    pub(super) fn has_seen(&self, id: &str) -> bool {
        self.seen().ids.contains(id)
    }

    pub(super) fn remember(&self, id: &str) {
        let mut seen = self.seen();
        let id = SmolStr::new(id);
        if seen.ids.insert(id.clone()) {
            seen.order.push_back(id);
            if seen.order.len() > self.most
                && let Some(oldest) = seen.order.pop_front()
            {
                seen.ids.remove(&oldest);
            }
        }
    }

    fn seen(&self) -> parking_lot::MutexGuard<'_, Seen> {
        self.seen.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_first() {
        let dedup = Dedup::new(2);
        for id in ["a", "b", "b", "c"] {
            dedup.remember(id);
        }
        assert!(!dedup.has_seen("a"));
        assert!(dedup.has_seen("b") && dedup.has_seen("c"));
    }
}
