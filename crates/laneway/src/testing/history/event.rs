//! What can happen to a message.

use std::sync::Arc;

/// A message, by its key and its place among the messages of that key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId {
    /// What order is kept by.
    pub key: Arc<str>,
    /// Grows with the order of submission within the key. Gaps are fine.
    pub seq: u64,
}

impl MessageId {
    /// The message `seq` of `key`.
    pub fn new(key: impl Into<Arc<str>>, seq: u64) -> Self {
        Self {
            key: key.into(),
            seq,
        }
    }
}

/// Which try at a message this is, and by whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// 1 for the first try.
    pub number: u32,
    /// The process or instance that runs it: what [`Event::Crashed`] names.
    pub owner: u64,
    /// The ownership epoch it runs under. An owner with a lower epoch than one already seen for
    /// the key is stale. 0 where there are no epochs.
    pub epoch: u64,
}

impl Default for Attempt {
    /// The first try by owner 0, without epochs.
    fn default() -> Self {
        Self {
            number: 1,
            owner: 0,
            epoch: 0,
        }
    }
}

/// How a try at a message ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The handler succeeded.
    Done,
    /// The handler failed, and the message is to be tried again.
    Failed,
    /// The message was given up and is durable in the dead-letter topic.
    DeadLettered,
    /// The message waits, durable, in the parked topic.
    Parked,
    /// The try was cut short (cancelled, timed out, closed), and the message is to be tried again.
    Abandoned,
}

impl Outcome {
    /// Whether nothing more is to happen to the message.
    #[must_use]
    pub fn is_final(self) -> bool {
        match self {
            Self::Done | Self::DeadLettered | Self::Parked => true,
            Self::Failed | Self::Abandoned => false,
        }
    }
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The message is about to be handed over.
    Submitted(MessageId),
    /// The promise for the message was received: from here on it must not be lost.
    Acked(MessageId),
    /// The submitter was told that the message was not taken.
    Refused(MessageId),
    /// A handler began.
    Started(MessageId, Attempt),
    /// A try ended, or the message was ended without one.
    Finished {
        /// The message.
        message: MessageId,
        /// Who ended it.
        owner: u64,
        /// Whether it is over, or tried again.
        outcome: Outcome,
    },
    /// The broker knows, durably, that the message is finished.
    Settled(MessageId),
    /// The owner is gone. What it had not settled may run again.
    Crashed {
        /// The owner that crashed.
        owner: u64,
    },
}

impl Event {
    /// The message that this is about, unless it is about an owner.
    #[must_use]
    pub fn message(&self) -> Option<&MessageId> {
        match self {
            Self::Submitted(message)
            | Self::Acked(message)
            | Self::Refused(message)
            | Self::Started(message, _)
            | Self::Finished { message, .. }
            | Self::Settled(message) => Some(message),
            Self::Crashed { .. } => None,
        }
    }
}

/// An event and its place in the order of all events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Nanoseconds since the Unix epoch, made unique within a [`History`](super::History). Only
    /// the order matters.
    pub at: u64,
    /// What happened.
    pub event: Event,
}
