//! W3C trace context: the `traceparent` that connects a publisher's span with the handler's.
//!
//! Read strictly as the recommendation says: lower-case hex, exact lengths, no zero ids, exactly one
//! header. An invalid value starts no argument: the message goes on without a parent, and the reason
//! is there to be logged.
//!
//! ```
//! use laneway::trace::TraceParent;
//!
//! let received = TraceParent::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")?;
//! let mine = received.child();
//! assert_eq!(mine.trace_id(), received.trace_id());
//! assert_ne!(mine.span_id(), received.span_id());
//! assert!(mine.is_sampled());
//! # Ok::<(), laneway::trace::InvalidTraceParent>(())
//! ```

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use thiserror::Error;

use crate::headers::{Headers, TRACEPARENT};

/// The length of version 00: `00-` + 32 + `-` + 16 + `-` + 2.
const LENGTH: usize = 55;
const SAMPLED: u8 = 0b01;
/// The trace id is random in its last seven bytes (trace context level 2).
const RANDOM: u8 = 0b10;

/// Why a `traceparent` is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidTraceParent {
    /// The length or the dashes do not fit.
    #[error("traceparent is not shaped like 00-<32 hex>-<16 hex>-<2 hex>")]
    Shape,
    /// Something else than 0-9 and a-f.
    #[error("traceparent has a character other than 0-9 and a-f in its {0}")]
    Hex(&'static str),
    /// Version ff is forbidden.
    #[error("traceparent has the forbidden version ff")]
    Version,
    /// An id of zeros only.
    #[error("traceparent has a {0} of zeros only")]
    Zero(&'static str),
    /// Not one header, but several.
    #[error("traceparent appears several times")]
    Several,
    /// The header is not text.
    #[error("traceparent is not ASCII text")]
    NotText,
}

/// A span's place in a trace: the trace, the span, and whether it is recorded.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceParent {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    flags: u8,
}

impl TraceParent {
    /// The first span of a new trace.
    #[must_use]
    pub fn root(sampled: bool) -> Self {
        Self {
            trace_id: nonzero(),
            span_id: nonzero(),
            flags: RANDOM | if sampled { SAMPLED } else { 0 },
        }
    }

    /// Reads a `traceparent`. Later versions are read by the rules for the unknown: what version 00
    /// has must be there, and anything after it is ignored.
    ///
    /// # Errors
    /// If the value breaks the recommendation in any way.
    pub fn parse(text: &str) -> Result<Self, InvalidTraceParent> {
        let bytes = text.as_bytes();
        let Some((known, rest)) = bytes.split_at_checked(LENGTH) else {
            return Err(InvalidTraceParent::Shape);
        };
        let dashes = [known[2], known[35], known[52]];
        if dashes != *b"---" {
            return Err(InvalidTraceParent::Shape);
        }
        let [version] = hex(&known[..2]).ok_or(InvalidTraceParent::Hex("version"))?;
        match (version, rest) {
            (0xff, _) => return Err(InvalidTraceParent::Version),
            (0, [_, ..]) => return Err(InvalidTraceParent::Shape),
            (_, [] | [b'-', ..]) => {}
            (_, [_, ..]) => return Err(InvalidTraceParent::Shape),
        }
        let trace_id = hex(&known[3..35]).ok_or(InvalidTraceParent::Hex("trace id"))?;
        let span_id = hex(&known[36..52]).ok_or(InvalidTraceParent::Hex("parent id"))?;
        let [flags] = hex(&known[53..]).ok_or(InvalidTraceParent::Hex("flags"))?;
        if trace_id == [0; 16] {
            return Err(InvalidTraceParent::Zero("trace id"));
        }
        if span_id == [0; 8] {
            return Err(InvalidTraceParent::Zero("parent id"));
        }
        Ok(Self {
            trace_id,
            span_id,
            // Other flags are reserved and must not be passed on.
            flags: flags & (SAMPLED | RANDOM),
        })
    }

    /// The parent that a message carries, if it carries one.
    ///
    /// # Errors
    /// Why the message goes on without a parent although it carries something.
    pub fn from_headers(headers: &Headers) -> Result<Option<Self>, InvalidTraceParent> {
        let mut values = headers.get_all(TRACEPARENT);
        let Some(value) = values.next() else {
            return Ok(None);
        };
        if values.next().is_some() {
            return Err(InvalidTraceParent::Several);
        }
        let text = std::str::from_utf8(value).map_err(|_| InvalidTraceParent::NotText)?;
        Self::parse(text).map(Some)
    }

    /// Sets the header of a message that is about to be published, in place of any other.
    pub fn write_to(&self, headers: &mut Headers) {
        headers.remove(TRACEPARENT);
        headers.push_unlimited(TRACEPARENT, Bytes::from(self.to_string()));
    }

    /// A new span under this one.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            span_id: nonzero(),
            ..*self
        }
    }

    /// The trace.
    #[must_use]
    pub fn trace_id(&self) -> [u8; 16] {
        self.trace_id
    }

    /// The span.
    #[must_use]
    pub fn span_id(&self) -> [u8; 8] {
        self.span_id
    }

    /// Whether the caller records this trace.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }
}

