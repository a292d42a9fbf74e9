//! Structured mode: attributes and data in one JSON object.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::super::error::Problem;
use super::assemble::{Attributes, Data, attributes_of};
use super::attribute::Attribute;
use super::{CloudEvent, Error};

const DATA: &str = "data";
const DATA_BASE64: &str = "data_base64";

pub(super) fn write(event: &CloudEvent) -> Vec<u8> {
    let payload = event.envelope().payload();
    let mut out = Vec::with_capacity(512 + payload.data().len());
    for (name, value) in attributes_of(event) {
        start(&mut out, name);
        match value {
            Attribute::Boolean(value) => json(&mut out, &value),
            Attribute::Integer(value) => json(&mut out, &value),
            Attribute::String(value) => json(&mut out, &value),
        }
    }
    if payload.is_json() {
        start(&mut out, DATA);
        out.extend_from_slice(payload.data());
    } else {
        start(&mut out, DATA_BASE64);
        json(&mut out, &BASE64.encode(payload.data()));
    }
    out.push(b'}');
    out
}

/// Starts a member, and the object with the first one. Names need no escaping.
fn start(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(if out.is_empty() { b"{\"" } else { b",\"" });
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}

fn json<T: serde::Serialize>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value).expect("text and numbers can always be written to memory");
}

pub(super) fn read(body: &Bytes) -> Result<CloudEvent, Error> {
    let mut reader = Reader::default();
    let mut json = serde_json::Deserializer::from_slice(body);
    if let Err(error) = (&mut json)
        .deserialize_map(&mut reader)
        .and_then(|()| json.end())
    {
        return Err(reader
            .fault
            .unwrap_or_else(|| Error::Malformed(error.to_string())));
    }
    let data = match (reader.data, reader.data_base64) {
        (Some(_), Some(_)) => return Err(Error::TwoData),
        (Some(text), None) => Data::Json(body.slice_ref(text.get().as_bytes())),
        (None, Some(bytes)) => Data::Base64(bytes.into()),
        (None, None) => Data::Absent,
    };
    reader.attributes.into_event(data)
}

#[derive(Default)]
struct Reader<'de> {
    attributes: Attributes,
    data: Option<&'de RawValue>,
    data_base64: Option<Vec<u8>>,
    /// Why reading stopped, where serde's own error would not say enough.
    fault: Option<Error>,
}

impl<'de> Reader<'de> {
    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        let outcome = match name {
            DATA if self.data.is_some() => Err(Error::attribute(DATA, Problem::Twice)),
            DATA => {
                self.data = Some(map.next_value()?);
                Ok(())
            }
            DATA_BASE64 if self.data_base64.is_some() => {
                Err(Error::attribute(DATA_BASE64, Problem::Twice))
            }
            DATA_BASE64 => self.base64(map.next_value()?),
            _ => self.attribute(name, map.next_value()?),
        };
        outcome.map_err(|fault| {
            let error = A::Error::custom(&fault);
            self.fault = Some(fault);
            error
        })
    }

    fn base64(&mut self, text: Scalar) -> Result<(), Error> {
        let problem = match text {
            Scalar::Null => return Ok(()),
            Scalar::Attribute(Attribute::String(text)) => match BASE64.decode(text) {
                Ok(bytes) => {
                    self.data_base64 = Some(bytes);
                    return Ok(());
                }
                Err(error) => Problem::NotBase64(error.to_string()),
            },
            _ => Problem::WrongType("it is not a string".to_owned()),
        };
        Err(Error::attribute(DATA_BASE64, problem))
    }

    fn attribute(&mut self, name: &str, value: Scalar) -> Result<(), Error> {
        match value {
            Scalar::Null => Ok(()),
            Scalar::Attribute(value) => self.attributes.insert(name, value),
            Scalar::OtherNumber => Err(Error::Integer(name.to_owned())),
        }
    }
}

impl<'de> Visitor<'de> for &mut Reader<'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the attributes of an event")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            self.member(&name, &mut map)?;
        }
        Ok(())
    }
}

/// What a member other than the data may be.
enum Scalar {
    /// The same as leaving the attribute out.
    Null,
    Attribute(Attribute),
    /// A fraction, or more than 32 bits.
    OtherNumber,
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl Visitor<'_> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a whole number, true, false or null as the value of an attribute")
    }

    fn visit_unit<E>(self) -> Result<Scalar, E> {
        Ok(Scalar::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
        Ok(Scalar::Attribute(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
        Ok(i32::try_from(value)
            .map_or(Scalar::OtherNumber, |value| Scalar::Attribute(value.into())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
        Ok(i32::try_from(value)
            .map_or(Scalar::OtherNumber, |value| Scalar::Attribute(value.into())))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Scalar, E> {
        Ok(Scalar::OtherNumber)
    }

    fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
        Ok(Scalar::Attribute(value.into()))
    }
}
