//! What the writer is asked for.

use tokio::sync::oneshot;

use super::ahead::Ahead;
use super::codec::{self, KeyUse, Location};
use super::keys;
use crate::store::{Change, Draft, Settlement, Waiting, change};
use crate::{Accepted, Error, Message, MessageId, StateName, Timestamp};

pub(super) type Ack<T> = oneshot::Sender<T>;

pub(super) enum Request {
    Submit(Vec<Entry>, Ack<Vec<Result<Accepted, Error>>>),
    /// With what was found of each message before.
    Change(
        Vec<(Change, Option<Ahead>)>,
        Ack<Vec<Result<Message, Error>>>,
    ),
    Settle(Vec<Settlement>, Ack<Result<(), Error>>),
    Forget {
        keys_before: Timestamp,
        ended_before: Timestamp,
        ack: Ack<Result<bool, Error>>,
    },
    Close(Ack<Result<(), Error>>),
}

/// A new message, as rows.
pub(super) struct Entry {
    pub(super) id: MessageId,
    /// Whether the id is the caller's own: then it may be taken.
    pub(super) is_own_id: bool,
    pub(super) topic: String,
    pub(super) due: Timestamp,
    pub(super) waiting: Waiting,
    pub(super) print: u64,
    /// The row of the line.
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
    pub(super) fn new(draft: Draft, serial: u64, identity: u64) -> Self {
        let print = draft.submission.print();
        let own = draft.submission.id.clone();
        let is_own_id = own.is_some();
        let id = own.unwrap_or_else(MessageId::unique);
        let (due, now) = (draft.due, draft.now);
        let key = draft.submission.idempotency_key.clone();
        let key = key.map(|key| KeyEntry {
            key,
            now,
            used: KeyUse {
                id: id.clone(),
                due,
                print,
            },
        });
        let message = change::accepted(draft, id.clone());
        let waiting = Waiting {
            place: crate::store::Place { at: due, serial },
            version: message.record.version(),
            route: crate::store::Route::of(&message.target),
        };
        let location = Location {
            state: StateName::Scheduled,
            place: waiting.place,
            print,
        };
        let row_key = keys::place(waiting.place);
        let topic_key = keys::of_topic(&message.topic, StateName::Scheduled, waiting.place);
        Self {
            is_own_id,
            due,
            print,
            key,
            row: codec::sealed(&row_key, &message, print, identity),
            location: location.sealed(id.as_str().as_bytes(), identity),
            of_topic: codec::marked(topic_key, identity),
            topic: message.topic,
            waiting,
            id,
        }
    }
}
