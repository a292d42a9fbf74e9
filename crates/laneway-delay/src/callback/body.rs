//! What a callback carries: the payload, or the payload with what is known of its message.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use super::error::CallError;
use crate::{Firing, Timestamp};

/// The body of callbacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Body {
    /// The payload, byte for byte.
    #[default]
    Payload,
    /// JSON with the id, topic, due time, attempt and metadata of the message beside the payload, so that one signature
    /// covers all.
    Envelope,
}

impl Body {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Payload, Self::Envelope];

    /// Its name in settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Payload => "payload",
            Self::Envelope => "envelope",
        }
    }

    /// The body of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|body| body.name() == name)
    }

    /// The bytes to send, and their content type.
    pub(super) fn of(self, firing: &Firing) -> Result<(Bytes, &str), CallError> {
        let message = &firing.message;
        match self {
            Self::Payload => {
                let content_type = message.content_type.as_deref();
                let content_type = content_type.unwrap_or("application/octet-stream");
                Ok((message.payload.clone(), content_type))
            }
            Self::Envelope => Ok((enveloped(firing)?, "application/json")),
        }
    }
}

#[derive(Serialize)]
struct Envelope<'a> {
    id: &'a str,
    topic: &'a str,
    due: String,
    attempt: u32,
    metadata: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

fn enveloped(firing: &Firing) -> Result<Bytes, CallError> {
    let message = &*firing.message;
    let payload = serde_json::from_slice::<&RawValue>(&message.payload).ok();
    let is_binary = payload.is_none() && !message.payload.is_empty();
    let envelope = Envelope {
        id: message.id.as_str(),
        topic: &message.topic,
        due: date(firing.due()),
        attempt: firing.attempt(),
        metadata: &message.metadata,
        content_type: message.content_type.as_deref(),
        payload,
        payload_base64: is_binary.then(|| STANDARD.encode(&message.payload)),
    };
    let json = serde_json::to_vec(&envelope);
    json.map(Bytes::from)
        .map_err(|error| CallError::Invalid(error.to_string()))
}

/// RFC 3339, always with milliseconds.
fn date(moment: Timestamp) -> String {
    let millis = i64::try_from(moment.as_millis()).unwrap_or(i64::MAX);
    match jiff::Timestamp::from_millisecond(millis) {
        Ok(moment) => format!("{moment:.3}"),
        Err(_) => millis.to_string(),
    }
}
