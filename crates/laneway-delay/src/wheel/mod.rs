//! A hierarchical timing wheel, pure.
//!
//! Entries wait for their due time in slots. The slots of the lowest level are one millisecond
//! wide; each level above has slots 64 times as wide. An entry is put on the lowest level whose
//! turn covers its due time. When time reaches a slot of a higher level, the entries of that slot
//! move down (they *cascade*), until they lie in a slot of one millisecond, where they are due.
//! Eleven levels cover every [`Timestamp`] there is, so there is no far future to treat apart.
//!
//! # What it costs
//!
//! - Insert and cancel: constant, however many entries wait.
//! - Expiry: constant, plus at most ten moves down in the life of an entry, one for each level.
//!   Empty time costs nothing: a jump over a year is as cheap as one over a millisecond.
//! - An entry that is due before the wheel's own time (see below) lies in an ordered set until
//!   it is taken: logarithmic in the number of such entries.
//! - Memory: about 40 bytes and the value for each entry. It is allocated in pages, and a page is
//!   given back as soon as nothing lives on it.
//!
//! # What it promises
//!
//! - Never early: [`pop_due`](Wheel::pop_due) hands out an entry only if the `now` it was given
//!   is at or after the due time of that entry.
//! - Never lost, never twice: an inserted entry is handed out once or cancelled once.
//! - In order: by due time, and in the order of insertion among those that are due in the same
//!   millisecond.
//! - A clock that goes back is harmless: the wheel's own time is the latest it was told, and stays
//!   there. Entries that are inserted meanwhile are on time by the clock that went back.
//!
//! # Example
//!
//! ```
//! use laneway_delay::{Timestamp, Wheel};
//!
//! let at = Timestamp::from_millis;
//! let mut wheel = Wheel::new(at(0));
//! let tea = wheel.insert(at(180_000), "tea");
//! wheel.insert(at(420_000), "egg");
//!
//! // The tea is not wanted any more.
//! assert_eq!(wheel.cancel(tea), Some("tea"));
//! assert_eq!(wheel.cancel(tea), None);
//!
//! // Sleep until the wheel wants to be looked at, and look.
//! let mut now = at(0);
//! let egg = loop {
//!     match wheel.pop_due(now) {
//!         Some(entry) => break entry,
//!         None => now = wheel.next_wake().expect("the egg is still in there"),
//!     }
//! };
//! assert_eq!((egg.due, egg.value), (at(420_000), "egg"));
//! assert_eq!(now, at(420_000));
//! ```

mod levels;
mod slab;

use std::collections::BTreeSet;

use levels::{Levels, Slot};
use slab::{Home, Node, Slab};

use crate::Timestamp;

/// Entries that wait for their due time. See the [module](self).
#[derive(Debug)]
pub struct Wheel<T> {
    /// The latest time the wheel was told. Every entry on `levels` is due then or later.
    elapsed: u64,
    /// The number of the next insertion: what makes handles unique, and the order stable.
    sequence: u64,
    nodes: Slab<T>,
    levels: Levels,
    /// Entries that were inserted with a due time before `elapsed`, in the order of expiry. They
    /// are few and short-lived unless the clock went back.
    late: BTreeSet<Late>,
}

/// In the order of expiry: by due time, then by insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Late {
    due: u64,
    sequence: u64,
    index: u32,
}

/// Names an entry of a wheel, for [`Wheel::cancel`].
///
/// A handle belongs to the wheel that returned it. It goes stale when its entry is taken or
/// cancelled, and a stale handle never names another entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    index: u32,
    sequence: u64,
}

/// An entry that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due<T> {
    /// The due time it was inserted with.
    pub due: Timestamp,
    /// What was inserted.
    pub value: T,
}

impl<T> Wheel<T> {
    /// An empty wheel. `now` is where its time begins.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self {
            elapsed: now.as_millis(),
            sequence: 0,
            nodes: Slab::new(),
            levels: Levels::new(),
            late: BTreeSet::new(),
        }
    }

    /// How many entries wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether no entry waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts an entry in. A due time in the past is fine: the entry is due at once.
    ///
    /// # Panics
    ///
    /// When more than four billion entries wait at the same time.
    pub fn insert(&mut self, due: Timestamp, value: T) -> Handle {
        let due = due.as_millis();
        let sequence = self.sequence;
        self.sequence += 1;
        let index = self.nodes.insert(Node::new(due, sequence, value));
        if due < self.elapsed {
            self.nodes[index].home = Home::Late;
            self.late.insert(Late {
                due,
                sequence,
                index,
            });
        } else {
            let slot = Slot::of(due, self.elapsed);
            self.levels.push_back(slot, index, &mut self.nodes);
        }
        Handle { index, sequence }
    }

    /// Takes an entry out before it is due. `None` if it is not in there any more.
    pub fn cancel(&mut self, handle: Handle) -> Option<T> {
        let node = self.nodes.get(handle.index)?;
        if node.sequence != handle.sequence {
            return None;
        }
        Some(self.take(handle.index).value)
    }

    /// Takes the next entry that is due at `now`, if there is one.
    ///
    /// Call it until it returns `None`; then wait until [`next_wake`](Self::next_wake). A caller that has
    /// other things to do in between can stop at any entry and go on later.
    pub fn pop_due(&mut self, now: Timestamp) -> Option<Due<T>> {
        let now = now.as_millis();
        // Late entries are due before the wheel's own time, so they come before all others.
        if let Some(&late) = self.late.first() {
            return (late.due <= now).then(|| self.take(late.index).into_due());
        }
        while let Some(slot) = self.levels.first() {
            let start = slot.start(self.elapsed);
            if start > now {
                break;
            }
            // IMPORTANT: time stops at every occupied slot, in order. The place of an entry
            // depends on `elapsed`, so passing a slot without emptying it would misplace what is
            // in there.
            self.elapsed = start;
            if slot.is_exact() {
                let index = self.levels.front(slot);
                return Some(self.take(index).into_due());
            }
            self.levels.cascade(slot, start, &mut self.nodes);
        }
        self.elapsed = self.elapsed.max(now);
        None
    }

    /// When to call [`pop_due`](Self::pop_due) next. `None` if no entry waits.
    ///
    /// It is the due time of the next entry if that is near, and a moment before it if it is far:
    /// then entries have to move down a level, which takes at most ten such wakes on the whole way.
    /// It is never after the due time of any entry.
    #[must_use]
    pub fn next_wake(&self) -> Option<Timestamp> {
        let millis = match self.late.first() {
            Some(late) => late.due,
            None => self.levels.first()?.start(self.elapsed),
        };
        Some(Timestamp::from_millis(millis))
    }

    fn take(&mut self, index: u32) -> Node<T> {
        let node = &self.nodes[index];
        match node.home {
            Home::Late => {
                self.late.remove(&Late {
                    due: node.due,
                    sequence: node.sequence,
                    index,
                });
            }
            Home::Slot(slot) => self.levels.unlink(slot, index, &mut self.nodes),
        }
        self.nodes.remove(index)
    }
}

impl<T> Node<T> {
    fn into_due(self) -> Due<T> {
        Due {
            due: Timestamp::from_millis(self.due),
            value: self.value,
        }
    }
}
