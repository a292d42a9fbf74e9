//! What an event carries.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::content_type::ContentType;
use super::error::{Error, Field, Problem};

/// The payload of an event: bytes, and what they are.
///
/// If the content type is JSON, the bytes are exactly one JSON text, checked when the payload is
/// made and kept as they were written: number formats, key order and whitespace inside survive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    content_type: ContentType,
    data: Bytes,
}

impl Payload {
    /// Writes `value` as JSON.
    ///
    /// # Errors
    /// If serde cannot write it as JSON, for example because of a map whose keys are not strings.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Self, Error> {
        let data = serde_json::to_vec(value)
            .map_err(|error| Field::Payload.error(Problem::Unwritable(error.to_string())))?;
        Ok(Self::verbatim_json(data.into()))
    }

    /// Keeps bytes of any content type. Bytes of a JSON type must be one JSON text.
    ///
    /// # Errors
    /// If the content type is JSON and the bytes are not.
    pub fn bytes(content_type: ContentType, data: impl Into<Bytes>) -> Result<Self, Error> {
        Self::new(content_type, data.into()).map_err(|problem| Field::Payload.error(problem))
    }

    pub(super) fn new(content_type: ContentType, data: Bytes) -> Result<Self, Problem> {
        let data = if content_type.is_json() {
            one_json_text(&data)?
        } else {
            data
        };
        Ok(Self { content_type, data })
    }

    /// A JSON text that a parser has already delimited.
    pub(super) fn verbatim_json(data: Bytes) -> Self {
        Self::checked_json(ContentType::JSON, data)
    }

    /// As [`Payload::verbatim_json`], under a more specific JSON content type.
    pub(super) fn checked_json(content_type: ContentType, data: Bytes) -> Self {
        debug_assert!(content_type.is_json());
        Self { content_type, data }
    }

    /// What the bytes are.
    #[must_use]
    pub fn content_type(&self) -> &ContentType {
        &self.content_type
    }

    /// The bytes. For a JSON payload: its text.
    #[must_use]
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// Whether the bytes are JSON.
    #[must_use]
    pub fn is_json(&self) -> bool {
        self.content_type.is_json()
    }

    /// Reads a JSON payload as a `T`, which may borrow from it.
    ///
    /// # Errors
    /// If the payload is not JSON, or JSON of another shape. JSON nested deeper than 128 levels and
    /// numbers that do not fit their field end here too: the envelope carries them unread.
    pub fn read_json<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Error> {
        if !self.is_json() {
            let actual = self.content_type.to_string();
            return Err(Field::Payload.error(Problem::NotReadableAsJson(actual)));
        }
        serde_json::from_slice(&self.data)
            .map_err(|error| Field::Payload.error(Problem::Unreadable(error.to_string())))
    }
}

/// `data` without the whitespace around it, if it is one JSON text.
fn one_json_text(data: &Bytes) -> Result<Bytes, Problem> {
    let text: &RawValue =
        serde_json::from_slice(data).map_err(|error| Problem::NotJson(error.to_string()))?;
    Ok(data.slice_ref(text.get().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_bytes_are_checked_and_kept_as_written() {
        let payload = Payload::bytes(ContentType::JSON, " {\"n\": 1.50,\"n\":1e400} \n")
            .expect("one JSON text");
        assert_eq!(payload.data(), "{\"n\": 1.50,\"n\":1e400}");
        for broken in ["", "{", "1 2", "{\"a\":1}x", "\u{feff}{}"] {
            let error = Payload::bytes(ContentType::JSON, broken).expect_err(broken);
            assert_eq!(error.field(), Some(Field::Payload), "{broken:?}");
        }
        assert!(Payload::bytes(ContentType::JSON, &b"\"\xff\""[..]).is_err());
    }

    #[test]
    fn other_bytes_are_kept_unread_and_refused_as_json() {
        let png = ContentType::new("image/png").expect("a media type");
        let payload = Payload::bytes(png, &b"\x89PNG\xff"[..]).expect("any bytes");
        let error = payload.read_json::<u8>().expect_err("a picture");
        assert_eq!(
            error.to_string(),
            "payload is \"image/png\", not JSON: read its bytes instead"
        );
    }

    #[test]
    fn json_can_be_read_without_copying() {
        #[derive(Deserialize)]
        struct Order<'a> {
            item: &'a str,
        }
        let payload = Payload::bytes(ContentType::JSON, r#"{"item":"book"}"#).expect("JSON");
        let order: Order<'_> = payload.read_json().expect("an order");
        assert_eq!(order.item, "book");
        assert!(payload.read_json::<Vec<u8>>().is_err());
    }
}
