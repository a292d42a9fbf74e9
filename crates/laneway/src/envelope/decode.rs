//! Reading an envelope from JSON.
//!
//! By hand rather than derived: a derived reader also takes arrays, cannot say which field a fault
//! is in, and copies what this one borrows.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use jiff::Timestamp;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;
use smol_str::SmolStr;

use super::builder::EnvelopeBuilder;
use super::content_type::ContentType;
use super::error::{Error, Field, Problem};
use super::payload::Payload;
use super::{Envelope, tenant, timestamp};

/// Reads an envelope. `fallback` gives the aggregate id if the envelope has none.
pub(super) fn decode(
    body: &Bytes,
    fallback: impl FnOnce() -> Option<SmolStr>,
) -> Result<Envelope, Error> {
    let fields = read(body)?;
    let aggregate_id = fields.aggregate_id.or_else(fallback);
    let builder = EnvelopeBuilder {
        event_id: Some(required(Field::EventId, fields.event_id)?),
        aggregate_id: required(Field::AggregateId, aggregate_id)?,
        event_type: required(Field::EventType, fields.event_type)?,
        event_version: required(Field::EventVersion, fields.event_version)?,
        timestamp: Some(required(Field::Timestamp, fields.timestamp)?),
        trace_id: fields.trace_id,
        correlation_id: fields.correlation_id,
        tenant_id: fields.tenant_id,
    };
    let payload = match (fields.payload, fields.payload_base64) {
        (None, None) => return Err(Field::Payload.error(Problem::Missing)),
        (Some(_), Some(_)) => return Err(Field::PayloadBase64.error(Problem::SecondPayload)),
        (Some(text), None) => inline(body, text, fields.content_type)?,
        (None, Some(data)) => {
            let content_type = required(Field::ContentType, fields.content_type)?;
            Payload::new(content_type, data.into())
                .map_err(|problem| Field::PayloadBase64.error(problem))?
        }
    };
    builder.payload(payload)
}

fn required<T>(field: Field, value: Option<T>) -> Result<T, Error> {
    value.ok_or_else(|| field.error(Problem::Missing))
}

fn owned(text: &str) -> SmolStr {
    SmolStr::new(text)
}

/// A JSON payload, as a slice of the message it came in.
fn inline(
    body: &Bytes,
    text: &RawValue,
    content_type: Option<ContentType>,
) -> Result<Payload, Error> {
    let content_type = content_type.unwrap_or(ContentType::JSON);
    if !content_type.is_json() {
        let problem = Problem::NotDeclaredJson(content_type.to_string());
        return Err(Field::Payload.error(problem));
    }
    let data = body.slice_ref(text.get().as_bytes());
    Ok(Payload::checked_json(content_type, data))
}

/// The fields as they were found.
#[derive(Default)]
struct Fields<'de> {
    event_id: Option<SmolStr>,
    aggregate_id: Option<SmolStr>,
    event_type: Option<SmolStr>,
    event_version: Option<u64>,
    timestamp: Option<Timestamp>,
    trace_id: Option<SmolStr>,
    correlation_id: Option<SmolStr>,
    tenant_id: Option<SmolStr>,
    content_type: Option<ContentType>,
    payload: Option<&'de RawValue>,
    payload_base64: Option<Vec<u8>>,
}

/// The fields, and where the reader is: serde's errors carry neither field nor kind.
#[derive(Default)]
struct Reader<'de> {
    fields: Fields<'de>,
    seen: u16,
    at: Option<Field>,
    problem: Option<Problem>,
}

fn read(body: &[u8]) -> Result<Fields<'_>, Error> {
    // Checking the whole message once is a fifth faster than leaving it to every string.
    let text = std::str::from_utf8(body).map_err(|error| Error::Malformed(error.to_string()))?;
    let mut reader = Reader::default();
    let mut json = serde_json::Deserializer::from_str(text);
    match (&mut json)
        .deserialize_map(&mut reader)
        .and_then(|()| json.end())
    {
        Ok(()) => Ok(reader.fields),
        Err(error) => Err(reader.explain(&error)),
    }
}

