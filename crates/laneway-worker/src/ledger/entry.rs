use std::time::Duration;

use laneway_delay::store::{DueKey, Route, Scheduled};
use laneway_delay::{Message, MessageId, Record, State, Target, Timestamp, Version};
use laneway_rpc::proto::Ending;
use laneway_rpc::proto::ending::How;

use super::PeerId;

/// Shard, message and attempt.
pub(super) type Key = (u32, MessageId, u32);

/// The longest reason that is sent, in bytes.
const LONGEST_REASON: usize = 1_024;

/// One attempt.
pub(super) struct Entry {
    pub(super) key: Key,
    /// The connection that gave it.
    pub(super) from: PeerId,
    pub(super) topic: String,
    /// What is delivered, while it waits.
    pub(super) message: Option<Message>,
    pub(super) bytes: usize,
    pub(super) route: Route,
    pub(super) due_key: DueKey,
    /// It must not be started after this.
    pub(super) deadline: Duration,
    pub(super) phase: Phase,
    /// How it ended.
    pub(super) ending: Option<Ending>,
    /// When its outcome was offered last.
    pub(super) offered: Duration,
}

/// Where an attempt is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It waits for its moment, or for a slot.
    Waiting,
    /// The engine has it. It was not started.
    Claimed,
    /// It was started.
    Runs,
    /// Its outcome waits to be logged.
    Ended,
}

impl Entry {
    /// What the due index knows of it.
    pub(super) fn scheduled(&self) -> Scheduled {
        Scheduled {
            due_key: self.due_key,
            version: Version::from_u64(self.due_key.serial),
            route: self.route,
            payload_bytes: u32::try_from(self.bytes).unwrap_or(u32::MAX),
        }
    }

    /// The message as its sink gets it. Its version is the number of the attempt in this ledger, by which the sink finds it
    /// again; all else is the message's own.
    pub(super) fn claim(&mut self, now: Timestamp) -> Option<Message> {
        let mut message = self.message.take()?;
        let record = message.record;
        message.record = Record::restore(
            Version::from_u64(self.due_key.serial),
            record.due(),
            record.attempts(),
            record.failures(),
            State::Firing { since: now },
        );
        self.phase = Phase::Claimed;
        Some(message)
    }
}

/// How much of a message its sender chose the size of: payload, metadata and headers.
pub(super) fn held_bytes(message: &Message) -> usize {
    let metadata = message.metadata.iter();
    let metadata: usize = metadata.map(|(name, value)| name.len() + value.len()).sum();
    let headers: usize = match &message.target {
        Target::Callback(callback) => {
            let headers = callback.headers.iter();
            headers.map(|(name, value)| name.len() + value.len()).sum()
        }
        _ => 0,
    };
    message.payload.len() + metadata + headers
}

/// An ending whose reason is not too long to be kept.
pub(super) fn truncated(mut ending: Ending) -> Ending {
    if let Some(How::Unknown(reason)) = &mut ending.how {
        truncate(reason);
    }
    if let Some(How::Failed(failure)) = &mut ending.how {
        truncate(&mut failure.reason);
    }
    ending
}

fn truncate(reason: &mut String) {
    reason.truncate(reason.floor_char_boundary(LONGEST_REASON));
}
