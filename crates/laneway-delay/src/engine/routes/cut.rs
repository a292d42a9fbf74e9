//! Queues that do not fit into memory.
//!
//! All queues together have a bound. If it is reached, the longest one loses half of what is in it: that is
//! forgotten here, with a note where it stood, and when the queue is empty the store is asked again. So a
//! destination that is stuck cannot take the memory of others. Of queues that are equally long the one that
//! waits the longest is cut: what it loses is read first, and a destination that came just now is served soon.
//!
//! One reading serves all queues that were cut: it begins where the first one stands that an empty queue
//! lacks, and each queue gets what it lacks from there on. A message that is read though it is here already
//! is here twice, and is claimed once.

use foldhash::{HashSet, HashSetExt};

use super::queue::DueRange;
use super::{DueKey, Route, Routes, Scheduled};

/// The first of all routes, for ranges.
const LEAST: Route = Route::from_u64(0);

/// The store is being read for queues that were cut.
#[derive(Debug)]
pub(super) struct Reading {
    from: DueKey,
    /// What was forgotten meanwhile: the reading may have been too early for it.
    meanwhile: Vec<(Route, DueRange)>,
}

impl Routes {
    /// Forgets half of the longest queue.
    pub(super) fn cut_longest(&mut self) {
        let (length, Some(route)) = self.longest() else {
            return;
        };
        let Some(queue) = self.queues.get_mut(&route) else {
            return;
        };
        let cut = queue.due.split_off(length / 2);
        self.resized(route, length, length / 2);
        for waiting in &cut {
            self.due_keys.remove(waiting.due_key);
        }
        let ranges = cut.iter().map(|waiting| DueRange::of(waiting.due_key));
        if let Some(range) = ranges.reduce(DueRange::and) {
            self.forget(route, range);
        }
    }

    /// Some of a route are left to the store.
    pub(super) fn forget(&mut self, route: Route, range: DueRange) {
        if let Some(reading) = &mut self.reading {
            reading.meanwhile.push((route, range));
        }
        let known = self.queues.get(&route).and_then(|queue| queue.forgotten);
        let all = known.map_or(range, |known| known.and(range));
        self.set_forgotten(route, Some(all));
    }

    fn set_forgotten(&mut self, route: Route, next: Option<DueRange>) {
        let queue = self.queues.entry(route).or_default();
        let before = std::mem::replace(&mut queue.forgotten, next);
        let mut was_hungry = false;
        if let Some(before) = before {
            self.cut.remove(&(before.first, route));
            was_hungry = self.hungry.remove(&(before.first, route));
        }
        if let Some(next) = next {
            self.cut.insert((next.first, route));
            if was_hungry {
                self.hungry.insert((next.first, route));
            }
        } else {
            self.make_ready(route, false);
        }
    }

    /// From where the store is to be read. `None`: it need not be, or cannot be now.
    pub(super) fn begin_reading(&mut self) -> Option<DueKey> {
        if self.reading.is_some() {
            return None;
        }
        let (from, _) = *self.hungry.first()?;
        let bound = self.bounds.queued;
        let (longest, _) = self.longest();
        if self.queued > bound - bound / 8 && longest < self.most_read() / 4 {
            // What is here is spread over so many that nothing can be spared.
            return None;
        }
        self.reading = Some(Reading {
            from,
            meanwhile: Vec::new(),
        });
        Some(from)
    }

    /// How many are read for a queue before it has worked them off.
    fn most_read(&self) -> usize {
        (self.bounds.queued / 16).max(8)
    }

    /// The store was read: `found` is everything from where the reading began to before `end`. A failed
    /// reading has found nothing up to where it began.
    pub(in crate::engine) fn found(&mut self, found: &[Scheduled], end: DueKey) {
        let Some(Reading { from, meanwhile }) = self.reading.take() else {
            return;
        };
        let mut end = end.max(from);
        // Their queues are full again.
        let mut full = HashSet::new();
        for waiting in found {
            let (route, due_key) = (waiting.route, waiting.due_key);
            let Some(queue) = self.queues.get(&route) else {
                continue;
            };
            let Some(lacking) = queue.forgotten else {
                continue;
            };
            // One that lacks something before this reading would get them out of order.
            let is_lacking = (lacking.first..=lacking.last).contains(&due_key);
            if lacking.first < from || !is_lacking || full.contains(&route) {
                continue;
            }
            let length = queue.due.len();
            let mut has_room = length < self.most_read();
            if has_room && self.queued >= self.bounds.queued {
                let cut = self.make_room(length);
                has_room = cut.is_some();
                // It lacks some from now on that this reading may have been too early for.
                full.extend(cut);
            }
            if !has_room && length == 0 {
                end = due_key;
                break;
            }
            if !has_room {
                full.insert(route);
                continue;
            }
            self.give(*waiting);
            self.set_forgotten(route, lacking.from(due_key.next()));
        }
        // Of these there were none between.
        let passed = self.hungry.range((from, LEAST)..(end, LEAST));
        let passed: Vec<_> = passed.map(|(_, route)| *route).collect();
        for route in passed {
            let lacking = self.queues.get(&route).and_then(|queue| queue.forgotten);
            self.set_forgotten(route, lacking.and_then(|lacking| lacking.from(end)));
        }
        for (route, range) in meanwhile {
            if range.first < end && range.last >= from {
                self.forget(route, range);
            }
        }
    }

    /// Puts one that was read into its queue.
    fn give(&mut self, waiting: Scheduled) {
        let route = waiting.route;
        let queue = self.queues.entry(route).or_default();
        queue.due.push_back(waiting);
        let length = queue.due.len();
        if let Some(lacking) = queue.forgotten {
            self.hungry.remove(&(lacking.first, route));
        }
        self.due_keys.add(waiting.due_key);
        self.resized(route, length - 1, length);
        self.make_ready(route, false);
    }

    /// Makes room for a queue of this length by cutting one that is much longer.
    fn make_room(&mut self, length: usize) -> Option<Route> {
        let (longest, route) = self.longest();
        if longest < 2 * length + 2 {
            return None;
        }
        self.cut_longest();
        route
    }
}