/// Random bytes that are not all zero.
fn nonzero<const N: usize>() -> [u8; N] {
    loop {
        let mut id = [0; N];
        rand::fill(&mut id);
        if id != [0; N] {
            return id;
        }
    }
}

/// Two lower-case digits for each byte.
fn hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

impl FromStr for TraceParent {
    type Err = InvalidTraceParent;

    fn from_str(text: &str) -> Result<Self, InvalidTraceParent> {
        Self::parse(text)
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "00-{:032x}-{:016x}-{:02x}",
            u128::from_be_bytes(self.trace_id),
            u64::from_be_bytes(self.span_id),
            self.flags
        )
    }
}

impl fmt::Debug for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

tokio::task_local! {
    static CURRENT: TraceParent;
}

/// The trace context that this task runs in: that of the event whose handler it is, or one given by
/// [`scope`]. What is published within it belongs to the same trace.
#[must_use]
pub fn current() -> Option<TraceParent> {
    CURRENT.try_with(|current| *current).ok()
}

/// Runs a future within a trace context, so that what it publishes belongs to that trace.
///
/// ```
/// # use laneway::trace::{self, TraceParent};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let request = TraceParent::root(true);
/// trace::scope(request, async {
///     assert_eq!(trace::current(), Some(request));
/// })
/// .await;
/// assert!(trace::current().is_none());
/// # }
/// ```
pub async fn scope<F: Future>(trace: TraceParent, work: F) -> F::Output {
    CURRENT.scope(trace, work).await
}

/// Runs a future within a trace context, if there is one.
pub(crate) async fn within<F: Future>(trace: Option<TraceParent>, work: F) -> F::Output {
    match trace {
        Some(trace) => scope(trace, work).await,
        None => work.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_valid_value_survives_unchanged() {
        for text in [
            VALID,
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
            "00-00000000000000000000000000000001-0000000000000001-03",
        ] {
            assert_eq!(TraceParent::parse(text).expect(text).to_string(), text);
        }
    }

    #[test]
    fn later_versions_are_read_as_far_as_they_are_known() {
        let expected = TraceParent::parse(VALID).expect("valid");
        for text in [
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "fe-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
        ] {
            let parent = TraceParent::parse(text).expect(text);
            assert_eq!(parent, expected);
            assert_eq!(parent.to_string(), VALID);
        }
    }

    #[test]
    fn reserved_flags_are_not_passed_on() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff";
        let parent = TraceParent::parse(text).expect("valid");
        assert!(parent.to_string().ends_with("-03"));
    }

    #[test]
    fn every_broken_value_has_its_reason() {
        use InvalidTraceParent::{Hex, Shape, Version, Zero};
        for (text, reason) in [
            ("", Shape),
            ("00", Shape),
            (
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
                Shape,
            ),
            (
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
                Shape,
            ),
            (
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 ",
                Shape,
            ),
            (
                "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.x",
                Shape,
            ),
            (
                "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                Shape,
            ),
            (
                "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                Version,
            ),
            (
                "0x-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                Hex("version"),
            ),
            (
                "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
                Hex("trace id"),
            ),
            (
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902bg-01",
                Hex("parent id"),
            ),
            (
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0A",
                Hex("flags"),
            ),
            (
                "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
                Zero("trace id"),
            ),
            (
                "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
                Zero("parent id"),
            ),
            (
                "00-4bf92f3577b34da6a3ce929d0e0e473é-00f067aa0ba902b7-01",
                Shape,
            ),
        ] {
            assert_eq!(TraceParent::parse(text), Err(reason), "{text:?}");
        }
    }

    #[test]
    fn a_message_has_at_most_one_parent() {
        let mut headers = Headers::new();
        assert_eq!(TraceParent::from_headers(&headers), Ok(None));
        headers.append("TraceParent", VALID).expect("fits");
        let parent = TraceParent::parse(VALID).expect("valid");
        assert_eq!(TraceParent::from_headers(&headers), Ok(Some(parent)));
        headers.append("traceparent", VALID).expect("fits");
        assert_eq!(
            TraceParent::from_headers(&headers),
            Err(InvalidTraceParent::Several)
        );
        parent.child().write_to(&mut headers);
        assert_eq!(headers.len(), 1);
        headers.insert("traceparent", &b"\xff"[..]).expect("fits");
        assert_eq!(
            TraceParent::from_headers(&headers),
            Err(InvalidTraceParent::NotText)
        );
    }

    #[test]
    fn roots_and_children_are_valid_and_differ() {
        let root = TraceParent::root(true);
        let child = root.child();
        assert_eq!(root.trace_id(), child.trace_id());
        assert_ne!(root.span_id(), child.span_id());
        assert_ne!(root.trace_id(), TraceParent::root(true).trace_id());
        for parent in [root, child, TraceParent::root(false)] {
            assert_eq!(TraceParent::parse(&parent.to_string()), Ok(parent));
        }
        assert!(child.is_sampled());
        assert!(!TraceParent::root(false).is_sampled());
    }
}