impl<'de> Reader<'de> {
    fn explain(self, error: &serde_json::Error) -> Error {
        match (self.at, self.problem) {
            (Some(field), Some(problem)) => field.error(problem),
            (Some(Field::EventVersion), None) if error.classify() == Category::Data => {
                Field::EventVersion.error(Problem::NotVersion)
            }
            (Some(field), None) if error.classify() == Category::Data => {
                field.error(Problem::WrongType(error.to_string()))
            }
            (Some(field), None) => Error::Malformed(format!("in {field}: {error}")),
            (None, _) => Error::Malformed(error.to_string()),
        }
    }

    fn field<A: MapAccess<'de>>(&mut self, field: Field, map: &mut A) -> Result<(), A::Error> {
        let bit = 1 << field as u16;
        if self.seen & bit != 0 {
            return self.stop(Problem::Twice);
        }
        self.seen |= bit;
        let fields = &mut self.fields;
        match field {
            Field::EventId => fields.event_id = Some(map.next_value_seed(Text(owned))?),
            Field::AggregateId => {
                fields.aggregate_id = map.next_value_seed(Optional(owned))?;
            }
            Field::EventType => fields.event_type = Some(map.next_value_seed(Text(owned))?),
            Field::EventVersion => fields.event_version = Some(map.next_value()?),
            Field::Timestamp => match map.next_value_seed(Text(timestamp::parse))? {
                Ok(timestamp) => fields.timestamp = Some(timestamp),
                Err(problem) => return self.stop(problem),
            },
            Field::TraceId => fields.trace_id = map.next_value_seed(Optional(owned))?,
            Field::CorrelationId => {
                fields.correlation_id = map.next_value_seed(Optional(owned))?;
            }
            Field::TenantId => fields.tenant_id = map.next_value_seed(tenant::Read)?,
            Field::ContentType => {
                match map
                    .next_value_seed(Optional(ContentType::from_text))?
                    .transpose()
                {
                    Ok(content_type) => fields.content_type = content_type,
                    Err(problem) => return self.stop(problem),
                }
            }
            Field::Payload => fields.payload = Some(map.next_value()?),
            Field::PayloadBase64 => {
                match map.next_value_seed(Text(|text: &str| BASE64.decode(text)))? {
                    Ok(data) => fields.payload_base64 = Some(data),
                    Err(error) => return self.stop(Problem::NotBase64(error.to_string())),
                }
            }
        }
        Ok(())
    }

    /// Ends the reading with a problem that serde has no words for.
    fn stop<E: serde::de::Error>(&mut self, problem: Problem) -> Result<(), E> {
        let error = E::custom(&problem);
        self.problem = Some(problem);
        Err(error)
    }
}

impl<'de> Visitor<'de> for &mut Reader<'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the fields of an envelope")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Key(field)) = map.next_key()? {
            self.at = field;
            match field {
                Some(field) => self.field(field, &mut map)?,
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            self.at = None;
        }
        Ok(())
    }
}

/// The name of a member: a field, or one that this version does not know.
struct Key(Option<Field>);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Text(|name: &str| Key(Field::named(name))).deserialize(deserializer)
    }
}

/// Reads a string and hands it to a function, borrowed, whether or not it had escapes.
struct Text<F>(F);

impl<'de, T, F: FnOnce(&str) -> T> DeserializeSeed<'de> for Text<F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<T, F: FnOnce(&str) -> T> Visitor<'_> for Text<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E>(self, text: &str) -> Result<T, E> {
        Ok(self.0(text))
    }
}

/// As [`Text`], but `null` and the empty string are nothing.
struct Optional<F>(F);

impl<'de, T, F: FnOnce(&str) -> T> DeserializeSeed<'de> for Optional<F> {
    type Value = Option<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<T>, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de, T, F: FnOnce(&str) -> T> Visitor<'de> for Optional<F> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or null")
    }

    fn visit_none<E>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<T>, D::Error> {
        Text(|text: &str| (!text.is_empty()).then(|| self.0(text))).deserialize(deserializer)
    }
}
