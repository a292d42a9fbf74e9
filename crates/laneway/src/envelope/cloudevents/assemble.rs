//! A set of attributes and some data become an event, and an event becomes a set of attributes.
//! Both modes meet here, so the mapping is written down once.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use bytes::Bytes;
use smol_str::SmolStr;

use super::super::builder::EnvelopeBuilder;
use super::super::content_type::ContentType;
use super::super::error::{Field, Problem};
use super::super::payload::Payload;
use super::super::{Envelope, text, timestamp};
use super::attribute::{Attribute, check_name, check_uri, is_mapped};
use super::{CloudEvent, Error};

const SPEC_VERSION: &str = "1.0";
const OCTETS: &str = "application/octet-stream";

/// The data as it was found.
pub(super) enum Data {
    Absent,
    /// The JSON text of the member `data`.
    Json(Bytes),
    /// The decoded member `data_base64`.
    Base64(Bytes),
    /// The body of a message in binary mode.
    Body(Bytes),
}

/// Attributes by name, each at most once.
#[derive(Default)]
pub(super) struct Attributes(BTreeMap<SmolStr, Attribute>);

impl Attributes {
    pub(super) fn insert(&mut self, name: &str, value: Attribute) -> Result<(), Error> {
        check_name(name)?;
        value.check(name)?;
        match self.0.entry(SmolStr::new(name)) {
            Entry::Occupied(_) => Err(Error::attribute(name, Problem::Twice)),
            Entry::Vacant(entry) => {
                entry.insert(value);
                Ok(())
            }
        }
    }

    fn text(&mut self, name: &str) -> Result<Option<SmolStr>, Error> {
        match self.0.remove(name) {
            None => Ok(None),
            Some(Attribute::String(text)) => {
                text::check(&text).map_err(|problem| Error::attribute(name, problem))?;
                Ok(Some(SmolStr::new(text)))
            }
            Some(other) => {
                let problem =
                    Problem::WrongType(format!("{} where a string goes", other.to_text()));
                Err(Error::attribute(name, problem))
            }
        }
    }

    fn required_text(&mut self, name: &str) -> Result<SmolStr, Error> {
        self.text(name)?
            .ok_or_else(|| Error::attribute(name, Problem::Missing))
    }

    fn uri(&mut self, name: &str) -> Result<Option<SmolStr>, Error> {
        let uri = self.text(name)?;
        if let Some(uri) = &uri {
            check_uri(name, uri)?;
        }
        Ok(uri)
    }

    fn event_version(&mut self) -> Result<u64, Error> {
        const NAME: &str = "eventversion";
        let version = match self.0.remove(NAME) {
            None => return Ok(1),
            Some(Attribute::Integer(number)) => u64::try_from(number).ok(),
            Some(Attribute::String(text)) => decimal(&text),
            Some(Attribute::Boolean(_)) => None,
        };
        version.ok_or_else(|| Error::attribute(NAME, Problem::NotVersion))
    }

    /// The event. Attributes that nothing else takes are its extensions.
    pub(super) fn into_event(mut self, data: Data) -> Result<CloudEvent, Error> {
        let version = self.required_text("specversion")?;
        if version != SPEC_VERSION {
            return Err(Error::SpecVersion(version.into()));
        }
        let event_id = self.required_text("id")?;
        let source = self
            .uri("source")?
            .ok_or_else(|| Error::attribute("source", Problem::Missing))?;
        let event_type = self.required_text("type")?;
        let timestamp = self
            .text("time")?
            .map(|time| timestamp::parse(&time))
            .transpose()
            .map_err(|problem| Error::attribute("time", problem))?;
        let subject = self.text("subject")?;
        let aggregate_id = self
            .text("partitionkey")?
            .or_else(|| subject.clone())
            .ok_or_else(|| Error::attribute("partitionkey", Problem::Missing))?;
        let content_type = self
            .text("datacontenttype")?
            .map(|text| ContentType::from_text(&text))
            .transpose()
            .map_err(|problem| Error::attribute("datacontenttype", problem))?;
        let dataschema = self.uri("dataschema")?;
        let builder = EnvelopeBuilder {
            event_id: Some(event_id),
            aggregate_id,
            event_type,
            event_version: self.event_version()?,
            timestamp,
            trace_id: self.text("traceid")?,
            correlation_id: self.text("correlationid")?,
            tenant_id: self.text("tenantid")?,
        };
        if let Some(name) = self.0.keys().find(|name| is_mapped(name)) {
            return Err(Error::Reserved(name.to_string()));
        }
        Ok(CloudEvent {
            envelope: builder
                .complete(payload(content_type, data)?)
                .map_err(|(field, problem)| Error::attribute(attribute_of(field), problem))?,
            source,
            subject,
            dataschema,
            extensions: self.0,
        })
    }
}

