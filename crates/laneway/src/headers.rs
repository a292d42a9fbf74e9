//! Headers of a message: small, ordered, and the same on every broker.

use std::fmt;

use bytes::Bytes;
use smol_str::SmolStr;
use thiserror::Error;

use crate::envelope::Envelope;

/// The id of the event.
pub const EVENT_ID: &str = "X-Event-ID";
/// The aggregate that the event belongs to.
pub const AGGREGATE_ID: &str = "X-Aggregate-ID";
/// What happened.
pub const EVENT_TYPE: &str = "X-Event-Type";
/// The version of the event's shape.
pub const EVENT_VERSION: &str = "X-Event-Version";
/// The id of the trace, as the envelope has it.
pub const TRACE_ID: &str = "X-Trace-ID";
/// The id that events of one business transaction share.
pub const CORRELATION_ID: &str = "X-Correlation-ID";
/// The tenant that the event belongs to.
pub const TENANT_ID: &str = "X-Tenant-ID";
/// W3C trace context; see [`trace`](crate::trace).
pub const TRACEPARENT: &str = "traceparent";
/// What the body is.
pub const CONTENT_TYPE: &str = "content-type";
/// The id by which NATS `JetStream` recognises a message that was sent twice.
pub const NATS_MSG_ID: &str = "Nats-Msg-Id";

/// The most headers one message may have.
pub const MAX_HEADERS: usize = 64;
/// The longest name, in bytes.
pub const MAX_NAME: usize = 128;
/// The longest value, in bytes.
pub const MAX_VALUE: usize = 8 * 1024;
/// The most bytes that all names and values of one message may take together.
pub const MAX_TOTAL: usize = 32 * 1024;

/// Why a header is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The name is empty, too long, or has a character that some broker cannot carry.
    #[error(
        "header name {0:?} is not 1 to {MAX_NAME} visible ASCII characters other than a colon: \
         rename it"
    )]
    Name(String),
    /// The value is too long.
    #[error(
        "header {name} is {length} bytes long: shorten it to {MAX_VALUE}, or move it to the payload"
    )]
    Value {
        /// The header.
        name: String,
        /// How long its value is.
        length: usize,
    },
    /// There are too many headers.
    #[error("header {0} is one too many: a message has at most {MAX_HEADERS}, remove others first")]
    Count(String),
    /// The headers together are too large.
    #[error(
        "header {name} makes {total} bytes of headers: stay within {MAX_TOTAL}, or use the payload"
    )]
    Total {
        /// The header that would not fit.
        name: String,
        /// What all headers would take with it.
        total: usize,
    },
}

/// The headers of one message, in the order in which they were added.
///
/// Names keep their case and are found in any case. A name may appear several times. Values are
/// bytes, and text where a broker knows nothing else (NATS). Empty headers allocate nothing.
///
/// ```
/// use laneway::headers::{self, Headers};
///
/// let mut headers = Headers::new();
/// headers.insert(headers::TENANT_ID, "acme")?;
/// assert_eq!(headers.get_str("x-tenant-id"), Some("acme"));
/// # Ok::<(), headers::HeaderError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Headers {
    entries: Vec<(SmolStr, Bytes)>,
    /// Bytes of all names and values, kept so that adding one stays cheap.
    total: usize,
}

