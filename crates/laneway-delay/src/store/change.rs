//! What changes make of a message, pure: the same for every store.

use std::sync::Arc;

use bytes::Bytes;

use super::{Claim, Draft, Outcome, Place, Route, Waiting};
use crate::message::{Action, Reason};
use crate::{
    Error, Extend, Failure, Happening, Message, MessageId, Record, Refusal, State, Timestamp,
};

/// The message that a submission becomes.
pub(crate) fn accepted(draft: Draft, id: MessageId) -> Message {
    let submission = draft.submission;
    Message {
        id,
        topic: submission.topic,
        record: Record::scheduled(draft.due),
        accepted: draft.now,
        payload: submission.payload,
        content_type: submission.content_type,
        target: submission.target,
        retry: submission.retry,
        metadata: submission.metadata,
        history: Vec::new(),
    }
}

pub(crate) fn extended(
    mut message: Message,
    now: Timestamp,
    extend: Extend,
) -> Result<Message, Refusal> {
    let record = message.record;
    let due = match extend {
        Extend::By(delay) => record.due() + delay,
        Extend::To(due) => due,
    };
    message.record = record.extend(record.version(), now, due)?;
    message.note(now, Happening::Extended { due });
    Ok(message)
}

pub(crate) fn withdrawn(mut message: Message, now: Timestamp) -> Result<Message, Refusal> {
    message.record = message.record.withdraw(message.record.version(), now)?;
    message.note(now, Happening::Withdrawn);
    message.payload = Bytes::new();
    Ok(message)
}

/// A new message of a dead one.
pub(crate) fn replayed(dead: Message, now: Timestamp) -> Result<Message, Refusal> {
    expect_ended(&dead, Action::Replay, |state| {
        matches!(state, State::Dead { .. })
    })?;
    let of = dead.id.clone();
    let mut message = Message {
        id: MessageId::unique(),
        record: Record::scheduled(now),
        accepted: now,
        history: Vec::new(),
        ..dead
    };
    message.note(now, Happening::Replayed { of });
    Ok(message)
}

pub(crate) fn expect_purgeable(message: &Message) -> Result<(), Refusal> {
    expect_ended(message, Action::Purge, State::is_final)
}

fn expect_ended(
    message: &Message,
    action: Action,
    is_so: impl Fn(State) -> bool,
) -> Result<(), Refusal> {
    let (state, version) = (message.record.state(), message.record.version());
    if is_so(state) {
        return Ok(());
    }
    Err(Refusal {
        action,
        reason: Reason::WrongState,
        version,
        state,
    })
}

/// The claim of a message, if it is still as it was when it took its place.
pub(crate) fn claimed(mut message: Message, waiting: &Waiting, now: Timestamp) -> Option<Claim> {
    message.record = message.record.claim(waiting.version, now).ok()?;
    Some(Claim {
        place: waiting.place,
        before: waiting.version,
        message: Arc::new(message),
    })
}

/// What a claim makes of its message. `None`: it is as if it had never been claimed.
pub(crate) fn settled(
    claimed: Message,
    now: Timestamp,
    outcome: Outcome,
) -> Result<Option<Message>, Refusal> {
    let mut message = claimed;
    let record = message.record;
    let attempt = record.attempts();
    match outcome {
        Outcome::Released => return Ok(None),
        Outcome::Delivered => {
            message.record = record.deliver(record.version(), now)?;
            message.note(now, Happening::Delivered { attempt });
            message.payload = Bytes::new();
        }
        Outcome::Failed(undelivered, schedule) => {
            let failure: Failure = undelivered.failure;
            message.record = record.fail(record.version(), now, failure, &schedule)?;
            let reason = undelivered.reason;
            let what = match failure {
                Failure::Postponed(_) => Happening::Postponed { reason },
                _ => Happening::Failed { attempt, reason },
            };
            message.note(now, what);
            if let State::Dead { .. } = message.record.state() {
                message.note(now, Happening::Died);
            }
        }
    }
    Ok(Some(message))
}

/// How a message stands in line, if it waits.
pub(crate) fn waiting(message: &Message, serial: u64) -> Option<Waiting> {
    match message.record.state() {
        State::Scheduled { at } => Some(Waiting {
            place: Place { at, serial },
            version: message.record.version(),
            route: Route::of(&message.target),
        }),
        _ => None,
    }
}

/// When a message ended, if it has.
pub(crate) fn ended(message: &Message) -> Option<Timestamp> {
    match message.record.state() {
        State::Delivered { at } | State::Dead { at, .. } | State::Withdrawn { at } => Some(at),
        State::Scheduled { .. } | State::Firing { .. } => None,
    }
}

/// What the submission of an id that is taken means.
pub(crate) fn same_or_taken(same: bool, id: &MessageId) -> Result<(), Error> {
    if same {
        Ok(())
    } else {
        Err(Error::IdTaken(id.clone()))
    }
}
