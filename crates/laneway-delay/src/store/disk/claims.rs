//! Which messages are firing, and which are being changed: in memory, and only as long as it lasts.
//!
//! The protocol that makes one of two win:
//!
//! 1. [`Claims::begin`] notes a claim in `firing`, unless the message is in `changing`. *Then* `Shared::claim` reads
//!    the row: it sees a change that was made before, and a later change finds the claim.
//! 2. [`Claims::begin_change`] notes a change in `changing`, unless the message is in `firing`. The writer calls
//!    [`Claims::end_changes`] *after* the row is changed: a claim that comes meanwhile finds the note, a later one
//!    finds the changed row.
//!
//! `begin` and `begin_change` give way to the note that they find. A change that gives up in the end may have turned a claim away:
//! it has the due index told of the message again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::{HashMap, HashSet};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::Message;
use crate::store::DueKey;

/// How long a change waits for the row of a claim to be read.
pub(super) const READ_WITHIN: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Claims {
    notes: Mutex<Notes>,
    /// Told when rows were read.
    read: Condvar,
    /// Whether reading rows panics.
    #[cfg(test)]
    panics: std::sync::atomic::AtomicBool,
}

#[derive(Default)]
struct Notes {
    /// By where they stood: entries of places that a message has left are claimed in vain, and must
    /// not be in the way of the one that counts. `None` while the row is being read.
    firing: HashMap<DueKey, Option<Firing>>,
    changing: HashSet<DueKey>,
    /// Whether nothing is claimed any more.
    is_closed: bool,
}

/// A message that is firing.
#[derive(Clone)]
pub(super) struct Firing {
    pub(super) message: Arc<Message>,
    /// What was submitted, as a number.
    pub(super) fingerprint: u64,
}

/// What is known of a message.
pub(super) enum Note {
    /// Nothing: it is being changed from now on.
    Changing,
    /// It is firing.
    Firing(Arc<Message>),
    /// It is claimed, and its row is being read for too long.
    Reading,
}

impl Claims {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock()
    }

    /// Whether a test wants the reading of rows to panic, as the engine may.
    #[cfg(test)]
    pub(super) fn panics(&self) -> bool {
        self.panics.load(std::sync::atomic::Ordering::SeqCst)
    }

    #[cfg(test)]
    pub(super) fn let_reading_panic(&self, panics: bool) {
        self.panics
            .store(panics, std::sync::atomic::Ordering::SeqCst);
    }

    /// Notes claims; answers which of them could be noted.
    pub(super) fn begin(&self, due_keys: impl Iterator<Item = DueKey>) -> Vec<bool> {
        let mut notes = self.notes();
        let begin = |due_key| {
            let is_free = !notes.is_closed
                && !notes.changing.contains(&due_key)
                && !notes.firing.contains_key(&due_key);
            if is_free {
                notes.firing.insert(due_key, None);
            }
            is_free
        };
        due_keys.map(begin).collect()
    }

    /// Notes no claims from now on; answers whether none is left.
    pub(super) fn close(&self) -> bool {
        let mut notes = self.notes();
        notes.is_closed = true;
        notes.firing.is_empty()
    }

    /// The rows were read: the messages fire.
    pub(super) fn fire(&self, messages: impl Iterator<Item = (DueKey, Firing)>) {
        let mut notes = self.notes();
        for (due_key, message) in messages {
            notes.firing.insert(due_key, Some(message));
        }
        self.read.notify_all();
    }

    /// Claims have ended.
    pub(super) fn end(&self, due_keys: impl Iterator<Item = DueKey>) {
        let mut notes = self.notes();
        for due_key in due_keys {
            notes.firing.remove(&due_key);
        }
        self.read.notify_all();
    }

    /// Notes a change, unless the message is firing. Waits for a claim whose row is being read: it may
    /// turn out to be stale. It does not wait for long: a disk that hangs must not stop the only writer.
    pub(super) fn begin_change(&self, due_key: DueKey) -> Note {
        let deadline = Instant::now() + READ_WITHIN;
        let mut notes = self.notes();
        loop {
            match notes.firing.get(&due_key) {
                Some(Some(firing)) => return Note::Firing(firing.message.clone()),
                Some(None) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Note::Reading;
                    }
                    self.read.wait_for(&mut notes, left);
                }
                None => {
                    notes.changing.insert(due_key);
                    return Note::Changing;
                }
            }
        }
    }

    /// Changes were made, or given up.
    pub(super) fn end_changes(&self, due_keys: impl Iterator<Item = DueKey>) {
        let mut notes = self.notes();
        for due_key in due_keys {
            notes.changing.remove(&due_key);
        }
    }

    /// The message that is firing, and stood here.
    pub(super) fn message(&self, due_key: DueKey) -> Option<Arc<Message>> {
        self.firing(due_key).map(|firing| firing.message)
    }

    /// The same, with what was submitted.
    pub(super) fn firing(&self, due_key: DueKey) -> Option<Firing> {
        self.notes().firing.get(&due_key)?.clone()
    }

    /// Whether the message that stood here is firing.
    pub(super) fn is_firing(&self, due_key: DueKey) -> bool {
        self.message(due_key).is_some()
    }

    /// All that is firing.
    pub(super) fn messages(&self) -> Vec<Arc<Message>> {
        let notes = self.notes();
        let firing = notes.firing.values().flatten();
        firing.map(|firing| firing.message.clone()).collect()
    }

    /// All that is firing, with where it stood.
    pub(super) fn all(&self) -> Vec<(DueKey, Arc<Message>)> {
        let notes = self.notes();
        let firing = notes.firing.iter();
        firing
            .filter_map(|(due_key, firing)| Some((*due_key, firing.as_ref()?.message.clone())))
            .collect()
    }
}
