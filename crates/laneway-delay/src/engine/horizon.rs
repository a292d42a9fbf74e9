//! The near part of the due index, pure: which messages wait in memory, and which only in the store.
//!
//! Everything that stands before the *cursor* is here (or was, and is done). What stands at or after it
//! is only in the store, and is read when its time comes near. Entries are never taken out when their
//! message is withdrawn or moved: they are found to be stale when they are claimed. An entry that is
//! here twice is claimed once.

use crate::store::{DueKey, Route, Scheduled};
use crate::{Due, Timestamp, Version, Wheel};

/// The near part of the due index.
#[derive(Debug)]
pub(super) struct Horizon {
    wheel: Wheel<Entry>,
    /// Everything before it is in the wheel.
    cursor: DueKey,
    /// How many entries there may be.
    bound: usize,
    scan: Option<Scanning>,
}

/// What is known of a message beside its due time.
#[derive(Clone, Copy, Debug)]
struct Entry {
    serial: u64,
    version: Version,
    route: Route,
    payload_bytes: u32,
}

/// A part of the store is being read.
#[derive(Debug)]
struct Scanning {
    from: DueKey,
    /// Who took a place at or after the cursor meanwhile: the reading may have been too early for them.
    arrivals: Vec<Scheduled>,
}

impl Horizon {
    /// Nothing is known yet but that no message waits before `floor`.
    pub(super) fn new(now: Timestamp, floor: DueKey, bound: usize) -> Self {
        Self {
            wheel: Wheel::new(now),
            cursor: floor,
            bound,
            scan: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.wheel.len()
    }

    /// A message took a place.
    pub(super) fn admit(&mut self, waiting: &Scheduled) {
        if waiting.due_key < self.cursor {
            self.insert(waiting);
        } else if let Some(scan) = &mut self.scan {
            scan.arrivals.push(*waiting);
        }
    }

    fn insert(&mut self, waiting: &Scheduled) {
        let Scheduled {
            due_key,
            version,
            route,
            payload_bytes,
        } = *waiting;
        let serial = due_key.serial;
        self.wheel.insert(
            due_key.at,
            Entry {
                serial,
                version,
                route,
                payload_bytes,
            },
        );
        if self.wheel.len() >= 2 * self.bound {
            self.shrink();
        }
    }

    /// Leaves the far half to the store again.
    fn shrink(&mut self) {
        let wheel = std::mem::replace(&mut self.wheel, Wheel::new(Timestamp::from_millis(0)));
        let mut all = drain(wheel);
        all.sort_unstable_by_key(|waiting| waiting.due_key);
        if let Some(first_left) = all.get(self.bound) {
            self.cursor = self.cursor.min(first_left.due_key);
        }
        all.truncate(self.bound);
        for waiting in &all {
            self.insert(waiting);
        }
    }

    /// Takes the next one that is due.
    pub(super) fn pop_due(&mut self, now: Timestamp) -> Option<Scheduled> {
        self.wheel.pop_due(now).map(Scheduled::from)
    }

    /// When to look again at the latest, for the sake of what is here.
    pub(super) fn next_wake(&self) -> Option<Timestamp> {
        self.wheel.next_wake()
    }

    /// Up to where everything is known.
    pub(super) fn cursor(&self) -> DueKey {
        self.cursor
    }

    /// Whether there is room for more, and no reading is under way.
    pub(super) fn can_read(&self) -> bool {
        self.scan.is_none() && self.wheel.len() < self.bound
    }

    /// Everything from a place on is to be read again.
    pub(super) fn rewind(&mut self, floor: DueKey) {
        self.cursor = self.cursor.min(floor);
    }

    /// How many to read.
    pub(super) fn room(&self) -> usize {
        self.bound.saturating_sub(self.wheel.len())
    }

    /// Reading begins, from the cursor on.
    ///
    /// IMPORTANT: called before `Store::scan`: `admit` notes each message that takes a place from now on.
    pub(super) fn begin_reading(&mut self) -> DueKey {
        self.scan = Some(Scanning {
            from: self.cursor,
            arrivals: Vec::new(),
        });
        self.cursor
    }

    /// Reading ended: `found` is everything from the cursor to before `end`. A failed reading has found
    /// nothing up to where it began.
    pub(super) fn end_reading(&mut self, found: &[Scheduled], end: DueKey) {
        let Some(scan) = self.scan.take() else { return };
        // The cursor may have gone back since, to leave something to the store.
        if self.cursor < scan.from {
            return;
        }
        self.cursor = self.cursor.max(end);
        for waiting in found {
            if waiting.due_key < self.cursor {
                self.insert(waiting);
            }
        }
        for waiting in &scan.arrivals {
            if waiting.due_key < self.cursor {
                self.insert(waiting);
            }
        }
    }

    /// No message that the horizon knows waits before this.
    pub(super) fn floor(&self) -> DueKey {
        let near = self.wheel.next_wake().map(DueKey::at);
        let floor = near.map_or(self.cursor, |near| near.min(self.cursor));
        match &self.scan {
            Some(scan) => floor.min(scan.from),
            None => floor,
        }
    }
}

impl From<Due<Entry>> for Scheduled {
    fn from(due: Due<Entry>) -> Self {
        let Entry {
            serial,
            version,
            route,
            payload_bytes,
        } = due.value;
        Self {
            due_key: DueKey {
                at: due.due,
                serial,
            },
            version,
            route,
            payload_bytes,
        }
    }
}

fn drain(mut wheel: Wheel<Entry>) -> Vec<Scheduled> {
    let mut all = Vec::with_capacity(wheel.len());
    while let Some(due) = wheel.pop_due(Timestamp::MAX) {
        all.push(due.into());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(at: u64, serial: u64) -> Scheduled {
        Scheduled {
            due_key: DueKey {
                at: Timestamp::from_millis(at),
                serial,
            },
            version: Version::FIRST,
            route: Route::from_u64(0),
            payload_bytes: 0,
        }
    }

    fn horizon(bound: usize) -> Horizon {
        Horizon::new(Timestamp::from_millis(0), DueKey::FIRST, bound)
    }

    fn read(horizon: &mut Horizon, found: &[Scheduled], end: u64) {
        horizon.begin_reading();
        horizon.end_reading(found, DueKey::at(Timestamp::from_millis(end)));
    }

    fn pop_all(horizon: &mut Horizon) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        while let Some(waiting) = horizon.pop_due(Timestamp::MAX) {
            all.push((waiting.due_key.at.as_millis(), waiting.due_key.serial));
        }
        all
    }

    #[test]
    fn what_is_far_stays_in_the_store() {
        let mut horizon = horizon(10);
        read(&mut horizon, &[waiting(5, 1)], 100);
        horizon.admit(&waiting(99, 2));
        horizon.admit(&waiting(100, 3));
        assert_eq!(pop_all(&mut horizon), [(5, 1), (99, 2)]);
    }

    #[test]
    fn who_comes_while_the_store_is_read_is_not_forgotten() {
        let mut horizon = horizon(10);
        horizon.begin_reading();
        // Too late for the reading, and before its end.
        horizon.admit(&waiting(50, 7));
        horizon.admit(&waiting(500, 8));
        assert_eq!(horizon.floor(), DueKey::FIRST);
        horizon.end_reading(&[waiting(60, 1)], DueKey::at(Timestamp::from_millis(100)));
        assert_eq!(pop_all(&mut horizon), [(50, 7), (60, 1)]);
        assert_eq!(horizon.cursor(), DueKey::at(Timestamp::from_millis(100)));
    }

    #[test]
    fn too_many_are_left_to_the_store_also_when_all_are_due_at_once() {
        let mut horizon = horizon(10);
        read(&mut horizon, &[], 1000);
        for serial in (0..1000).rev() {
            horizon.admit(&waiting(7, serial));
        }
        assert!(horizon.len() < 20);
        let cursor = horizon.cursor();
        let kept = pop_all(&mut horizon);
        assert!(
            kept.iter()
                .all(|(at, serial)| *at == 7 && *serial < cursor.serial)
        );
        // Everything before the cursor was there.
        assert_eq!(kept.len() as u64, cursor.serial);
    }

    #[test]
    fn a_reading_that_was_overtaken_by_a_lack_of_room_counts_for_nothing() {
        let mut horizon = horizon(10);
        read(&mut horizon, &[], 1000);
        horizon.begin_reading();
        for serial in 0..20 {
            horizon.admit(&waiting(7, serial));
        }
        horizon.end_reading(
            &[waiting(1500, 50)],
            DueKey::at(Timestamp::from_millis(2000)),
        );
        assert_eq!(
            horizon.cursor(),
            DueKey {
                at: Timestamp::from_millis(7),
                serial: 10
            }
        );
        assert_eq!(pop_all(&mut horizon).len(), 10);
    }
}