impl Headers {
    /// No headers.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            entries: Vec::new(),
            total: 0,
        }
    }

    /// The headers that travel with an envelope, so that routers and people can read it unopened.
    #[must_use]
    pub fn of_envelope(envelope: &Envelope) -> Self {
        let version = envelope.event_version().to_string();
        let fields = [
            (EVENT_ID, Some(envelope.event_id())),
            (AGGREGATE_ID, Some(envelope.aggregate_id().as_str())),
            (EVENT_TYPE, Some(envelope.event_type())),
            (EVENT_VERSION, Some(version.as_str())),
            (TRACE_ID, envelope.trace_id()),
            (CORRELATION_ID, envelope.correlation_id()),
            (TENANT_ID, envelope.tenant_id()),
        ];
        let present = || {
            fields
                .iter()
                .filter_map(|&(name, value)| Some((name, value?)))
        };
        // All values share one buffer: far cheaper than an allocation for each.
        let mut joined = String::with_capacity(present().map(|(_, value)| value.len()).sum());
        joined.extend(present().map(|(_, value)| value));
        let mut values = Bytes::from(joined);
        let mut headers = Self {
            // One more for the trace context that is usually added.
            entries: Vec::with_capacity(fields.len() + 1),
            total: 0,
        };
        for (name, value) in present() {
            headers.push_unlimited(name, values.split_to(value.len()));
        }
        headers
    }

    /// Sets a header: replaces all of that name, in any case.
    ///
    /// # Errors
    /// If the name cannot travel, or a limit would be passed; the headers are then unchanged.
    pub fn insert(
        &mut self,
        name: impl AsRef<str>,
        value: impl Into<Bytes>,
    ) -> Result<(), HeaderError> {
        let (name, value) = (name.as_ref(), value.into());
        let (freed_count, freed_bytes) = self
            .matching(name)
            .fold((0, 0), |(count, bytes), (name, value)| {
                (count + 1, bytes + name.len() + value.len())
            });
        self.check(name, &value, freed_count, freed_bytes)?;
        self.remove(name);
        self.push_unlimited(name, value);
        Ok(())
    }

    /// Adds a header and keeps those of the same name.
    ///
    /// # Errors
    /// If the name cannot travel, or a limit would be passed; the headers are then unchanged.
    pub fn append(
        &mut self,
        name: impl AsRef<str>,
        value: impl Into<Bytes>,
    ) -> Result<(), HeaderError> {
        let (name, value) = (name.as_ref(), value.into());
        self.check(name, &value, 0, 0)?;
        self.push_unlimited(name, value);
        Ok(())
    }

    /// Adds a header of our own. A message whose headers are full must still get the headers that
    /// its way through the bus needs, so they do not count against the user's limits.
    pub(crate) fn push_unlimited(&mut self, name: &str, value: Bytes) {
        self.total += name.len() + value.len();
        self.entries.push((SmolStr::new(name), value));
    }

    /// Removes all headers of this name and says how many there were.
    pub fn remove(&mut self, name: &str) -> usize {
        let before = self.entries.len();
        let total = &mut self.total;
        self.entries.retain(|(existing, value)| {
            let keep = !existing.eq_ignore_ascii_case(name);
            if !keep {
                *total -= existing.len() + value.len();
            }
            keep
        });
        before - self.entries.len()
    }

    /// The first value of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Bytes> {
        self.entries
            .iter()
            .find(|(existing, _)| existing.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// The first value of this name, if it is UTF-8.
    #[must_use]
    pub fn get_str(&self, name: &str) -> Option<&str> {
        self.get(name)
            .and_then(|value| std::str::from_utf8(value).ok())
    }

    /// All values of this name, in order.
    pub fn get_all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.matching(name).map(|(_, value)| value.as_ref())
    }

    /// All names and values, in order.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Bytes)> {
        self.entries
            .iter()
            .map(|(name, value)| (name.as_str(), value))
    }

    /// How many headers there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of all names and values.
    #[must_use]
    pub fn total_bytes(&self) -> usize {
        self.total
    }

    fn matching<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a (SmolStr, Bytes)> {
        self.entries
            .iter()
            .filter(move |(existing, _)| existing.eq_ignore_ascii_case(name))
    }

    fn check(
        &self,
        name: &str,
        value: &Bytes,
        freed_count: usize,
        freed_bytes: usize,
    ) -> Result<(), HeaderError> {
        let name_fits = (1..=MAX_NAME).contains(&name.len());
        if !name_fits || !name.bytes().all(|b| b.is_ascii_graphic() && b != b':') {
            return Err(HeaderError::Name(name.chars().take(MAX_NAME).collect()));
        }
        let total = self.total - freed_bytes + name.len() + value.len();
        let name = || name.to_owned();
        if value.len() > MAX_VALUE {
            return Err(HeaderError::Value {
                name: name(),
                length: value.len(),
            });
        }
        if self.entries.len() - freed_count >= MAX_HEADERS {
            return Err(HeaderError::Count(name()));
        }
        if total > MAX_TOTAL {
            return Err(HeaderError::Total {
                name: name(),
                total,
            });
        }
        Ok(())
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.entries.iter().map(|(name, value)| (name, value)))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case_and_kept_as_written() {
        let mut headers = Headers::new();
        headers.append("X-Trace-ID", "1").expect("fits");
        headers.append("x-trace-id", "2").expect("fits");
        assert_eq!(headers.get_str("X-TRACE-ID"), Some("1"));
        assert_eq!(
            headers.get_all("x-Trace-id").collect::<Vec<_>>(),
            [b"1", b"2"]
        );
        let names: Vec<&str> = headers.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["X-Trace-ID", "x-trace-id"]);
    }

    #[test]
    fn insert_replaces_all_and_remove_counts() {
        let mut headers = Headers::new();
        headers.append("a", "1").expect("fits");
        headers.append("A", "2").expect("fits");
        headers.append("b", "3").expect("fits");
        headers.insert("a", "4").expect("fits");
        let all: Vec<_> = headers.iter().map(|(n, v)| (n, v.as_ref())).collect();
        assert_eq!(all, [("b", &b"3"[..]), ("a", &b"4"[..])]);
        assert_eq!(headers.total_bytes(), 4);
        assert_eq!(headers.remove("A"), 1);
        assert_eq!(headers.remove("A"), 0);
        assert_eq!(headers.total_bytes(), 2);
    }

    #[test]
    fn values_that_are_not_text_are_kept_but_not_read_as_text() {
        let mut headers = Headers::new();
        headers.append("a", &b"\xff"[..]).expect("fits");
        assert_eq!(headers.get("a").map(AsRef::as_ref), Some(&b"\xff"[..]));
        assert_eq!(headers.get_str("a"), None);
    }

    #[test]
    fn names_that_some_broker_cannot_carry_are_refused() {
        let mut headers = Headers::new();
        let long = "n".repeat(MAX_NAME + 1);
        for name in ["", "a b", "a:b", "a\r\nb", "ä", &long] {
            assert!(
                matches!(headers.append(name, ""), Err(HeaderError::Name(_))),
                "{name:?}"
            );
        }
        assert!(headers.append("n".repeat(MAX_NAME), "").is_ok());
        assert_eq!(headers.len(), 1);
    }

    #[test]
    fn the_limits_hold_and_a_refusal_changes_nothing() {
        let mut headers = Headers::new();
        let error = headers.append("big", vec![0; MAX_VALUE + 1]);
        assert!(matches!(error, Err(HeaderError::Value { length, .. }) if length == MAX_VALUE + 1));
        assert!(headers.is_empty());

        for name in ["a", "b", "c"] {
            headers.append(name, vec![0; MAX_VALUE]).expect("fits");
        }
        let rest = MAX_TOTAL - headers.total_bytes() - 1;
        let error = headers.append("d", vec![0; rest + 1]);
        assert!(matches!(error, Err(HeaderError::Total { total, .. }) if total == MAX_TOTAL + 1));
        headers.append("d", vec![0; rest]).expect("fits exactly");
        assert_eq!(headers.total_bytes(), MAX_TOTAL);
        headers.insert("a", vec![1; MAX_VALUE]).expect("replaces");
        assert_eq!(headers.total_bytes(), MAX_TOTAL);

        let mut headers = Headers::new();
        for number in 0..MAX_HEADERS {
            headers.append(format!("h{number}"), "").expect("fits");
        }
        let error = headers.append("more", "").expect_err("one too many");
        assert_eq!(error, HeaderError::Count("more".to_owned()));
        headers.insert("h0", "again").expect("replaces");
        assert_eq!(headers.len(), MAX_HEADERS);
    }

    #[test]
    fn an_envelope_travels_with_its_headers() {
        let envelope = Envelope::builder("order-1", "OrderPlaced")
            .event_id("e-1")
            .event_version(3)
            .tenant_id("acme")
            .json(&())
            .expect("a valid envelope");
        let headers = Headers::of_envelope(&envelope);
        let all: Vec<_> = headers.iter().map(|(n, v)| (n, v.as_ref())).collect();
        assert_eq!(
            all,
            [
                ("X-Event-ID", &b"e-1"[..]),
                ("X-Aggregate-ID", b"order-1"),
                ("X-Event-Type", b"OrderPlaced"),
                ("X-Event-Version", b"3"),
                ("X-Tenant-ID", b"acme"),
            ]
        );
    }
}
