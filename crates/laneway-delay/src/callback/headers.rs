//! Headers that a sender may set on its callback.

use http::{HeaderName, HeaderValue};

/// Why a header may not be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// Not a name of a header.
    #[error("`{0}` is not a name of a header")]
    Name(String),
    /// Not a value of a header.
    #[error("the value of `{0}` has characters that a header cannot carry")]
    Value(String),
    /// It belongs to the connection or to this server.
    #[error("`{0}` is set by the server: leave it out")]
    Reserved(String),
}

/// What belongs to the connection, and so to the client.
const RESERVED: [&str; 13] = [
    "connection",
    "content-length",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];

/// What this server says about the message.
const RESERVED_PREFIXES: [&str; 3] = ["webhook-", "laneway-", "x-forwarded-"];

/// Checks one header that a sender wants on its callback.
///
/// # Errors
///
/// Names the header, and what is wrong with it.
///
/// ```
/// use laneway_delay::callback::check_header;
///
/// assert!(check_header("Authorization", "Bearer abc").is_ok());
/// assert!(check_header("Host", "example.com").is_err());
/// assert!(check_header("X-A", "a\r\nX-B: b").is_err());
/// ```
pub fn check_header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), HeaderError> {
    let parsed =
        HeaderName::from_bytes(name.as_bytes()).map_err(|_| HeaderError::Name(name.to_owned()))?;
    let of_the_server = RESERVED.contains(&parsed.as_str())
        || RESERVED_PREFIXES
            .iter()
            .any(|prefix| parsed.as_str().starts_with(prefix));
    if of_the_server {
        return Err(HeaderError::Reserved(name.to_owned()));
    }
    let value = HeaderValue::from_str(value).map_err(|_| HeaderError::Value(name.to_owned()))?;
    Ok((parsed, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_sets_cannot_be_set() {
        for name in [
            "Host",
            "CONTENT-LENGTH",
            "webhook-id",
            "Webhook-Signature",
            "laneway-due",
            "transfer-encoding",
            "x-forwarded-for",
        ] {
            assert_eq!(
                check_header(name, "x"),
                Err(HeaderError::Reserved(name.to_owned()))
            );
        }
    }

    #[test]
    fn a_header_cannot_smuggle_another_one() {
        for (name, value) in [
            ("a", "b\r\nc: d"),
            ("a", "b\nc"),
            ("a", "\0"),
            ("a\r\nb", "c"),
            ("", "c"),
            ("a b", "c"),
            ("a:", "b"),
        ] {
            assert!(check_header(name, value).is_err(), "{name:?} {value:?}");
        }
    }
}
