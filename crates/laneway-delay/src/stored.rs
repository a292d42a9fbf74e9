//! A message as it is kept.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{MessageId, Record, Schedule, Target, Timestamp};

/// A message as it is kept, with all that has happened to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its name.
    pub id: MessageId,
    /// What it belongs to.
    pub topic: String,
    /// Where it is in its life: state, due time, attempts.
    pub record: Record,
    /// When it was accepted.
    pub accepted: Timestamp,
    /// What is delivered. Empty once the message was delivered or withdrawn: it is not needed then.
    pub payload: Bytes,
    /// What the payload is.
    pub content_type: Option<String>,
    /// Where it goes.
    pub target: Target,
    /// The waits between attempts, if not those of the topic.
    pub retry: Option<Schedule>,
    /// What the caller wants to find again with it.
    pub metadata: BTreeMap<String, String>,
    /// What happened to it, the oldest first. Of very long stories the middle is missing.
    pub history: Vec<Event>,
}

/// Something that happened to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it happened, by the clock of the engine.
    pub at: Timestamp,
    /// What happened.
    pub what: HistoryEvent,
}

/// What can happen to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HistoryEvent {
    /// It was moved later.
    Extended {
        /// When it is due since.
        due: Timestamp,
    },
    /// An attempt failed.
    Failed {
        /// Which one, from 1.
        attempt: u32,
        /// What went wrong, for people; at most 300 bytes of it.
        reason: String,
    },
    /// Nothing was sent, because its receiver was known to take nothing then. Only the last of several
    /// in a row is remembered.
    Postponed {
        /// Why the receiver takes nothing, for people; at most 300 bytes of it.
        reason: String,
    },
    /// It was delivered.
    Delivered {
        /// By which attempt, from 1.
        attempt: u32,
    },
    /// It was given up.
    Died,
    /// It was withdrawn.
    Withdrawn,
    /// It was ended while an attempt may have delivered it.
    Stopped,
    /// It was made of a dead message, which is gone since.
    Replayed {
        /// The dead one.
        of: MessageId,
    },
}

/// The most that is remembered of one message.
const MAX_EVENTS: usize = 24;

/// The longest reason that is remembered, in bytes.
const MAX_REASON: usize = 300;

impl Message {
    /// Remembers what happened. The first and the latest are kept.
    pub(crate) fn note(&mut self, at: Timestamp, mut what: HistoryEvent) {
        if let HistoryEvent::Failed { reason, .. } | HistoryEvent::Postponed { reason } = &mut what
        {
            let end = (0..=MAX_REASON.min(reason.len())).rev();
            let end = end.into_iter().find(|at| reason.is_char_boundary(*at));
            reason.truncate(end.unwrap_or(0));
        }
        let is_postponed = |what: &HistoryEvent| matches!(what, HistoryEvent::Postponed { .. });
        if is_postponed(&what)
            && self
                .history
                .last()
                .is_some_and(|last| is_postponed(&last.what))
        {
            self.history.pop();
        }
        if self.history.len() >= MAX_EVENTS {
            self.history.remove(MAX_EVENTS / 2);
        }
        self.history.push(Event { at, what });
    }
}
