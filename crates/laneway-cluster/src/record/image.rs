use std::collections::BTreeMap;

use bytes::Bytes;
use laneway_delay::{MessageId, Timestamp};

use super::{Answer, Cause, Instance, Key, RequestDigest, Verb};
use crate::rules::{Rule, Rules};

/// The most events that are remembered of one message.
pub const MAX_EVENTS: usize = 24;

/// The longest reason that is remembered, in bytes.
pub const MAX_REASON: usize = 300;

/// The most attempts of one message whose outcomes are tracked one by one.
pub const MAX_DOUBTS: usize = 64;

/// The most answers to commands with keys that one message has at a time.
pub const MAX_ANSWERS: usize = 256;

/// All that is known of one message.
///
/// Everything in it but the body is bounded, so that whatever was accepted can be carried: a body has room up to 64 KiB
/// below what the broker takes, and the rest of an image is smaller than that.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Image {
    /// Where it is in its life.
    pub state: State,
    /// When the sender wants it.
    pub due: Timestamp,
    /// When the next attempt may begin. Never before it is due.
    pub next: Timestamp,
    /// When it was submitted.
    pub accepted: Timestamp,
    /// What was asked for.
    pub digest: RequestDigest,
    /// What it belongs to.
    pub topic: String,
    /// Target, payload and the rest. Empty once no attempt and no replay needs it.
    pub body: Bytes,
    /// How many attempts were begun.
    pub attempts: u32,
    /// How many of them are known to have failed.
    pub failures: u32,
    /// Attempts that were begun and whose outcome is not known.
    pub doubts: BTreeMap<u32, Doubt>,
    /// There were more doubts than are tracked: it stays in doubt until it is delivered.
    pub doubt_stays: bool,
    /// The answers to commands with keys.
    pub answers: BTreeMap<Key, Answered>,
    /// What happened to it, the oldest first. Of long stories the middle is missing.
    pub history: Vec<Event>,
}

/// Where a message is in its life, as the log has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// It was never accepted. There are only answers to commands about its id.
    Absent,
    /// It is to be delivered.
    Scheduled,
    /// It was delivered.
    Delivered {
        /// When the worker that delivered it was heard.
        at: Timestamp,
    },
    /// It was given up.
    Dead {
        /// When it was given up.
        at: Timestamp,
        /// What it was given up for.
        cause: Cause,
    },
    /// It was taken back. No attempt has started.
    Withdrawn {
        /// When it was taken back.
        at: Timestamp,
    },
    /// It was stopped. It may have been delivered.
    Stopped {
        /// When it was stopped.
        at: Timestamp,
    },
    /// It was dead, and another one was made of it.
    Replayed {
        /// When the other one was made; it is due then.
        at: Timestamp,
        /// The other one.
        to: MessageId,
    },
    /// It had ended, and was removed.
    Purged {
        /// When it was removed.
        at: Timestamp,
    },
}

/// An attempt whose outcome is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Doubt {
    /// Who has it.
    pub worker: Instance,
    /// In which epoch it was begun.
    pub epoch: u64,
}

/// The answer that a command with a key got.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Answered {
    /// What was asked for.
    pub verb: Verb,
    /// The request as it was written.
    pub digest: RequestDigest,
    /// The answer.
    pub answer: Answer,
    /// When it was given.
    pub at: Timestamp,
}

/// Something that happened to a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// The `at` of the row that says so.
    pub at: Timestamp,
    /// What is remembered of that row.
    pub what: HistoryEvent,
}

/// What is remembered of a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HistoryEvent {
    /// It was moved later.
    Extended(Timestamp),
    /// An attempt failed, and why.
    Failed(u32, String),
    /// An attempt delivered it, also after it had ended otherwise.
    Delivered(u32),
    /// It was given up.
    Died,
    /// It was taken back.
    Withdrawn,
    /// It was stopped.
    Stopped,
    /// It was made of a dead one.
    Replayed(MessageId),
}

impl State {
    /// When the message ended; `None` if it has not.
    #[must_use]
    pub const fn ended(&self) -> Option<Timestamp> {
        match self {
            Self::Absent | Self::Scheduled => None,
            Self::Delivered { at }
            | Self::Dead { at, .. }
            | Self::Withdrawn { at }
            | Self::Stopped { at }
            | Self::Replayed { at, .. }
            | Self::Purged { at } => Some(*at),
        }
    }
}

impl Image {
    /// A message that was just accepted.
    #[must_use]
    pub fn accepted(
        due: Timestamp,
        accepted: Timestamp,
        digest: RequestDigest,
        topic: String,
        body: Bytes,
    ) -> Self {
        Self {
            state: State::Scheduled,
            due,
            next: due,
            accepted,
            digest,
            topic,
            body,
            attempts: 0,
            failures: 0,
            doubts: BTreeMap::new(),
            doubt_stays: false,
            answers: BTreeMap::new(),
            history: Vec::new(),
        }
    }

    /// An id of which no message was accepted.
    #[must_use]
    pub fn absent() -> Self {
        let never = Timestamp::from_millis(0);
        Self {
            state: State::Absent,
            ..Self::accepted(
                never,
                never,
                RequestDigest([0; 32]),
                String::new(),
                Bytes::new(),
            )
        }
    }

    /// Whether an attempt may have delivered it, or may still do so.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.doubt_stays || !self.doubts.is_empty()
    }

    /// Remembers what happened. The first and the latest events are kept.
    pub(crate) fn note(&mut self, rules: Rules, at: Timestamp, mut what: HistoryEvent) {
        if rules.holds(Rule::BoundedHistory) {
            if let HistoryEvent::Failed(_, reason) = &mut what {
                reason.truncate(reason.floor_char_boundary(MAX_REASON));
            }
            if self.history.len() >= MAX_EVENTS {
                self.history.remove(MAX_EVENTS / 2);
            }
        }
        self.history.push(Event { at, what });
    }
}
