use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use laneway_delay::{BusTarget, Callback, Method, Schedule, Submission, Target};
use prost::Message as _;

use super::Invalid;
use super::field::{millis, required};
use crate::proto;

/// What was submitted, apart from its id, its topic and when it is due: the fields of a [`Submission`] that a
/// [`proto::Content`] carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Where it goes.
    pub target: Target,
    /// What is delivered.
    pub payload: Bytes,
    /// What the payload is.
    pub content_type: Option<String>,
    /// What the caller wants to find again with it.
    pub metadata: BTreeMap<String, String>,
    /// The waits between attempts, if not those of the topic.
    pub retry: Option<Schedule>,
}

/// The body of a row, and of a record of the intake. The same parts are the same bytes.
#[must_use]
pub fn body(parts: &Parts) -> Bytes {
    proto::Content::from(parts.clone()).encode_to_vec().into()
}

/// What the body of a row says. The payload is not copied.
///
/// # Errors
/// [`Invalid`] with the field.
pub fn parts(body: Bytes) -> Result<Parts, Invalid> {
    decode(body)?.try_into()
}

pub(super) fn decode(body: Bytes) -> Result<proto::Content, Invalid> {
    proto::Content::decode(body).map_err(|error| Invalid::new("content", error.to_string()))
}

impl From<Submission> for Parts {
    fn from(submission: Submission) -> Self {
        Self {
            target: submission.target,
            payload: submission.payload,
            content_type: submission.content_type,
            metadata: submission.metadata,
            retry: submission.retry,
        }
    }
}

impl From<Parts> for proto::Content {
    fn from(parts: Parts) -> Self {
        let target = match parts.target {
            Target::Callback(callback) => Some(proto::content::Target::Callback(callback.into())),
            Target::Bus(bus) => Some(proto::content::Target::Bus(bus.into())),
            // Refused by the reader, by the name of the field.
            _ => None,
        };
        let retry = parts.retry.map(|schedule| proto::Schedule {
            waits_ms: schedule.waits().iter().copied().map(millis).collect(),
        });
        Self {
            target,
            payload: parts.payload,
            content_type: parts.content_type,
            metadata: parts.metadata,
            retry,
        }
    }
}

impl TryFrom<proto::Content> for Parts {
    type Error = Invalid;

    fn try_from(content: proto::Content) -> Result<Self, Invalid> {
        let target = match required("content.target", content.target)? {
            proto::content::Target::Callback(callback) => Target::Callback(callback.try_into()?),
            proto::content::Target::Bus(bus) => Target::Bus(bus.into()),
        };
        let retry = content.retry.map(|schedule| {
            let waits = schedule.waits_ms.into_iter();
            Schedule::new(waits.map(Duration::from_millis))
        });
        Ok(Self {
            target,
            payload: content.payload,
            content_type: content.content_type,
            metadata: content.metadata,
            retry,
        })
    }
}

impl From<Callback> for proto::Callback {
    fn from(callback: Callback) -> Self {
        let headers = callback.headers.into_iter();
        Self {
            url: callback.url,
            method: callback.method.name().to_owned(),
            headers: headers
                .map(|(name, value)| proto::Header { name, value })
                .collect(),
            timeout_ms: callback.timeout.map(millis),
        }
    }
}

impl TryFrom<proto::Callback> for Callback {
    type Error = Invalid;

    fn try_from(callback: proto::Callback) -> Result<Self, Invalid> {
        let found = Method::ALL
            .into_iter()
            .find(|method| method.name() == callback.method);
        let method = found.ok_or_else(|| {
            let problem = format!("{:?} is not supported", callback.method);
            Invalid::new("content.callback.method", problem)
        })?;
        let headers = callback.headers.into_iter();
        Ok(Self {
            url: callback.url,
            method,
            headers: headers.map(|header| (header.name, header.value)).collect(),
            timeout: callback.timeout_ms.map(Duration::from_millis),
        })
    }
}

impl From<BusTarget> for proto::BusTarget {
    fn from(bus: BusTarget) -> Self {
        Self {
            topic: bus.topic,
            aggregate_id: bus.aggregate_id,
            event_type: bus.event_type,
        }
    }
}

impl From<proto::BusTarget> for BusTarget {
    fn from(bus: proto::BusTarget) -> Self {
        Self {
            topic: bus.topic,
            aggregate_id: bus.aggregate_id,
            event_type: bus.event_type,
        }
    }
}
