//! One attribute: its name and its value.

use std::borrow::Cow;

use super::super::text;
use super::Error;

/// The value of an attribute. The other types of `CloudEvents` (URI, timestamp, binary) are text here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attribute {
    /// True or false.
    Boolean(bool),
    /// A whole number of 32 bits.
    Integer(i32),
    /// Text without control characters and noncharacters.
    String(String),
}

impl Attribute {
    /// The value as headers carry it.
    #[must_use]
    pub fn to_text(&self) -> Cow<'_, str> {
        match self {
            Self::Boolean(true) => Cow::Borrowed("true"),
            Self::Boolean(false) => Cow::Borrowed("false"),
            Self::Integer(number) => Cow::Owned(number.to_string()),
            Self::String(text) => Cow::Borrowed(text),
        }
    }

    pub(super) fn check(&self, name: &str) -> Result<(), Error> {
        match self {
            Self::Boolean(_) | Self::Integer(_) => Ok(()),
            Self::String(text) => {
                text::check_characters(text).map_err(|problem| Error::attribute(name, problem))
            }
        }
    }
}

impl From<bool> for Attribute {
    fn from(value: bool) -> Self {
        Self::Boolean(value)
    }
}

impl From<i32> for Attribute {
    fn from(value: i32) -> Self {
        Self::Integer(value)
    }
}

impl From<&str> for Attribute {
    fn from(value: &str) -> Self {
        Self::String(value.to_owned())
    }
}

impl From<String> for Attribute {
    fn from(value: String) -> Self {
        Self::String(value)
    }
}

/// Whether an attribute has its own place in the event or the envelope.
pub(super) fn is_mapped(name: &str) -> bool {
    matches!(
        name,
        "specversion"
            | "id"
            | "source"
            | "type"
            | "time"
            | "subject"
            | "datacontenttype"
            | "dataschema"
            | "data"
            | "partitionkey"
            | "eventversion"
            | "traceid"
            | "correlationid"
            | "tenantid"
    )
}

pub(super) fn check_name(name: &str) -> Result<(), Error> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    if name.is_empty() || !name.bytes().all(allowed) {
        return Err(Error::Name(name.to_owned()));
    }
    Ok(())
}

/// Checks the alphabet of RFC 3986 and its percent-encoding. What the parts mean is the sender's
/// business.
pub(super) fn check_uri(name: &str, uri: &str) -> Result<(), Error> {
    text::check(uri).map_err(|problem| Error::attribute(name, problem))?;
    let mut bytes = uri.bytes();
    while let Some(byte) = bytes.next() {
        let valid = match byte {
            b'%' => (0..2).all(|_| bytes.next().is_some_and(|b| b.is_ascii_hexdigit())),
            _ => byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=".contains(&byte),
        };
        if !valid {
            return Err(Error::Uri(name.to_owned()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uri_references_are_checked_by_alphabet() {
        for uri in [
            "https://github.com/cloudevents",
            "mailto:cncf-wg-serverless@lists.cncf.io",
            "urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66",
            "/sensors/tn-1234567/alerts",
            "1-555-123-4567",
            "/a%20b?x=[1]#y",
        ] {
            assert_eq!(check_uri("source", uri), Ok(()), "{uri}");
        }
        for uri in [
            "", " ", "/a b", "/a%2", "/a%zz", "/é", "<a>", "a\"b", "a\\b", "/\n",
        ] {
            assert!(check_uri("source", uri).is_err(), "{uri:?}");
        }
    }

    #[test]
    fn names_are_lower_case_letters_and_digits() {
        for name in ["a", "0", "traceparent", "comexampleextension1"] {
            assert_eq!(check_name(name), Ok(()));
        }
        for name in ["", "A", "a_b", "a-b", "é", "data_base64"] {
            assert_eq!(check_name(name), Err(Error::Name(name.to_owned())));
        }
    }
}
