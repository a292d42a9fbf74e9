//! What the writer is asked for.

use laneway_disk::QueuePermit;
use tokio::sync::oneshot;

use super::ahead::Ahead;
use super::codec::{self, KeyUse, Location};
use super::keys;
use super::writer::SETTLEMENT_BYTES;
use crate::store::{Change, Draft, Scheduled, Settlement, change};
use crate::{Accepted, Error, Message, MessageId, StateName, Timestamp};

/// What a change takes beside the payload, metadata and headers that were looked up for it, about.
const CHANGE_BYTES: usize = 400;

/// A request on its way, with its room in the queue.
pub(super) struct QueuedRequest {
    pub(super) request: Request,
    /// None for what waits until the store writes again: its caller waits, and others must find room to be refused.
    pub(super) permit: Option<QueuePermit>,
}

pub(super) type Ack<T> = oneshot::Sender<T>;

pub(super) enum Request {
    Submit(Vec<Entry>, Ack<Vec<Result<Accepted, Error>>>),
    /// With what was found of each message before.
    Change(
        Vec<(Change, Option<Ahead>)>,
        Ack<Vec<Result<Message, Error>>>,
    ),
    Settle(Settle),
    /// Messages that stand before this moment may be claimed.
    Cover {
        before: Timestamp,
        ack: Ack<Result<(), Error>>,
    },
    Forget {
        keys_before: Timestamp,
        ended_before: Timestamp,
        ack: Ack<Result<bool, Error>>,
    },
}

impl Request {
    /// What it takes in memory, about.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Submit(entries, _) => entries.iter().map(Entry::bytes).sum(),
            Self::Change(changes, _) => changes
                .iter()
                .map(|(_, ahead)| {
                    let held = ahead
                        .as_ref()
                        .map(|ahead| change::held_bytes(&ahead.message));
                    CHANGE_BYTES + held.unwrap_or(0)
                })
                .sum(),
            Self::Settle(settle) => settle.settlements.len() * SETTLEMENT_BYTES,
            Self::Cover { .. } | Self::Forget { .. } => 0,
        }
    }
}

/// Attempts that ended.
pub(super) struct Settle {
    pub(super) settlements: Vec<Settlement>,
    pub(super) ack: Ack<Result<(), Error>>,
    /// Whether a batch with them was refused before. It may be there nevertheless.
    pub(super) is_again: bool,
}

/// A new message, as rows.
pub(super) struct Entry {
    pub(super) id: MessageId,
    /// Whether the id is the caller's own: then it may be taken.
    pub(super) is_own_id: bool,
    /// Whether it takes the place of the message that has the id.
    pub(super) replace: bool,
    pub(super) topic: String,
    pub(super) due: Timestamp,
    pub(super) waiting: Scheduled,
    pub(super) fingerprint: u64,
    /// The row of the due index.
    pub(super) row: Vec<u8>,
    /// Where the message is, as a row.
    pub(super) location: Vec<u8>,
    /// The same by topic: key and row.
    pub(super) of_topic: (Vec<u8>, Vec<u8>),
    pub(super) key: Option<KeyEntry>,
}

/// An idempotency key that comes with a message.
pub(super) struct KeyEntry {
    pub(super) key: String,
    pub(super) now: Timestamp,
    pub(super) used: KeyUse,
}

impl Entry {
    fn bytes(&self) -> usize {
        let (topic_key, topic_row) = &self.of_topic;
        self.row.len() + self.location.len() + topic_key.len() + topic_row.len()
    }

    pub(super) fn new(draft: Draft, serial: u64, identity: u64) -> Self {
        let fingerprint = draft.submission.fingerprint();
        let own = draft.submission.id.clone();
        let is_own_id = own.is_some();
        let replace = draft.submission.replace;
        let id = own.unwrap_or_else(MessageId::unique);
        let (due, now) = (draft.due, draft.now);
        let key = draft.submission.idempotency_key.clone();
        let key = key.map(|key| KeyEntry {
            key,
            now,
            used: KeyUse {
                id: id.clone(),
                due,
                fingerprint,
            },
        });
        let message = change::accepted(draft, id.clone());
        let waiting = Scheduled {
            due_key: crate::store::DueKey { at: due, serial },
            version: message.record.version(),
            route: crate::store::Route::of(&message.target),
            payload_bytes: change::payload_bytes(&message),
        };
        let location = Location {
            state: StateName::Scheduled,
            due_key: waiting.due_key,
            fingerprint,
        };
        let row_key = keys::due_key(waiting.due_key);
        let topic_key = keys::of_topic(&message.topic, StateName::Scheduled, waiting.due_key);
        Self {
            is_own_id,
            replace,
            due,
            fingerprint,
            key,
            row: codec::sealed(&row_key, &message, fingerprint, identity),
            location: location.sealed(id.as_str().as_bytes(), identity),
            of_topic: codec::marked(topic_key, identity),
            topic: message.topic,
            waiting,
            id,
        }
    }
}