/// Digits only: no sign, no leading zero, so that every version has one spelling.
fn decimal(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || text.starts_with('0') {
        return None;
    }
    text.parse().ok()
}

fn payload(content_type: Option<ContentType>, data: Data) -> Result<Payload, Error> {
    let is_json = content_type.as_ref().is_none_or(ContentType::is_json);
    let octets = || ContentType::from_text(OCTETS).expect("a constant media type");
    match data {
        Data::Body(body) if body.is_empty() => payload(content_type, Data::Absent),
        Data::Absent if is_json => Ok(Payload::checked_json(
            content_type.unwrap_or(ContentType::JSON),
            Bytes::from_static(b"null"),
        )),
        Data::Absent => read_as(content_type.unwrap_or_else(octets), Bytes::new(), "data"),
        Data::Json(text) if is_json => Ok(Payload::checked_json(
            content_type.unwrap_or(ContentType::JSON),
            text,
        )),
        Data::Json(text) => {
            let text: String = serde_json::from_slice(&text).map_err(|_| {
                let problem = "data of a content type that is not JSON is a string".to_owned();
                Error::attribute("data", Problem::WrongType(problem))
            })?;
            read_as(content_type.unwrap_or_else(octets), text.into(), "data")
        }
        Data::Base64(bytes) => read_as(content_type.unwrap_or_else(octets), bytes, "data_base64"),
        Data::Body(body) => read_as(content_type.unwrap_or_else(octets), body, "data"),
    }
}

fn read_as(content_type: ContentType, bytes: Bytes, name: &str) -> Result<Payload, Error> {
    Payload::new(content_type, bytes).map_err(|problem| Error::attribute(name, problem))
}

/// The attribute that a field of the envelope comes from.
fn attribute_of(field: Field) -> &'static str {
    match field {
        Field::EventId => "id",
        Field::AggregateId => "partitionkey",
        Field::EventType => "type",
        Field::EventVersion => "eventversion",
        Field::Timestamp => "time",
        Field::TraceId => "traceid",
        Field::CorrelationId => "correlationid",
        Field::TenantId => "tenantid",
        Field::ContentType => "datacontenttype",
        Field::Payload => "data",
        Field::PayloadBase64 => "data_base64",
    }
}

/// The attributes of an event in the order in which they are written.
pub(super) fn attributes_of(event: &CloudEvent) -> Vec<(&str, Attribute)> {
    let envelope = event.envelope();
    let mut time = Vec::new();
    timestamp::write(envelope.timestamp(), &mut time);
    let text = |text: &str| Some(Attribute::from(text));
    let mapped = [
        ("specversion", text(SPEC_VERSION)),
        ("id", text(envelope.event_id())),
        ("source", text(event.source())),
        ("type", text(envelope.event_type())),
        ("time", text(&String::from_utf8_lossy(&time))),
        ("subject", event.subject().and_then(text)),
        (
            "datacontenttype",
            text(envelope.payload().content_type().as_str()),
        ),
        ("dataschema", event.dataschema().and_then(text)),
        ("partitionkey", text(envelope.aggregate_id().as_str())),
        ("eventversion", Some(version_attribute(envelope))),
        ("traceid", envelope.trace_id().and_then(text)),
        ("correlationid", envelope.correlation_id().and_then(text)),
        ("tenantid", envelope.tenant_id().and_then(text)),
    ];
    let extensions = event
        .extensions()
        .map(|(name, value)| (name, value.clone()));
    mapped
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .chain(extensions)
        .collect()
}

fn version_attribute(envelope: &Envelope) -> Attribute {
    let version = envelope.event_version();
    i32::try_from(version).map_or_else(|_| version.to_string().into(), Attribute::Integer)
}
