//! What a client sees of a message.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use laneway_delay::{Accepted, DeathCause, Event, HistoryEvent, Message, Schedule, State, Target};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::http::time::date;

/// What a submission became.
#[derive(Serialize)]
pub(crate) struct AcceptedView {
    pub(crate) id: String,
    pub(crate) due: String,
    /// Whether an earlier submission with the same id or key made it.
    pub(crate) duplicate: bool,
    /// The state of a message that an earlier submission made: one that has ended does not fire again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<&'static str>,
}

impl From<&Accepted> for AcceptedView {
    fn from(accepted: &Accepted) -> Self {
        Self {
            id: accepted.id.to_string(),
            due: date(accepted.due),
            duplicate: !accepted.is_new,
            state: match accepted.state {
                _ if accepted.is_new => None,
                Some(state) => Some(state.name()),
                None => Some("forgotten"),
            },
        }
    }
}

/// What a change made of a message of a batch.
#[derive(Serialize)]
pub(crate) struct ChangedView<'a> {
    id: &'a str,
    state: &'static str,
    due: String,
    #[serde(skip_serializing_if = "is_false")]
    may_have_been_delivered: bool,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands out references"
)]
fn is_false(value: &bool) -> bool {
    !value
}

impl<'a> From<&'a Message> for ChangedView<'a> {
    fn from(message: &'a Message) -> Self {
        Self {
            id: message.id.as_str(),
            state: message.record.state().name(),
            due: date(message.record.due()),
            may_have_been_delivered: may_have_been_delivered(message),
        }
    }
}

/// Whether an attempt may have delivered a message that does not count as delivered.
fn may_have_been_delivered(message: &Message) -> bool {
    message.record.is_in_doubt() && !matches!(message.record.state(), State::Delivered { .. })
}

/// A message. Lists leave out the payload and the history.
#[derive(Serialize)]
pub(crate) struct MessageView<'a> {
    id: &'a str,
    topic: &'a str,
    state: &'static str,
    due: String,
    /// When the next attempt is, if that is not when it is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_attempt: Option<String>,
    /// When it was delivered, withdrawn or given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
    /// Why it was given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'static str>,
    /// Whether an attempt gave no answer.
    #[serde(skip_serializing_if = "is_false")]
    may_have_been_delivered: bool,
    accepted: String,
    attempts: u32,
    failures: u32,
    /// Why the last attempt failed, or was put off.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<&'a str>,
    /// Lists over many machines leave it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<TargetView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<Vec<String>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_bytes: Option<usize>,
    #[serde(flatten)]
    payload: Option<PayloadView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<Vec<EventView<'a>>>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum TargetView<'a> {
    Callback {
        url: &'a str,
        method: &'static str,
        /// Their values may be secrets of the receiver.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        header_names: Vec<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        timeout: Option<String>,
    },
    Bus {
        topic: &'a str,
        aggregate_id: &'a str,
        event_type: &'a str,
    },
    /// A kind of target that this server does not know how to show.
    Other,
}

#[derive(Serialize)]
enum PayloadView<'a> {
    #[serde(rename = "payload")]
    Json(&'a RawValue),
    #[serde(rename = "payload_base64")]
    Bytes(String),
}

#[derive(Serialize)]
struct EventView<'a> {
    at: String,
    what: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    of: Option<&'a str>,
}

impl<'a> MessageView<'a> {
    /// All of it.
    pub(crate) fn whole(message: &'a Message) -> Self {
        Self {
            payload: PayloadView::of(message),
            history: Some(message.history.iter().map(EventView::of).collect()),
            ..Self::brief(message)
        }
    }

    /// For lists.
    pub(crate) fn brief(message: &'a Message) -> Self {
        let record = &message.record;
        let (mut next_attempt, mut ended, mut cause) = (None, None, None);
        match record.state() {
            State::Scheduled { at } if at != record.due() => next_attempt = Some(date(at)),
            State::Delivered { at } | State::Withdrawn { at } => ended = Some(date(at)),
            State::Dead { at, cause: why } => {
                ended = Some(date(at));
                cause = Some(match why {
                    DeathCause::Rejected => "rejected",
                    _ => "exhausted",
                });
            }
            _ => {}
        }
        let is_known = !matches!(&message.target, Target::Callback(it) if it.url.is_empty());
        Self {
            id: message.id.as_str(),
            topic: &message.topic,
            state: record.state().name(),
            due: date(record.due()),
            next_attempt,
            ended,
            cause,
            may_have_been_delivered: may_have_been_delivered(message),
            accepted: date(message.accepted),
            attempts: record.attempts(),
            failures: record.failures(),
            last_error: last_error(message),
            target: is_known.then(|| TargetView::of(&message.target)),
            retry: message.retry.as_ref().map(waits),
            metadata: &message.metadata,
            content_type: message.content_type.as_deref(),
            payload_bytes: is_known.then(|| message.payload.len()),
            payload: None,
            history: None,
        }
    }
}

fn last_error(message: &Message) -> Option<&str> {
    let mut events = message.history.iter().rev();
    events.find_map(|event| match &event.what {
        HistoryEvent::Failed { reason, .. } | HistoryEvent::Postponed { reason } => {
            Some(reason.as_str())
        }
        _ => None,
    })
}

fn waits(schedule: &Schedule) -> Vec<String> {
    schedule
        .waits()
        .iter()
        .copied()
        .map(laneway_units::format_duration)
        .collect()
}

impl<'a> TargetView<'a> {
    fn of(target: &'a Target) -> Self {
        match target {
            Target::Callback(callback) => Self::Callback {
                url: &callback.url,
                method: callback.method.name(),
                header_names: callback
                    .headers
                    .iter()
                    .map(|(name, _)| name.as_str())
                    .collect(),
                timeout: callback
                    .timeout
                    .map(|time: Duration| laneway_units::format_duration(time)),
            },
            Target::Bus(bus) => Self::Bus {
                topic: &bus.topic,
                aggregate_id: &bus.aggregate_id,
                event_type: &bus.event_type,
            },
            _ => Self::Other,
        }
    }
}

impl<'a> PayloadView<'a> {
    fn of(message: &'a Message) -> Option<Self> {
        if message.payload.is_empty() {
            return None;
        }
        let json = serde_json::from_slice::<&RawValue>(&message.payload).ok();
        Some(match json {
            Some(json) => Self::Json(json),
            None => Self::Bytes(STANDARD.encode(&message.payload)),
        })
    }
}

impl<'a> EventView<'a> {
    fn of(event: &'a Event) -> Self {
        let mut view = Self {
            at: date(event.at),
            what: "",
            attempt: None,
            reason: None,
            due: None,
            of: None,
        };
        match &event.what {
            HistoryEvent::Extended { due } => {
                view.what = "extended";
                view.due = Some(date(*due));
            }
            HistoryEvent::Failed { attempt, reason } => {
                view.what = "failed";
                view.attempt = Some(*attempt);
                view.reason = Some(reason);
            }
            HistoryEvent::Postponed { reason } => {
                view.what = "postponed";
                view.reason = Some(reason);
            }
            HistoryEvent::Delivered { attempt } => {
                view.what = "delivered";
                view.attempt = Some(*attempt);
            }
            HistoryEvent::Died => view.what = "died",
            HistoryEvent::Withdrawn => view.what = "withdrawn",
            HistoryEvent::Stopped => view.what = "stopped",
            HistoryEvent::Replayed { of } => {
                view.what = "replayed";
                view.of = Some(of.as_str());
            }
            _ => view.what = "other",
        }
        view
    }
}
