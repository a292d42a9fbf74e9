use bytes::Bytes;
use laneway_cluster::apply::Kept;
use laneway_cluster::owner::Settings;
use laneway_cluster::record::{Cause, Event, HistoryEvent, State};
use laneway_delay::{DeathCause, MessageId, Record, Target, Timestamp, Version};

use super::field::required;
use super::{Invalid, Parts, field};
use crate::proto::{self, history_event::What};

/// Whether a message is shown with its content and history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// For look-ups.
    With,
    /// For lists.
    Without,
}

/// A row as look-ups and lists show it. `now` tells an attempt that is under way from one that gave no answer and waits for the next:
/// the log does not.
///
/// # Errors
/// [`Invalid`] with the field, if the body of the row cannot be read.
pub fn message(
    id: &MessageId,
    kept: &Kept,
    now: Timestamp,
    contents: Contents,
) -> Result<proto::Message, Invalid> {
    let image = &kept.image;
    let open = image.doubts.get(&image.attempts);
    let is_begun = open.is_some() && now + Settings::default().begin_ahead >= image.next;
    let mut message = proto::Message {
        id: id.as_str().to_owned(),
        version: kept.version,
        topic: image.topic.clone(),
        due_ms: image.due.as_millis(),
        next_ms: image.next.as_millis(),
        accepted_ms: image.accepted.as_millis(),
        attempts: image.attempts,
        failures: image.failures,
        in_doubt: image.is_in_doubt(),
        state: name(&image.state, is_begun).into(),
        ended_ms: image.state.ended().map_or(0, Timestamp::as_millis),
        cause: cause(&image.state).into(),
        worker: open.map_or_else(Bytes::new, |doubt| Bytes::copy_from_slice(&doubt.worker.0)),
        ..proto::Message::default()
    };
    if let State::Replayed { to, .. } = &image.state {
        to.as_str().clone_into(&mut message.replayed_as);
    }
    if contents == Contents::With {
        // A message that was delivered or taken back has none left.
        if !image.body.is_empty() {
            message.content = Some(super::content::decode(image.body.clone())?);
        }
        message.history = image.history.iter().map(event).collect();
    }
    Ok(message)
}

/// Whether the message is one that the embedded store would not find: it was purged, or another one was made of it.
#[must_use]
pub fn is_gone(message: &proto::Message) -> bool {
    matches!(
        message.state(),
        proto::State::Purged | proto::State::Replayed | proto::State::Unspecified
    )
}

/// A message as the embedded store would have it. Where that has no word of its own, the nearest is used:
///
/// | in the cluster | here |
/// |---|---|
/// | stopped | withdrawn, in doubt if an attempt may have delivered it |
/// | replayed, purged ([`is_gone`]) | dead (exhausted), withdrawn |
/// | firing since an unknown moment | since the moment at which the attempt was to begin |
/// | content that is not there: the message has ended, or is one of a list | a callback without an address, no payload, no metadata |
///
/// # Errors
/// [`Invalid`] with the field.
pub fn restore(message: proto::Message) -> Result<laneway_delay::Message, Invalid> {
    use laneway_delay::State;
    let id = field::id("message.id", &message.id)?;
    let at = Timestamp::from_millis(message.ended_ms);
    let next = Timestamp::from_millis(message.next_ms);
    let state = match message.state() {
        proto::State::Unspecified => {
            return Err(Invalid::new(
                "message.state",
                "there is none that is known here",
            ));
        }
        proto::State::Scheduled => State::Scheduled { at: next },
        proto::State::Firing => State::Firing { since: next },
        proto::State::Delivered => State::Delivered { at },
        proto::State::Dead | proto::State::Replayed => {
            let cause = match message.cause() {
                proto::Cause::Rejected => DeathCause::Rejected,
                _ => DeathCause::Exhausted,
            };
            State::Dead { at, cause }
        }
        proto::State::Withdrawn | proto::State::Stopped | proto::State::Purged => {
            State::Withdrawn { at }
        }
    };
    let record = Record::restore(
        Version::from_u64(message.version),
        Timestamp::from_millis(message.due_ms),
        message.attempts,
        message.failures,
        state,
    );
    let parts = match message.content {
        Some(content) => Parts::try_from(content).map_err(|invalid| invalid.within("message"))?,
        None => Parts {
            target: Target::callback(""),
            payload: Bytes::new(),
            content_type: None,
            metadata: std::collections::BTreeMap::new(),
            retry: None,
        },
    };
    let mut history = Vec::with_capacity(message.history.len());
    for event in message.history {
        // What a later version tells is left out.
        if event.what.is_some() {
            history.push(told(event)?);
        }
    }
    Ok(laneway_delay::Message {
        id,
        topic: message.topic,
        record: record.in_doubt(message.in_doubt),
        accepted: Timestamp::from_millis(message.accepted_ms),
        payload: parts.payload,
        content_type: parts.content_type,
        target: parts.target,
        retry: parts.retry,
        metadata: parts.metadata,
        history,
    })
}

