//! What is due soon, in memory: the near part of a shard's due index.
//!
//! The view has all scheduled messages by the moment of their next attempt. [`Near`] has those up to a *cursor*, and the
//! cursor moves on as time does. A change of a message before the cursor is noted here; one behind it is found when
//! the cursor gets there.

use std::collections::{BTreeSet, HashMap};

use laneway_delay::{MessageId, Timestamp};

/// Messages by the moment of their next attempt, up to a cursor.
#[derive(Debug, Default)]
pub(crate) struct Near {
    order: BTreeSet<(Timestamp, MessageId)>,
    times: HashMap<MessageId, Timestamp>,
    cursor: Option<Cursor>,
}

/// Everything up to there was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cursor {
    time: Timestamp,
    /// `None`: all of that moment.
    id: Option<MessageId>,
}

impl Near {
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// From where on to load: behind this place. `None`: from the beginning.
    pub(crate) fn loaded_to(&self) -> Option<(Timestamp, MessageId)> {
        let cursor = self.cursor.as_ref()?;
        // Behind all ids of that moment is before all ids of the next one.
        Some(match &cursor.id {
            Some(id) => (cursor.time, id.clone()),
            None => (
                cursor.time + std::time::Duration::from_millis(1),
                first_id()?,
            ),
        })
    }

    /// Whether everything up to this moment is here.
    pub(crate) fn reaches(&self, until: Timestamp) -> bool {
        let reaches =
            |cursor: &Cursor| cursor.time > until || (cursor.time == until && cursor.id.is_none());
        self.cursor.as_ref().is_some_and(reaches)
    }

    /// Everything up to this place of the view was put in.
    pub(crate) fn loaded_up_to(&mut self, time: Timestamp, id: Option<MessageId>) {
        self.cursor = Some(Cursor { time, id });
    }

    /// Notes a message, if it is before the cursor.
    pub(crate) fn note(&mut self, time: Timestamp, id: &MessageId) {
        self.remove(id);
        let is_loaded = self.cursor.as_ref().is_some_and(|cursor| {
            let same = cursor.time == time;
            let behind = |last: &MessageId| id > last;
            time < cursor.time || (same && !cursor.id.as_ref().is_some_and(behind))
        });
        if is_loaded {
            self.put(time, id.clone());
        }
    }

    /// Puts a message in that was found in the view.
    pub(crate) fn put(&mut self, time: Timestamp, id: MessageId) {
        if let Some(before) = self.times.insert(id.clone(), time) {
            self.order.remove(&(before, id.clone()));
        }
        self.order.insert((time, id));
    }

    pub(crate) fn remove(&mut self, id: &MessageId) {
        if let Some(time) = self.times.remove(id) {
            self.order.remove(&(time, id.clone()));
        }
    }

    /// The moment of the first one.
    pub(crate) fn first(&self) -> Option<Timestamp> {
        self.order.first().map(|(time, _)| *time)
    }

    /// Takes the first one out, if its moment is not after `until`.
    pub(crate) fn pop(&mut self, until: Timestamp) -> Option<(Timestamp, MessageId)> {
        if self.first()? > until {
            return None;
        }
        let (time, id) = self.order.pop_first()?;
        self.times.remove(&id);
        Some((time, id))
    }

    /// Drops the latest ones until `most` are left, and moves the cursor before them.
    pub(crate) fn shrink(&mut self, most: usize) {
        while self.order.len() > most {
            let Some((_, id)) = self.order.pop_last() else {
                return;
            };
            self.times.remove(&id);
            if let Some((time, last)) = self.order.last().cloned() {
                self.loaded_up_to(time, Some(last));
            } else {
                self.cursor = None;
            }
        }
    }
}

/// An id before all others.
fn first_id() -> Option<MessageId> {
    MessageId::new("-").ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> MessageId {
        MessageId::new(text).unwrap()
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn changes_before_the_cursor_are_noted_and_those_behind_it_are_not() {
        let mut near = Near::default();
        near.note(at(1), &id("a"));
        assert_eq!(near.first(), None, "nothing was loaded");
        near.loaded_up_to(at(100), None);
        near.note(at(100), &id("a"));
        near.note(at(101), &id("b"));
        assert_eq!(near.pop(at(99)), None);
        assert_eq!(near.pop(at(200)), Some((at(100), id("a"))));
        assert_eq!(near.pop(at(200)), None);
        assert_eq!(near.loaded_to(), Some((at(101), id("-"))));
    }

    #[test]
    fn a_message_that_moves_is_there_once() {
        let mut near = Near::default();
        near.loaded_up_to(at(100), Some(id("m")));
        near.note(at(5), &id("a"));
        near.note(at(7), &id("a"));
        near.note(at(100), &id("z"));
        assert_eq!((near.len(), near.first()), (1, Some(at(7))));
        near.note(at(500), &id("a"));
        assert_eq!(near.len(), 0, "it moved behind the cursor");
    }

    #[test]
    fn what_is_too_much_is_left_in_the_view() {
        let mut near = Near::default();
        near.loaded_up_to(at(100), None);
        for number in 0..10 {
            near.note(at(number), &id("a").clone());
            near.put(at(number), id(&format!("m{number}")));
        }
        near.shrink(4);
        assert_eq!(near.len(), 4);
        assert!(!near.reaches(at(4)));
        let (time, _) = near.loaded_to().unwrap();
        assert_eq!(time, at(3));
    }
}
