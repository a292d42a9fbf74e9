//! Who is firing, and who is being changed: in memory, and only as long as it lasts.
//!
//! The protocol that makes one of two win:
//!
//! 1. A claim is noted here, unless the message is being changed. *Then* the row is read: a change that
//!    was made before is seen, and a later one finds the claim.
//! 2. A change is noted here, unless the message is firing. It is let go *after* the row is changed: a
//!    claim that comes meanwhile finds it, a later one finds the changed row.
//!
//! Whoever finds the other gives way. A change that gives up in the end may have turned a claim away:
//! it has the message stand in line again.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use foldhash::{HashMap, HashSet};

use crate::Message;
use crate::store::Place;

#[derive(Default)]
pub(super) struct Claims {
    notes: Mutex<Notes>,
    /// Told when rows were read.
    read: Condvar,
}

#[derive(Default)]
struct Notes {
    /// By where they stood: entries of places that a message has left are claimed in vain, and must
    /// not be in the way of the one that counts. `None` while the row is being read.
    firing: HashMap<Place, Option<Firing>>,
    changing: HashSet<Place>,
}

/// A message that is firing.
#[derive(Clone)]
pub(super) struct Firing {
    pub(super) message: Arc<Message>,
    /// What was submitted, as a number.
    pub(super) print: u64,
}

/// What is known of a message.
pub(super) enum Note {
    /// Nothing: it is being changed from now on.
    Changing,
    /// It is firing.
    Firing(Arc<Message>),
}

impl Claims {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes claims; answers which of them could be noted.
    pub(super) fn begin(&self, places: impl Iterator<Item = Place>) -> Vec<bool> {
        let mut notes = self.notes();
        let begin = |place| {
            let is_free = !notes.changing.contains(&place) && !notes.firing.contains_key(&place);
            if is_free {
                notes.firing.insert(place, None);
            }
            is_free
        };
        places.map(begin).collect()
    }

    /// The rows were read: the messages fire.
    pub(super) fn fire(&self, messages: impl Iterator<Item = (Place, Firing)>) {
        let mut notes = self.notes();
        for (place, message) in messages {
            notes.firing.insert(place, Some(message));
        }
        self.read.notify_all();
    }

    /// Claims have ended.
    pub(super) fn end(&self, places: impl Iterator<Item = Place>) {
        let mut notes = self.notes();
        for place in places {
            notes.firing.remove(&place);
        }
        self.read.notify_all();
    }

    /// Notes a change, unless the message is firing. Waits for a claim whose row is being read: it may
    /// turn out to be stale.
    pub(super) fn begin_change(&self, place: Place) -> Note {
        let mut notes = self.notes();
        loop {
            match notes.firing.get(&place) {
                Some(Some(firing)) => return Note::Firing(firing.message.clone()),
                Some(None) => {
                    let waited = self.read.wait(notes);
                    notes = waited.unwrap_or_else(PoisonError::into_inner);
                }
                None => {
                    notes.changing.insert(place);
                    return Note::Changing;
                }
            }
        }
    }

    /// Changes were made, or given up.
    pub(super) fn end_changes(&self, places: impl Iterator<Item = Place>) {
        let mut notes = self.notes();
        for place in places {
            notes.changing.remove(&place);
        }
    }

    /// The message that is firing, and stood here.
    pub(super) fn message(&self, place: Place) -> Option<Arc<Message>> {
        self.firing(place).map(|firing| firing.message)
    }

    /// The same, with what was submitted.
    pub(super) fn firing(&self, place: Place) -> Option<Firing> {
        self.notes().firing.get(&place)?.clone()
    }

    /// Whether the message that stood here is firing.
    pub(super) fn is_firing(&self, place: Place) -> bool {
        self.message(place).is_some()
    }

    /// All that is firing.
    pub(super) fn messages(&self) -> Vec<Arc<Message>> {
        let notes = self.notes();
        let firing = notes.firing.values().flatten();
        firing.map(|firing| firing.message.clone()).collect()
    }

    /// All that is firing, with where it stood.
    pub(super) fn all(&self) -> Vec<(Place, Arc<Message>)> {
        let notes = self.notes();
        let firing = notes.firing.iter();
        firing
            .filter_map(|(place, firing)| Some((*place, firing.as_ref()?.message.clone())))
            .collect()
    }
}
