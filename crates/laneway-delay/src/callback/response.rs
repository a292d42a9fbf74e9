//! What an answer says: how long to wait, and the beginning of its body.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;

/// How much of a body is read, so that its connection can be used again.
const READ: usize = 64 * 1024;
/// How much of it is kept, to be shown to people.
const KEPT: usize = 256;

/// What `Retry-After` asks for, if this answer may ask for it, up to `most`.
pub(super) fn retry_after(
    status: StatusCode,
    headers: &HeaderMap,
    now: SystemTime,
    most: Duration,
) -> Option<Duration> {
    if !matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    ) {
        return None;
    }
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = if !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit()) {
        // Digits beyond a u64 are a number all the same, and bounded like any other.
        Duration::from_secs(text.parse().unwrap_or(u64::MAX))
    } else {
        let date = httpdate::parse_http_date(text).ok()?;
        date.duration_since(now).unwrap_or_default()
    };
    Some(wait.min(most))
}

/// Reads a body to its end, if that comes soon, and keeps the beginning of it.
///
/// A body that does not end is cut by dropping the response, which closes the connection.
pub(super) async fn beginning(mut response: http::Response<Incoming>) -> String {
    let mut kept = Vec::new();
    let mut read = 0;
    while let Some(Ok(frame)) = response.frame().await {
        let Ok(chunk) = frame.into_data() else {
            continue;
        };
        let room = KEPT - kept.len();
        kept.extend_from_slice(&chunk[..chunk.len().min(room)]);
        read += chunk.len();
        if read > READ {
            break;
        }
    }
    printable(&kept)
}

fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
    let spaced = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    spaced.collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn after(status: u16, text: &str) -> Option<Duration> {
        let status = StatusCode::from_u16(status).expect("a status");
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, text.parse().expect("a value"));
        // Sun, 06 Nov 1994 08:49:37 GMT
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        retry_after(status, &headers, now, HOUR)
    }

    #[test]
    fn seconds_and_dates_are_read() {
        assert_eq!(after(429, "7"), Some(Duration::from_secs(7)));
        assert_eq!(after(503, " 0 "), Some(Duration::ZERO));
        assert_eq!(
            after(503, "Sun, 06 Nov 1994 08:50:37 GMT"),
            Some(Duration::from_mins(1))
        );
        assert_eq!(
            after(503, "Sunday, 06-Nov-94 08:50:37 GMT"),
            Some(Duration::from_mins(1))
        );
    }

    #[test]
    fn it_is_bounded_and_never_negative() {
        assert_eq!(after(429, "99999999"), Some(HOUR));
        assert_eq!(after(429, "99999999999999999999999999"), Some(HOUR));
        assert_eq!(after(429, "Sat, 06 Nov 2094 08:50:37 GMT"), Some(HOUR));
        assert_eq!(
            after(429, "Sun, 06 Nov 1994 08:00:00 GMT"),
            Some(Duration::ZERO)
        );
    }

    #[test]
    fn what_is_neither_is_ignored() {
        for text in ["", "soon", "-1", "1.5", "+3"] {
            assert_eq!(after(429, text), None, "{text}");
        }
        assert_eq!(after(500, "7"), None, "only where it has a meaning");
    }

    #[test]
    fn a_body_becomes_one_printable_line() {
        assert_eq!(printable(b" a\r\nb\0c "), "a  b c");
        assert_eq!(printable("aé".as_bytes().split_at(2).0), "a");
    }
}
