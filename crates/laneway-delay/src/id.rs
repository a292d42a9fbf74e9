use std::fmt;
use std::sync::Arc;

use crate::Error;

/// Names one message.
///
/// Whoever submits a message may bring an id of their own; otherwise it is a `UUIDv7`. An id is 1 to
/// 128 bytes of `A-Z a-z 0-9 . _ : -`, and neither `.` nor `..`, so that it fits into a URL as it is.
///
/// ```
/// use laneway_delay::MessageId;
///
/// assert_eq!(MessageId::new("order-4711")?.as_str(), "order-4711");
/// let error = MessageId::new("order 4711").unwrap_err();
/// assert!(error.to_string().starts_with("id: "));
/// # Ok::<(), laneway_delay::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(Arc<str>);

impl MessageId {
    /// The longest id, in bytes.
    pub const MAX_BYTES: usize = 128;

    /// An id of the caller's own.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is empty, too long, or has other characters in it.
    pub fn new(id: impl AsRef<str>) -> Result<Self, Error> {
        let id = id.as_ref();
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        if id.is_empty() || id.len() > Self::MAX_BYTES {
            return Err(Error::invalid(
                "id",
                format!(
                    "it has {} bytes; use 1 to {} of them",
                    id.len(),
                    Self::MAX_BYTES
                ),
            ));
        }
        if !id.bytes().all(is_allowed) {
            return Err(Error::invalid(
                "id",
                format!("{id:?} has characters that an id cannot have; use A-Z a-z 0-9 . _ : -"),
            ));
        }
        if matches!(id, "." | "..") {
            return Err(Error::invalid(
                "id",
                "`.` and `..` are steps in the path of a URL, so nothing could be asked about it; use another id",
            ));
        }
        Ok(Self(id.into()))
    }

    /// A new id, later than all before it.
    #[must_use]
    pub fn unique() -> Self {
        let mut buffer = [0; uuid::fmt::Hyphenated::LENGTH];
        let text: &str = uuid::Uuid::now_v7().hyphenated().encode_lower(&mut buffer);
        Self(text.into())
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for MessageId {
    type Err = Error;

    fn from_str(id: &str) -> Result<Self, Error> {
        Self::new(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_id_cannot_be_is_told() {
        for (id, problem) in [
            ("", "0 bytes"),
            (&"x".repeat(129), "129 bytes"),
            ("a/b", "characters"),
            ("größe", "characters"),
            (".", "steps in the path"),
            ("..", "steps in the path"),
        ] {
            let error = MessageId::new(id).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
        assert!(MessageId::new("x".repeat(128)).is_ok());
        assert!(MessageId::new("...").is_ok());
    }

    #[test]
    fn new_ids_differ_and_are_ids() {
        let (first, second) = (MessageId::unique(), MessageId::unique());
        assert!(first < second);
        assert_eq!(MessageId::new(first.as_str()), Ok(first));
    }
}
