//! What changes make of a message, pure: the same for every store.

use std::sync::Arc;

use bytes::Bytes;

use super::{Claim, Draft, DueKey, Outcome, Route, Scheduled};
use crate::message::{Action, Reason};
use crate::{
    Error, Extend, Failure, HistoryEvent, Message, MessageId, Record, Refusal, State, Target,
    Timestamp,
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

/// The message, later, but not after `most`.
pub(crate) fn extended_until(
    message: Message,
    now: Timestamp,
    extend: Extend,
    most: Timestamp,
) -> Result<Message, Error> {
    let message = extended(message, now, extend)?;
    let due = message.record.due();
    if due > most {
        let problem = format!(
            "the message would be due {} s from now, and {} s are the most here; choose an earlier moment",
            due.since(now).as_secs(),
            most.since(now).as_secs()
        );
        return Err(Error::invalid("due", problem));
    }
    Ok(message)
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
    let due = due.min(Timestamp::LAST_DUE);
    message.record = record.extend(record.version(), now, due)?;
    message.note(now, HistoryEvent::Extended { due });
    Ok(message)
}

pub(crate) fn withdrawn(mut message: Message, now: Timestamp) -> Result<Message, Refusal> {
    message.record = message.record.withdraw(message.record.version(), now)?;
    message.note(now, HistoryEvent::Withdrawn);
    message.payload = Bytes::new();
    Ok(message)
}

/// The message, ended: no attempt follows, whatever became of those that were made.
pub(crate) fn stopped(mut message: Message, now: Timestamp) -> Result<Message, Refusal> {
    message.record = message.record.stop(message.record.version(), now)?;
    let what = if message.record.is_in_doubt() {
        HistoryEvent::Stopped
    } else {
        HistoryEvent::Withdrawn
    };
    message.note(now, what);
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
    message.note(now, HistoryEvent::Replayed { of });
    Ok(message)
}

/// Whether another message may take the place of this one.
pub(crate) fn expect_replaceable(message: &Message) -> Result<(), Refusal> {
    let record = message.record;
    let refusal = |reason| Refusal {
        action: Action::Replace,
        reason,
        version: record.version(),
        state: record.state(),
    };
    match record.state() {
        State::Firing { .. } => Err(refusal(Reason::WrongState)),
        State::Scheduled { .. } if record.is_in_doubt() => Err(refusal(Reason::InDoubt)),
        _ => Ok(()),
    }
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
pub(crate) fn claimed(mut message: Message, waiting: &Scheduled, now: Timestamp) -> Option<Claim> {
    message.record = message.record.claim(waiting.version, now).ok()?;
    Some(Claim {
        due_key: waiting.due_key,
        before: waiting.version,
        message: Arc::new(message),
    })
}

/// What a claim makes of its message. `None`: it is as if it had never been claimed.
pub(crate) fn settled(
    claimed: Message,
    due_key: DueKey,
    now: Timestamp,
    outcome: Outcome,
) -> Result<Option<Message>, Refusal> {
    let mut message = claimed;
    let record = message.record;
    let attempt = record.attempts();
    match outcome {
        Outcome::Released => return Ok(None),
        Outcome::Unknown(reason) => {
            message.record = record.doubt(record.version(), due_key.at)?;
            message.note(now, HistoryEvent::Failed { attempt, reason });
        }
        Outcome::Delivered => {
            message.record = record.deliver(record.version(), now)?;
            message.note(now, HistoryEvent::Delivered { attempt });
            message.payload = Bytes::new();
        }
        Outcome::Failed(undelivered, schedule) => {
            let failure: Failure = undelivered.failure;
            message.record = record.fail(record.version(), now, failure, &schedule)?;
            let reason = undelivered.reason;
            let what = match failure {
                Failure::Postponed(_) | Failure::Unavailable(_) => {
                    HistoryEvent::Postponed { reason }
                }
                _ => HistoryEvent::Failed { attempt, reason },
            };
            message.note(now, what);
            if let State::Dead { .. } = message.record.state() {
                message.note(now, HistoryEvent::Died);
            }
        }
    }
    Ok(Some(message))
}

/// A message as the due index knows it, if it waits.
pub(crate) fn waiting(message: &Message, serial: u64) -> Option<Scheduled> {
    match message.record.state() {
        State::Scheduled { at } => Some(Scheduled {
            due_key: DueKey { at, serial },
            version: message.record.version(),
            route: Route::of(&message.target),
            payload_bytes: payload_bytes(message),
        }),
        _ => None,
    }
}

/// How much of a message its sender chose the size of: payload, metadata and headers. The rest is small.
pub(crate) fn held_bytes(message: &Message) -> usize {
    let headers = match &message.target {
        Target::Callback(callback) => callback.headers.as_slice(),
        Target::Bus(_) => &[],
    };
    let headers = headers.iter().map(|(name, value)| name.len() + value.len());
    let metadata = message.metadata.iter();
    let metadata = metadata.map(|(name, value)| name.len() + value.len());
    message.payload.len() + headers.sum::<usize>() + metadata.sum::<usize>()
}

/// The same, as [`Scheduled`] tells it.
pub(crate) fn payload_bytes(message: &Message) -> u32 {
    u32::try_from(held_bytes(message)).unwrap_or(u32::MAX)
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
