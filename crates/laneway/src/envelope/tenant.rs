//! The tenant on the wire: a number or a text.
//!
//! jxt-core had text from 1.1.22 to 1.1.35 and has a 64-bit integer since 1.1.36, which it leaves out when
//! it is 0. Neither reads what the other writes. Laneway reads both, and writes a number where the text
//! is one, so that today's jxt-core reads it. In memory a tenant is text: `42` and `"42"` are the same one.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, Visitor};
use smol_str::{SmolStr, ToSmolStr};

/// Whether `id` is written as a number: exactly those that are read back as the same text.
pub(super) fn is_number(id: &str) -> bool {
    // Most tenants are words, and this is asked for every event.
    id.starts_with(|first: char| first == '-' || first.is_ascii_digit())
        && id
            .parse::<i64>()
            .is_ok_and(|number| number != 0 && number.to_smolstr() == id)
}

/// Reads a text or a whole number. `null`, the empty text and the number 0 are no tenant.
pub(super) struct Read;

impl<'de> DeserializeSeed<'de> for Read {
    type Value = Option<SmolStr>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for Read {
    type Value = Option<SmolStr>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a whole number or null")
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok((!text.is_empty()).then(|| SmolStr::new(text)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok((number != 0).then(|| number.to_smolstr()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        // Larger ones would go out as text again, and not be the same to the other side.
        i64::try_from(number)
            .map_err(|_| E::custom("the number is larger than 64 bits with a sign can hold"))
            .and_then(|number| self.visit_i64(number))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_comes_back_as_the_same_text_is_a_number() {
        for id in [
            "1",
            "42",
            "-7",
            "9223372036854775807",
            "-9223372036854775808",
        ] {
            assert!(is_number(id), "{id}");
        }
        for id in [
            "",
            "0",
            "-0",
            "007",
            "+1",
            "1.0",
            "1e3",
            " 1",
            "9223372036854775808",
            "acme",
            "٣",
        ] {
            assert!(!is_number(id), "{id}");
        }
    }
}
