//! `CloudEvents` 1.0, both ways: every envelope can leave as a `CloudEvent`, and `CloudEvents` can come
//! in as envelopes.
//!
//! # Mapping
//!
//! | `CloudEvents` | envelope | when it is missing on the way in |
//! |---|---|---|
//! | `specversion` | always `1.0` | refused |
//! | `id` | `event_id` | refused |
//! | `type` | `event_type` | refused |
//! | `source` | not in the envelope: [`CloudEvent::source`] | refused |
//! | `time` | `timestamp` | the time of reading |
//! | `partitionkey` | `aggregate_id` | `subject`, if that is an aggregate id; else refused |
//! | `subject` | not in the envelope: [`CloudEvent::subject`]; the aggregate id on the way out | none |
//! | `datacontenttype` | `content_type` | `application/json`; in binary mode `application/octet-stream` |
//! | `data`, `data_base64` | `payload` | JSON `null`, or no bytes if the content type is not JSON |
//! | `eventversion` | `event_version` | 1 |
//! | `traceid` | `trace_id` | none |
//! | `correlationid` | `correlation_id` | none |
//! | `tenantid` | `tenant_id` | none |
//! | `dataschema` | not in the envelope: [`CloudEvent::dataschema`] | none |
//! | all others | not in the envelope: [`CloudEvent::extensions`] | |
//!
//! `eventversion` is an integer while it fits the 32 bits that `CloudEvents` gives one, and text above.
//! Binary mode carries all attributes as text, so extensions come back as text.
//!
//! Refused, as the specification asks: other spec versions, attribute names other than `a-z0-9`,
//! attributes that appear twice, integers beyond 32 bits, control characters and noncharacters in
//! text, percent-encoding that is not UTF-8, both `data` and `data_base64`, and text content types
//! whose `data` is not a string.

mod assemble;
mod attribute;
mod binary;
mod error;
mod percent;
mod structured;

use std::collections::BTreeMap;

use bytes::Bytes;
use smol_str::SmolStr;

pub use attribute::Attribute;
pub use binary::Binding;
pub use error::Error;

use super::Envelope;

use super::text;
use crate::headers::{self, Headers};

/// The media type of a `CloudEvent` in structured mode.
pub const MEDIA_TYPE: &str = "application/cloudevents+json";

/// What every `CloudEvents` media type starts with, whatever the format.
const MEDIA_TYPE_PREFIX: &str = "application/cloudevents";

/// An envelope together with the attributes that only a `CloudEvent` has.
///
/// ```
/// use laneway::envelope::Envelope;
/// use laneway::envelope::cloudevents::{Binding, CloudEvent};
///
/// let envelope = Envelope::builder("order:1042", "OrderPlaced").json(&"hello")?;
/// let event = CloudEvent::new(envelope.clone(), "/shop/orders")?;
///
/// let structured = CloudEvent::from_json(event.to_json())?;
/// assert_eq!(structured, event);
///
/// let (headers, body) = event.to_binary(Binding::Kafka)?;
/// assert_eq!(headers.get_str("ce_partitionkey"), Some("order:1042"));
/// assert_eq!(CloudEvent::from_message(&headers, body)?.into_envelope(), envelope);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloudEvent {
    envelope: Envelope,
    source: SmolStr,
    subject: Option<SmolStr>,
    dataschema: Option<SmolStr>,
    extensions: BTreeMap<SmolStr, Attribute>,
}

impl CloudEvent {
    /// Makes a `CloudEvent` of an envelope. `source` is a URI reference that names where events come
    /// from, such as `/shop/orders` or `urn:shop:orders`; the subject is the aggregate id.
    ///
    /// # Errors
    /// If `source` is not a URI reference.
    pub fn new(envelope: Envelope, source: impl AsRef<str>) -> Result<Self, Error> {
        let source = SmolStr::new(source);
        attribute::check_uri("source", &source)?;
        Ok(Self {
            subject: Some(SmolStr::new(envelope.aggregate_id())),
            envelope,
            source,
            dataschema: None,
            extensions: BTreeMap::new(),
        })
    }

