//! The envelope: what a domain event is wrapped in, and how it looks on the wire.
//!
//! # Wire format
//!
//! One JSON object in UTF-8, compatible both ways with the envelopes of jxt-core:
//!
//! | field | | |
//! |---|---|---|
//! | `event_id` | required | any text; a new UUID of version 7 unless given |
//! | `aggregate_id` | required | 1 to 256 bytes of `A-Za-z0-9:_-./` |
//! | `event_type` | required | text |
//! | `event_version` | required | 1 to 2⁶³ − 1 |
//! | `timestamp` | required | RFC 3339, any offset; written in UTC |
//! | `trace_id`, `correlation_id` | optional | text; left out when there is none |
//! | `tenant_id` | optional | text or a whole number, written as a number where it is one |
//! | `content_type` | optional | left out when it is `application/json` |
//! | `payload` | this | any JSON value, kept byte for byte |
//! | `payload_base64` | or this | bytes that are not JSON, and then `content_type` is required |
//!
//! Text is 1 to 1024 bytes, not blank, and free of control characters and noncharacters, so that it
//! fits into headers and into `CloudEvents`.
//!
//! # What a decoder meets in the wild
//!
//! | input | decision |
//! |---|---|
//! | unknown fields | ignored: newer writers may add some |
//! | a known field twice | refused: readers disagree about which one counts |
//! | names in other case | unknown fields |
//! | `null` or `""` in an optional field | the same as leaving it out |
//! | an array, a string, several values, a byte order mark | refused |
//! | invalid UTF-8, also inside the payload | refused |
//! | lone surrogates (`\ud800`) | refused in fields, carried unread in the payload |
//! | a payload of any depth, numbers of any size | carried unread; [`Envelope::json`] refuses what does not fit its type, and nesting beyond 128 levels |
//! | `event_version` as `1.0`, `"1"` or beyond 2⁶³ − 1 | refused |
//! | a JSON content type with `payload_base64` | accepted if the bytes are JSON, written as `payload` |
//!
//! Two things that jxt-core does not read: a binary payload, since it requires the field `payload`, and
//! numbers beyond a 64-bit float anywhere in the payload.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `builder` | building an [`Envelope`] |
//! | `encode`, `decode` | writing and reading it as JSON |
//! | [`cloudevents`] | the same as `CloudEvents`, both ways |
//! | `extract` | the aggregate id of a message that may come from anywhere |
//! | `aggregate_id`, `content_type`, `payload`, `tenant`, `text`, `timestamp` | its fields: what they may hold, and how they are written |
//! | `error` | why an envelope is refused |

mod aggregate_id;
mod builder;
pub mod cloudevents;
mod content_type;
mod decode;
mod encode;
mod error;
mod extract;
mod payload;
mod tenant;
mod text;
mod timestamp;

use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;
use smol_str::SmolStr;

pub use aggregate_id::AggregateId;
pub use builder::EnvelopeBuilder;
pub use content_type::ContentType;
pub use error::{Error, Field, Problem};
pub use extract::{Carrier, Extraction, Origin, Rejected, extract_aggregate_id};
pub use payload::Payload;

/// A domain event with everything needed to route, order, trace and read it.
///
/// An envelope is valid by construction: it comes from the builder or from decoding, and both check
/// every field. Encoding therefore cannot fail. Cloning copies no payload.
///
/// ```
/// use laneway::envelope::Envelope;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, PartialEq, Debug)]
/// struct OrderPlaced {
///     total_cents: u64,
/// }
///
/// let placed = OrderPlaced { total_cents: 4_999 };
/// let envelope = Envelope::builder("order:1042", "OrderPlaced")
///     .tenant_id("acme")
///     .json(&placed)?;
///
/// let received = Envelope::decode(envelope.encode())?;
/// assert_eq!(received, envelope);
/// assert_eq!(received.json::<OrderPlaced>()?, placed);
/// # Ok::<(), laneway::envelope::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    event_id: SmolStr,
    aggregate_id: AggregateId,
    event_type: SmolStr,
    event_version: u64,
    timestamp: Timestamp,
    trace_id: Option<SmolStr>,
    correlation_id: Option<SmolStr>,
    tenant_id: Option<SmolStr>,
    payload: Payload,
}

impl Envelope {
    /// Starts an envelope for an event of this aggregate. A payload completes it:
    /// [`json`](EnvelopeBuilder::json), [`bytes`](EnvelopeBuilder::bytes) or
    /// [`payload`](EnvelopeBuilder::payload).
    pub fn builder(aggregate_id: impl AsRef<str>, event_type: impl AsRef<str>) -> EnvelopeBuilder {
        EnvelopeBuilder::new(SmolStr::new(aggregate_id), SmolStr::new(event_type))
    }

    /// Reads an envelope from the wire. The payload is a slice of `body`: nothing of it is copied.
    ///
    /// # Errors
    /// If the bytes are not an envelope; the error names the field and what to do.
    pub fn decode(body: impl Into<Bytes>) -> Result<Self, Error> {
        decode::decode(&body.into(), || None)
    }

    /// As [`Envelope::decode`], but an envelope without an aggregate id takes it from what carried
    /// the message: the first valid one of header, record key and subject.
    ///
    /// # Errors
    /// As for [`Envelope::decode`]; `aggregate_id` is missing only if the carrier has none either.
    pub fn decode_from(body: impl Into<Bytes>, carrier: &Carrier<'_>) -> Result<Self, Error> {
        decode::decode(&body.into(), || {
            let (id, _) = extract_aggregate_id(None, carrier).found?;
            Some(id.into_text())
        })
    }

    /// The envelope as it travels.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        encode::encode(self).into()
    }

    /// The id of the event.
    #[must_use]
    pub fn event_id(&self) -> &str {
        &self.event_id
    }

    /// The aggregate that the event belongs to: its key for order and routing.
    #[must_use]
    pub fn aggregate_id(&self) -> &AggregateId {
        &self.aggregate_id
    }

    /// What happened.
    #[must_use]
    pub fn event_type(&self) -> &str {
        &self.event_type
    }

    /// The version of the event's shape, at least 1.
    #[must_use]
    pub fn event_version(&self) -> u64 {
        self.event_version
    }

    /// When it happened.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    /// The id of the trace that the event belongs to.
    #[must_use]
    pub fn trace_id(&self) -> Option<&str> {
        self.trace_id.as_deref()
    }

    /// The id that events of one business transaction share.
    #[must_use]
    pub fn correlation_id(&self) -> Option<&str> {
        self.correlation_id.as_deref()
    }

    /// The tenant that the event belongs to.
    #[must_use]
    pub fn tenant_id(&self) -> Option<&str> {
        self.tenant_id.as_deref()
    }

    /// What the event carries.
    #[must_use]
    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    /// Reads a JSON payload as a `T`, which may borrow from it.
    ///
    /// # Errors
    /// If the payload is not JSON, or JSON of another shape.
    pub fn json<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Error> {
        self.payload.read_json()
    }
}