const fn name(state: &State, is_begun: bool) -> proto::State {
    match state {
        State::Scheduled if is_begun => proto::State::Firing,
        State::Scheduled => proto::State::Scheduled,
        State::Delivered { .. } => proto::State::Delivered,
        State::Dead { .. } => proto::State::Dead,
        State::Withdrawn { .. } => proto::State::Withdrawn,
        State::Stopped { .. } => proto::State::Stopped,
        State::Replayed { .. } => proto::State::Replayed,
        State::Purged { .. } => proto::State::Purged,
        _ => proto::State::Unspecified,
    }
}

const fn cause(state: &State) -> proto::Cause {
    match state {
        State::Dead { cause, .. } => match cause {
            Cause::Exhausted => proto::Cause::Exhausted,
            Cause::Rejected => proto::Cause::Rejected,
        },
        _ => proto::Cause::Unspecified,
    }
}

fn event(event: &Event) -> proto::HistoryEvent {
    let what = match &event.what {
        HistoryEvent::Extended(due) => Some(What::ExtendedToMs(due.as_millis())),
        HistoryEvent::Failed(attempt, reason) => Some(What::Failed(proto::Failed {
            attempt: *attempt,
            reason: reason.clone(),
        })),
        HistoryEvent::Delivered(attempt) => Some(What::Delivered(*attempt)),
        HistoryEvent::Died => Some(What::Died(true)),
        HistoryEvent::Withdrawn => Some(What::Withdrawn(true)),
        HistoryEvent::Stopped => Some(What::Stopped(true)),
        HistoryEvent::Replayed(of) => Some(What::ReplayedFrom(of.as_str().to_owned())),
        _ => None,
    };
    proto::HistoryEvent {
        at_ms: event.at.as_millis(),
        what,
    }
}

fn told(event: proto::HistoryEvent) -> Result<laneway_delay::Event, Invalid> {
    use laneway_delay::HistoryEvent;
    let what = match required("message.history.what", event.what)? {
        What::ExtendedToMs(due) => HistoryEvent::Extended {
            due: Timestamp::from_millis(due),
        },
        What::Failed(failed) => HistoryEvent::Failed {
            attempt: failed.attempt,
            reason: failed.reason,
        },
        What::Delivered(attempt) => HistoryEvent::Delivered { attempt },
        What::Died(_) => HistoryEvent::Died,
        What::Withdrawn(_) => HistoryEvent::Withdrawn,
        What::Stopped(_) => HistoryEvent::Stopped,
        What::ReplayedFrom(of) => HistoryEvent::Replayed {
            of: field::id("message.history.replayed_from", &of)?,
        },
    };
    Ok(laneway_delay::Event {
        at: Timestamp::from_millis(event.at_ms),
        what,
    })
}
