//! Percent-encoding of header values, as the bindings for HTTP and NATS ask for it.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode, utf8_percent_encode};

/// Space, double quote, percent and everything outside visible ASCII.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

pub(super) fn encode(text: &str) -> Cow<'_, str> {
    utf8_percent_encode(text, ENCODED).into()
}

/// Decodes a value once: first the quotes that older writers put around it, then percent signs.
/// `None` if a percent sign starts no byte, or the bytes are not UTF-8.
pub(super) fn decode(value: &[u8]) -> Option<String> {
    let unquoted = unquote(value);
    // `percent_decode` lets a percent sign that starts no byte stand for itself.
    let starts_a_byte = |rest: &[u8]| match rest {
        [b'%', high, low, ..] => high.is_ascii_hexdigit() && low.is_ascii_hexdigit(),
        [b'%', ..] => false,
        _ => true,
    };
    if !(0..unquoted.len()).all(|at| starts_a_byte(&unquoted[at..])) {
        return None;
    }
    let decoded = percent_decode(&unquoted).decode_utf8();
    decoded.ok().map(Cow::into_owned)
}

/// A quoted string without its quotes and backslashes.
fn unquote(value: &[u8]) -> Cow<'_, [u8]> {
    let [b'"', inner @ .., b'"'] = value else {
        return Cow::Borrowed(value);
    };
    let mut unquoted = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter();
    while let Some(&byte) = bytes.next() {
        let escaped = if byte == b'\\' { bytes.next() } else { None };
        unquoted.push(*escaped.unwrap_or(&byte));
    }
    Cow::Owned(unquoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_specification() {
        let text = "Euro € 😀";
        let encoded = "Euro%20%E2%82%AC%20%F0%9F%98%80";
        assert_eq!(encode(text), encoded);
        assert_eq!(decode(encoded.as_bytes()).as_deref(), Some(text));
    }

    #[test]
    fn needless_encoding_lower_case_and_quotes_are_read() {
        for (value, text) in [
            ("%61%2fb", "a/b"),
            ("\"a b\"", "a b"),
            (r#""a \"b\" \\ c""#, r#"a "b" \ c"#),
            ("\"%41\"", "A"),
            ("\"", "\""),
            ("", ""),
            ("é", "é"),
        ] {
            assert_eq!(decode(value.as_bytes()).as_deref(), Some(text), "{value}");
        }
    }

    #[test]
    fn what_is_not_utf8_or_not_encoded_is_refused() {
        for value in [&b"%C0%A0"[..], b"%", b"%2", b"%zz", b"%ff", b"\xff"] {
            assert_eq!(decode(value), None, "{value:?}");
        }
    }
}