    /// Sets the subject.
    ///
    /// # Errors
    /// If it is blank or has control characters.
    pub fn with_subject(mut self, subject: impl AsRef<str>) -> Result<Self, Error> {
        let subject = SmolStr::new(subject);
        text::check(&subject).map_err(|problem| Error::attribute("subject", problem))?;
        self.subject = Some(subject);
        Ok(self)
    }

    /// Sets the address of the schema that the data follows.
    ///
    /// # Errors
    /// If it is not a URI.
    pub fn with_dataschema(mut self, schema: impl AsRef<str>) -> Result<Self, Error> {
        let schema = SmolStr::new(schema);
        attribute::check_uri("dataschema", &schema)?;
        self.dataschema = Some(schema);
        Ok(self)
    }

    /// Sets an extension attribute.
    ///
    /// # Errors
    /// If the name is not made of `a-z0-9` or belongs to an attribute that has its own place, or if
    /// the value has control characters.
    pub fn with_extension(
        mut self,
        name: impl AsRef<str>,
        value: impl Into<Attribute>,
    ) -> Result<Self, Error> {
        let (name, value) = (name.as_ref(), value.into());
        attribute::check_name(name)?;
        if attribute::is_mapped(name) {
            return Err(Error::Reserved(name.to_owned()));
        }
        value.check(name)?;
        self.extensions.insert(SmolStr::new(name), value);
        Ok(self)
    }

    /// Reads structured mode: a body of [`MEDIA_TYPE`].
    ///
    /// # Errors
    /// If it is not a `CloudEvent`, or not one that fits an envelope.
    pub fn from_json(body: impl Into<Bytes>) -> Result<Self, Error> {
        structured::read(&body.into())
    }

    /// Writes structured mode: a body of [`MEDIA_TYPE`].
    #[must_use]
    pub fn to_json(&self) -> Bytes {
        structured::write(self).into()
    }

    /// Reads binary mode: attributes in headers, data in the body. Headers may follow the binding of
    /// HTTP, NATS or Kafka.
    ///
    /// # Errors
    /// If it is not a `CloudEvent`, or not one that fits an envelope.
    pub fn from_binary(headers: &Headers, body: impl Into<Bytes>) -> Result<Self, Error> {
        binary::read(headers, body.into())
    }

    /// Writes binary mode for a binding.
    ///
    /// # Errors
    /// If the extensions do not fit into the limits of [`Headers`].
    pub fn to_binary(&self, binding: Binding) -> Result<(Headers, Bytes), Error> {
        binary::write(self, binding)
    }

    /// Reads either mode: structured if the content type says so, else binary.
    ///
    /// # Errors
    /// If it is not a `CloudEvent`, or not one that fits an envelope.
    pub fn from_message(headers: &Headers, body: impl Into<Bytes>) -> Result<Self, Error> {
        let structured = headers.get(headers::CONTENT_TYPE).is_some_and(|value| {
            value
                .get(..MEDIA_TYPE_PREFIX.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(MEDIA_TYPE_PREFIX.as_bytes()))
        });
        if structured {
            Self::from_json(body)
        } else {
            Self::from_binary(headers, body)
        }
    }

    /// The envelope.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// The envelope, without what only a `CloudEvent` has.
    #[must_use]
    pub fn into_envelope(self) -> Envelope {
        self.envelope
    }

    /// Where the event comes from.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What the event is about, as its source names it.
    #[must_use]
    pub fn subject(&self) -> Option<&str> {
        self.subject.as_deref()
    }

    /// The schema that the data follows.
    #[must_use]
    pub fn dataschema(&self) -> Option<&str> {
        self.dataschema.as_deref()
    }

    /// The attributes that have no place in an envelope, by name.
    pub fn extensions(&self) -> impl Iterator<Item = (&str, &Attribute)> {
        self.extensions
            .iter()
            .map(|(name, value)| (name.as_str(), value))
    }
}
