//! What the bytes of a payload are.

use std::fmt;

use smol_str::SmolStr;

use super::error::{Error, Field, Problem};

/// The longest content type, in bytes: RFC 6838 allows 127 for each half, parameters come on top.
const MAX_LENGTH: usize = 512;

/// A media type such as `application/json` or `application/x-protobuf; v=2`.
///
/// ```
/// use laneway::envelope::ContentType;
///
/// assert!(ContentType::new("application/vnd.order+json")?.is_json());
/// assert!(!ContentType::new("image/png")?.is_json());
/// # Ok::<(), laneway::envelope::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ContentType(SmolStr);

impl ContentType {
    /// `application/json`: what a payload is unless something else is said.
    pub const JSON: Self = Self(SmolStr::new_static("application/json"));

    /// Checks a media type: `type/subtype`, and parameters after a semicolon.
    ///
    /// # Errors
    /// If it has no such shape, is longer than 512 bytes or holds anything but visible ASCII and
    /// spaces.
    pub fn new(text: impl AsRef<str>) -> Result<Self, Error> {
        Self::from_text(text.as_ref()).map_err(|problem| Field::ContentType.error(problem))
    }

    pub(super) fn from_text(text: &str) -> Result<Self, Problem> {
        if text == Self::JSON.as_str() {
            return Ok(Self::JSON);
        }
        if text.len() > MAX_LENGTH {
            return Err(Problem::TooLong {
                length: text.len(),
                limit: MAX_LENGTH,
            });
        }
        let printable = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        match essence(text).split_once('/') {
            Some((kind, subtype)) if printable && is_token(kind) && is_token(subtype) => {
                Ok(Self(SmolStr::new(text)))
            }
            _ => Err(Problem::NotMediaType),
        }
    }

    /// The media type as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether bytes of this type are JSON: `*/json` or `*/*+json`, whatever the parameters.
    #[must_use]
    pub fn is_json(&self) -> bool {
        if *self == Self::JSON {
            return true;
        }
        let Some((_, subtype)) = essence(&self.0).split_once('/') else {
            return false;
        };
        let ends_with = |suffix: &str| {
            subtype
                .len()
                .checked_sub(suffix.len())
                .and_then(|at| subtype.get(at..))
                .is_some_and(|end| end.eq_ignore_ascii_case(suffix))
        };
        subtype.eq_ignore_ascii_case("json") || ends_with("+json")
    }
}

/// The media type without its parameters.
fn essence(text: &str) -> &str {
    text.split(';').next().unwrap_or_default().trim()
}

fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

impl fmt::Display for ContentType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ContentType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_recognised_in_all_its_spellings() {
        for text in [
            "application/json",
            "Application/JSON",
            "text/json",
            "application/json; charset=utf-8",
            "application/vnd.order+json;v=1",
            "application/problem+JSON",
        ] {
            assert!(ContentType::new(text).expect(text).is_json(), "{text}");
        }
        for text in [
            "application/jsonl",
            "application/json-seq",
            "text/plain; of=application/json",
            "application/x+jsonx",
            "image/png",
        ] {
            assert!(!ContentType::new(text).expect(text).is_json(), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_media_type_is_refused() {
        let long = format!("a/{}", "b".repeat(MAX_LENGTH));
        for text in [
            "",
            "json",
            "/",
            "a/",
            "/b",
            "a b/c",
            "a/b/c",
            "a/b\n",
            "a/ü",
            "a/b; c=\u{7f}",
            &long,
        ] {
            assert!(ContentType::new(text).is_err(), "{text:?}");
        }
    }
}
