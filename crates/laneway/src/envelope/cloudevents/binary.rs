//! Binary mode: attributes in headers, data as the body.

use std::borrow::Cow;

use bytes::Bytes;

use super::super::error::Problem;
use super::assemble::{Attributes, Data, attributes_of};
use super::attribute::Attribute;
use super::{CloudEvent, Error, percent};
use crate::headers::{self, Headers};

const DATA_CONTENT_TYPE: &str = "datacontenttype";

/// How a protocol spells the headers of binary mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    /// `ce-id`, percent-encoded; the content type in `content-type`.
    Http,
    /// `ce-id`, percent-encoded; the content type in `ce-datacontenttype`.
    Nats,
    /// `ce_id`, in UTF-8; the content type in `content-type`.
    Kafka,
}

pub(super) fn write(event: &CloudEvent, binding: Binding) -> Result<(Headers, Bytes), Error> {
    let mut headers = Headers::new();
    for (name, value) in attributes_of(event) {
        let text = value.to_text();
        let (name, value) = match binding {
            Binding::Http | Binding::Kafka if name == DATA_CONTENT_TYPE => {
                (headers::CONTENT_TYPE.to_owned(), text)
            }
            Binding::Http | Binding::Nats => (
                format!("ce-{name}"),
                Cow::Owned(percent::encode(&text).into_owned()),
            ),
            Binding::Kafka => (format!("ce_{name}"), text),
        };
        headers.append(name, value.into_owned())?;
    }
    Ok((headers, event.envelope().payload().data().clone()))
}

pub(super) fn read(headers: &Headers, body: Bytes) -> Result<CloudEvent, Error> {
    let mut attributes = Attributes::default();
    let mut declared = None;
    for (header, value) in headers.iter() {
        let Some((name, text)) = attribute(header, value)? else {
            continue;
        };
        if name == DATA_CONTENT_TYPE {
            set_content_type(&mut declared, text)?;
        } else {
            attributes.insert(&name, Attribute::String(text))?;
        }
    }
    if let Some(content_type) = declared {
        attributes.insert(DATA_CONTENT_TYPE, Attribute::String(content_type))?;
    }
    attributes.into_event(Data::Body(body))
}

/// The attribute that a header carries, if it carries one.
fn attribute(header: &str, value: &Bytes) -> Result<Option<(String, String)>, Error> {
    if header.eq_ignore_ascii_case(headers::CONTENT_TYPE) {
        let text = utf8(DATA_CONTENT_TYPE, value)?;
        return Ok(Some((DATA_CONTENT_TYPE.to_owned(), text)));
    }
    let Some((prefix, name)) = header.split_at_checked(3) else {
        return Ok(None);
    };
    let name = name.to_ascii_lowercase();
    let text = match prefix.as_bytes() {
        [b'c' | b'C', b'e' | b'E', b'-'] => {
            percent::decode(value).ok_or_else(|| Error::Percent(name.clone()))?
        }
        [b'c' | b'C', b'e' | b'E', b'_'] => utf8(&name, value)?,
        _ => return Ok(None),
    };
    Ok(Some((name, text)))
}

fn utf8(name: &str, value: &Bytes) -> Result<String, Error> {
    std::str::from_utf8(value)
        .map(str::to_owned)
        .map_err(|_| Error::attribute(name, Problem::NotUtf8))
}

/// The content type may stand in two headers if they agree.
fn set_content_type(declared: &mut Option<String>, text: String) -> Result<(), Error> {
    match declared {
        Some(first) if *first != text => Err(Error::TwoContentTypes(first.clone(), text)),
        _ => {
            *declared = Some(text);
            Ok(())
        }
    }
}
