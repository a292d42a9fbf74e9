//! The key of a domain event.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use smol_str::SmolStr;

use super::error::{Error, Field, Problem};

/// The longest aggregate id, in bytes.
const MAX_LENGTH: usize = 256;

/// The id of the aggregate that an event belongs to: 1 to 256 bytes of `A-Za-z0-9:_-./`.
///
/// Events of one aggregate are handled strictly in the order in which they were published. The id is
/// checked once, when it is made. Up to 23 bytes it is stored in place, above that it is shared:
/// cloning it never copies text.
///
/// ```
/// use laneway::envelope::AggregateId;
///
/// let id = AggregateId::new("order:1042")?;
/// assert_eq!(id.as_str(), "order:1042");
/// assert!(AggregateId::new("order 1042").is_err());
/// # Ok::<(), laneway::envelope::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AggregateId(SmolStr);

impl AggregateId {
    /// Checks `id` and keeps it.
    ///
    /// # Errors
    /// If it is empty, longer than 256 bytes, or has a character outside `A-Za-z0-9:_-./`.
    pub fn new(id: impl AsRef<str>) -> Result<Self, Error> {
        let id = id.as_ref();
        check(id).map_err(|problem| Field::AggregateId.error(problem))?;
        Ok(Self(SmolStr::new(id)))
    }

    /// Checks `id` as it comes from a record key or a header.
    ///
    /// # Errors
    /// As for [`AggregateId::new`], and if it is not UTF-8.
    pub fn from_bytes(id: &[u8]) -> Result<Self, Error> {
        match std::str::from_utf8(id) {
            Ok(id) => Self::new(id),
            Err(_) => Err(Field::AggregateId.error(Problem::NotUtf8)),
        }
    }

    /// Takes over text that is already allocated, so that a long id is not copied twice.
    pub(super) fn from_text(id: SmolStr) -> Result<Self, Problem> {
        check(&id)?;
        Ok(Self(id))
    }

    pub(super) fn into_text(self) -> SmolStr {
        self.0
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id as bytes, for record keys and hashing.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

fn check(id: &str) -> Result<(), Problem> {
    if id.is_empty() {
        return Err(Problem::Blank);
    }
    if id.len() > MAX_LENGTH {
        return Err(Problem::TooLong {
            length: id.len(),
            limit: MAX_LENGTH,
        });
    }
    // Allowed characters are single bytes, so the first byte that is not allowed starts a character.
    let Some(at) = id.bytes().position(|byte| !is_allowed(byte)) else {
        return Ok(());
    };
    let character = id[at..].chars().next().unwrap_or_default();
    Err(Problem::NotIdCharacter { character, at })
}

fn is_allowed(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'_' | b'-' | b'.' | b'/')
}

impl FromStr for AggregateId {
    type Err = Error;

    fn from_str(id: &str) -> Result<Self, Error> {
        Self::new(id)
    }
}

impl TryFrom<&str> for AggregateId {
    type Error = Error;

    fn try_from(id: &str) -> Result<Self, Error> {
        Self::new(id)
    }
}

impl AsRef<str> for AggregateId {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for AggregateId {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for AggregateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for AggregateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_single_byte_is_decided() {
        for code in 0..=127_u8 {
            let id = char::from(code).to_string();
            let allowed =
                "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789:_-./".contains(&id);
            assert_eq!(AggregateId::new(&id).is_ok(), allowed, "{id:?}");
        }
    }

    #[test]
    fn length_is_1_to_256_bytes() {
        assert_eq!(
            AggregateId::new(""),
            Err(Field::AggregateId.error(Problem::Blank))
        );
        assert!(AggregateId::new("a").is_ok());
        assert!(AggregateId::new("a".repeat(256)).is_ok());
        assert_eq!(
            AggregateId::new("a".repeat(257)),
            Err(Field::AggregateId.error(Problem::TooLong {
                length: 257,
                limit: 256
            }))
        );
    }

    #[test]
    fn an_id_is_its_text_in_maps_and_keys() {
        let id = AggregateId::new("order-1").expect("valid");
        assert_eq!(id.as_bytes(), b"order-1");
        let counts = std::collections::HashMap::from([(id, 1)]);
        assert_eq!(counts.get("order-1"), Some(&1));
    }

    #[test]
    fn errors_name_the_field_the_character_and_the_fix() {
        let error = AggregateId::new("order-é1").expect_err("é is not allowed");
        assert_eq!(
            error.to_string(),
            "aggregate_id has 'é' at byte 6: use only A-Z a-z 0-9 : _ - . /"
        );
        let error = AggregateId::from_bytes(b"\xff").expect_err("not UTF-8");
        assert_eq!(
            error.to_string(),
            "aggregate_id is not UTF-8: encode it as UTF-8"
        );
    }
}
