//! Percent-encoding of header values, as the bindings for HTTP and NATS ask for it.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Encodes space, double quote, percent and everything outside visible ASCII.
pub(super) fn encode(text: &str) -> Cow<'_, str> {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'%';
    if text.bytes().all(plain) {
        return Cow::Borrowed(text);
    }
    let mut encoded = String::with_capacity(text.len() + 16);
    for byte in text.bytes() {
        if plain(byte) {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("writing to a string does not fail");
        }
    }
    Cow::Owned(encoded)
}

/// Decodes a value once: first the quotes that older writers put around it, then percent signs.
/// `None` if a percent sign starts no byte, or the bytes are not UTF-8.
pub(super) fn decode(value: &[u8]) -> Option<String> {
    let mut decoded = Vec::with_capacity(value.len());
    let unquoted = unquote(value);
    let mut bytes = unquoted.iter();
    while let Some(&byte) = bytes.next() {
        if byte == b'%' {
            decoded.push(digit(*bytes.next()?)? << 4 | digit(*bytes.next()?)?);
        } else {
            decoded.push(byte);
        }
    }
    String::from_utf8(decoded).ok()
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

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
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
