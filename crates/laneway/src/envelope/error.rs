//! Why an envelope is refused.

use std::fmt;

use thiserror::Error;

/// Why an envelope is refused: where, what is wrong, and what to do about it.
///
/// The same error comes from building, encoding and decoding, so that a message that a publisher
/// may not send reads the same as one that a subscriber may not accept.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not one JSON object.
    #[error("envelope is not one JSON object in UTF-8: {0}")]
    Malformed(String),
    /// One field breaks the rules.
    #[error("{field} {problem}")]
    Field {
        /// The field, by its name on the wire.
        field: Field,
        /// What is wrong with it.
        problem: Problem,
    },
}

impl Error {
    /// The field that is at fault, if it is one field.
    #[must_use]
    pub fn field(&self) -> Option<Field> {
        match self {
            Self::Field { field, .. } => Some(*field),
            Self::Malformed(_) => None,
        }
    }
}

/// A field of the envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Field {
    /// `event_id`
    EventId,
    /// `aggregate_id`
    AggregateId,
    /// `event_type`
    EventType,
    /// `event_version`
    EventVersion,
    /// `timestamp`
    Timestamp,
    /// `trace_id`
    TraceId,
    /// `correlation_id`
    CorrelationId,
    /// `tenant_id`
    TenantId,
    /// `content_type`
    ContentType,
    /// `payload`
    Payload,
    /// `payload_base64`
    PayloadBase64,
}

impl Field {
    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::EventId => "event_id",
            Self::AggregateId => "aggregate_id",
            Self::EventType => "event_type",
            Self::EventVersion => "event_version",
            Self::Timestamp => "timestamp",
            Self::TraceId => "trace_id",
            Self::CorrelationId => "correlation_id",
            Self::TenantId => "tenant_id",
            Self::ContentType => "content_type",
            Self::Payload => "payload",
            Self::PayloadBase64 => "payload_base64",
        }
    }

    /// The field of this name on the wire.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "event_id" => Self::EventId,
            "aggregate_id" => Self::AggregateId,
            "event_type" => Self::EventType,
            "event_version" => Self::EventVersion,
            "timestamp" => Self::Timestamp,
            "trace_id" => Self::TraceId,
            "correlation_id" => Self::CorrelationId,
            "tenant_id" => Self::TenantId,
            "content_type" => Self::ContentType,
            "payload" => Self::Payload,
            "payload_base64" => Self::PayloadBase64,
            _ => return None,
        })
    }

    /// This field's error.
    pub(super) fn error(self, problem: Problem) -> Error {
        Error::Field {
            field: self,
            problem,
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is wrong with a field. Reads as the rest of a sentence that starts with the field's name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Problem {
    /// It is required and not there.
    #[error("is missing: it is required")]
    Missing,
    /// It is there, and holds nothing.
    #[error("is empty: give it at least one visible character")]
    Blank,
    /// It is longer than the limit.
    #[error("is {length} bytes long: shorten it to {limit} or less")]
    TooLong {
        /// How long it is.
        length: usize,
        /// How long it may be.
        limit: usize,
    },
    /// It has a character that an aggregate id may not have.
    #[error("has {character:?} at byte {at}: use only A-Z a-z 0-9 : _ - . /")]
    NotIdCharacter {
        /// The character.
        character: char,
        /// Where it starts.
        at: usize,
    },
    /// It has a character that no text field may have.
    #[error("has {character:?} at byte {at}: remove control characters and noncharacters")]
    NotTextCharacter {
        /// The character.
        character: char,
        /// Where it starts.
        at: usize,
    },
    /// It is not UTF-8.
    #[error("is not UTF-8: encode it as UTF-8")]
    NotUtf8,
    /// It appears more than once.
    #[error("appears twice: keep one, readers disagree about which one counts")]
    Twice,
    /// The version is outside 1..=`i64::MAX`.
    #[error("is not a version: use a whole number from 1 to 9223372036854775807")]
    NotVersion,
    /// The timestamp is not RFC 3339.
    #[error(
        "is not an RFC 3339 time of the years 0000 to 9999: write it like 2026-11-15T09:30:00Z"
    )]
    NotRfc3339,
    /// The value has another JSON type than the field.
    #[error("has the wrong type: {0}")]
    WrongType(String),
    /// The content type is not `type/subtype`.
    #[error("is not a media type: write it like application/octet-stream")]
    NotMediaType,
    /// A JSON payload is not JSON.
    #[error("is not JSON: {0}; send the bytes under a content type that is not JSON")]
    NotJson(String),
    /// The content type says that the payload is not JSON, but it travels as JSON.
    #[error("is JSON but content_type is {0:?}: use payload_base64, or a JSON content type")]
    NotDeclaredJson(String),
    /// A payload was asked for as JSON and is something else.
    #[error("is {0:?}, not JSON: read its bytes instead")]
    NotReadableAsJson(String),
    /// The base64 is broken.
    #[error("is not standard base64 with padding: {0}")]
    NotBase64(String),
    /// There are two payloads.
    #[error("stands next to payload: keep the one that content_type describes")]
    SecondPayload,
    /// A value could not be turned into JSON.
    #[error("cannot be written as JSON: {0}")]
    Unwritable(String),
    /// The payload is JSON of another shape than the asked type.
    #[error("does not fit the type it is read as: {0}")]
    Unreadable(String),
}
