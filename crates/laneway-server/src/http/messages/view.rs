//! What a client sees of a message.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use laneway_delay::{Accepted, DeathCause, Event, Happening, Message, Schedule, State, Target};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::config::value::show_time;
use crate::http::time::date;

/// What a submission became.
#[derive(Serialize)]
pub(crate) struct AcceptedView {
    pub(crate) id: String,
    pub(crate) due: String,
    /// Whether an earlier submission with the same id or key made it.
    pub(crate) duplicate: bool,
}

impl From<&Accepted> for AcceptedView {
    fn from(accepted: &Accepted) -> Self {
        Self {
            id: accepted.id.to_string(),
            due: date(accepted.due),
            duplicate: !accepted.is_new,
        }
    }
}

/// What a change made of a message of a batch.
#[derive(Serialize)]
pub(crate) struct ChangedView<'a> {
    id: &'a str,
    state: &'static str,
    due: String,
}

impl<'a> From<&'a Message> for ChangedView<'a> {
    fn from(message: &'a Message) -> Self {
        Self {
            id: message.id.as_str(),
            state: message.record.state().name(),
            due: date(message.record.due()),
        }
    }
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
    accepted: String,
    attempts: u32,
    failures: u32,
    target: TargetView<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<Vec<String>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
    payload_bytes: usize,
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
        Self {
            id: message.id.as_str(),
            topic: &message.topic,
            state: record.state().name(),
            due: date(record.due()),
            next_attempt,
            ended,
            cause,
            accepted: date(message.accepted),
            attempts: record.attempts(),
            failures: record.failures(),
            target: TargetView::of(&message.target),
            retry: message.retry.as_ref().map(waits),
            metadata: &message.metadata,
            content_type: message.content_type.as_deref(),
            payload_bytes: message.payload.len(),
            payload: None,
            history: None,
        }
    }
}

fn waits(schedule: &Schedule) -> Vec<String> {
    schedule.waits().iter().copied().map(show_time).collect()
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
                timeout: callback.timeout.map(|time: Duration| show_time(time)),
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
            Happening::Extended { due } => {
                view.what = "extended";
                view.due = Some(date(*due));
            }
            Happening::Failed { attempt, reason } => {
                view.what = "failed";
                view.attempt = Some(*attempt);
                view.reason = Some(reason);
            }
            Happening::Postponed { reason } => {
                view.what = "postponed";
                view.reason = Some(reason);
            }
            Happening::Delivered { attempt } => {
                view.what = "delivered";
                view.attempt = Some(*attempt);
            }
            Happening::Died => view.what = "died",
            Happening::Withdrawn => view.what = "withdrawn",
            Happening::Replayed { of } => {
                view.what = "replayed";
                view.of = Some(of.as_str());
            }
            _ => view.what = "other",
        }
        view
    }
}
