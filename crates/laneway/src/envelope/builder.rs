//! Building an envelope.

use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use smol_str::SmolStr;
use uuid::Uuid;

use super::aggregate_id::AggregateId;
use super::content_type::ContentType;
use super::error::{Error, Field, Problem};
use super::payload::Payload;
use super::{Envelope, text, timestamp};

/// Collects what an [`Envelope`] needs; a payload completes it. See [`Envelope::builder`].
///
/// Nothing is checked before the payload is given, so one `?` covers everything.
#[derive(Debug, Clone)]
#[must_use = "a payload completes the envelope: call json, bytes or payload"]
pub struct EnvelopeBuilder {
    pub(super) event_id: Option<SmolStr>,
    pub(super) aggregate_id: SmolStr,
    pub(super) event_type: SmolStr,
    pub(super) event_version: u64,
    pub(super) timestamp: Option<Timestamp>,
    pub(super) trace_id: Option<SmolStr>,
    pub(super) correlation_id: Option<SmolStr>,
    pub(super) tenant_id: Option<SmolStr>,
}

impl EnvelopeBuilder {
    pub(super) fn new(aggregate_id: SmolStr, event_type: SmolStr) -> Self {
        Self {
            event_id: None,
            aggregate_id,
            event_type,
            event_version: 1,
            timestamp: None,
            trace_id: None,
            correlation_id: None,
            tenant_id: None,
        }
    }

    /// The id of the event. Unless given, it is a new UUID of version 7.
    pub fn event_id(mut self, id: impl AsRef<str>) -> Self {
        self.event_id = Some(SmolStr::new(id));
        self
    }

    /// The version of the event's shape. Unless given, it is 1.
    pub fn event_version(mut self, version: u64) -> Self {
        self.event_version = version;
        self
    }

    /// When it happened. Unless given, it is now.
    pub fn timestamp(mut self, timestamp: Timestamp) -> Self {
        self.timestamp = Some(timestamp);
        self
    }

    /// The id of the trace that the event belongs to.
    pub fn trace_id(mut self, id: impl AsRef<str>) -> Self {
        self.trace_id = Some(SmolStr::new(id));
        self
    }

    /// The id that events of one business transaction share.
    pub fn correlation_id(mut self, id: impl AsRef<str>) -> Self {
        self.correlation_id = Some(SmolStr::new(id));
        self
    }

    /// The tenant that the event belongs to.
    pub fn tenant_id(mut self, id: impl AsRef<str>) -> Self {
        self.tenant_id = Some(SmolStr::new(id));
        self
    }

    /// Completes the envelope with `value`, written as JSON.
    ///
    /// # Errors
    /// If `value` cannot be written as JSON, or a field breaks the rules.
    pub fn json<T: Serialize + ?Sized>(self, value: &T) -> Result<Envelope, Error> {
        self.payload(Payload::json(value)?)
    }

    /// Completes the envelope with bytes of any content type, such as
    /// `application/octet-stream`. Bytes of a JSON content type must be JSON, and travel inline.
    ///
    /// # Errors
    /// If the content type is not one, the bytes are not what it says, or a field breaks the rules.
    pub fn bytes(
        self,
        content_type: impl AsRef<str>,
        data: impl Into<Bytes>,
    ) -> Result<Envelope, Error> {
        let payload = Payload::bytes(ContentType::new(content_type)?, data)?;
        self.payload(payload)
    }

    /// Completes the envelope with a payload that exists already.
    ///
    /// # Errors
    /// If a field breaks the rules.
    pub fn payload(self, payload: Payload) -> Result<Envelope, Error> {
        self.complete(payload)
            .map_err(|(field, problem)| field.error(problem))
    }

    /// The one gate that every envelope passes, built or decoded.
    pub(super) fn complete(self, payload: Payload) -> Result<Envelope, (Field, Problem)> {
        let event_id = match self.event_id {
            None => new_event_id(),
            Some(id) => checked(Field::EventId, id)?,
        };
        let event_version = checked_version(self.event_version)
            .map_err(|problem| (Field::EventVersion, problem))?;
        let timestamp = self.timestamp.unwrap_or_else(Timestamp::now);
        timestamp::check(timestamp).map_err(|problem| (Field::Timestamp, problem))?;
        Ok(Envelope {
            event_id,
            aggregate_id: AggregateId::from_text(self.aggregate_id)
                .map_err(|problem| (Field::AggregateId, problem))?,
            event_type: checked(Field::EventType, self.event_type)?,
            event_version,
            timestamp,
            trace_id: optional(Field::TraceId, self.trace_id)?,
            correlation_id: optional(Field::CorrelationId, self.correlation_id)?,
            tenant_id: optional(Field::TenantId, self.tenant_id)?,
            payload,
        })
    }
}

fn checked(field: Field, text: SmolStr) -> Result<SmolStr, (Field, Problem)> {
    match text::check(&text) {
        Ok(()) => Ok(text),
        Err(problem) => Err((field, problem)),
    }
}

fn optional(field: Field, text: Option<SmolStr>) -> Result<Option<SmolStr>, (Field, Problem)> {
    text.map(|text| checked(field, text)).transpose()
}

/// Versions stay within a signed 64-bit number, which is what readers in other languages hold them in.
fn checked_version(version: u64) -> Result<u64, Problem> {
    if version == 0 || i64::try_from(version).is_err() {
        return Err(Problem::NotVersion);
    }
    Ok(version)
}

fn new_event_id() -> SmolStr {
    let mut buffer = Uuid::encode_buffer();
    SmolStr::new(Uuid::now_v7().hyphenated().encode_lower(&mut buffer))
}
