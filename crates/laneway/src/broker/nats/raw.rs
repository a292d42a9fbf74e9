//! A message as the server has it, whatever bytes its headers are.
//!
//! The server stores headers that it never looks at: text in another encoding, lines without a colon,
//! carriage returns. A consumer that is sent such a message loses its connection, or the whole client,
//! since that cannot parse it. `STREAM.MSG.GET` answers with JSON in which headers and body are base64, so
//! nothing in them can do harm on the way. A message whose headers are not headers becomes a record that
//! says so ([`UNREADABLE`]).

use std::sync::Arc;

use async_nats::header::{HeaderMap, HeaderName, HeaderValue};
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::RawMessage;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::connect::call;
use super::ledger::millis;
use super::message::record_of;
use super::server::Nats;
use super::topics::TopicHandle;
use crate::broker::BrokerError;
use crate::headers::{Headers, MAX_VALUE};
use crate::record::{Delivered, RAW_HEADERS, Record, UNREADABLE};

/// What headers begin with.
const VERSION: &str = "NATS/1.0";

/// So much of headers that cannot be read is kept; in base64 it is as long as a header may be.
const KEPT: usize = MAX_VALUE / 4 * 3;

#[derive(Serialize)]
struct Question<'a> {
    seq: u64,
    next_by_subj: &'a str,
}

#[derive(Deserialize)]
struct Answer {
    message: RawMessage,
}

impl Nats {
    /// The first record of a partition from a sequence on, if there is one. Asked of the one server that
    /// has the last word: on a copy one may be missing that was read before.
    pub(super) async fn first_from(
        &self,
        handle: &TopicHandle,
        partition: u32,
        from: u64,
    ) -> Result<Option<Delivered>, BrokerError> {
        let filter = handle.filter(partition);
        let question = Question {
            seq: from.max(1),
            next_by_subj: &filter,
        };
        let subject = format!("STREAM.MSG.GET.{}", handle.stream);
        let asking = call(|| self.context.request(subject.clone(), &question));
        match asking.await {
            Ok(Response::Ok(Answer { message })) => Ok(Some(self.delivered(handle, &message)?)),
            Ok(Response::Err { error }) if error.error_code() == ErrorCode::NO_MESSAGE_FOUND => {
                Ok(None)
            }
            Ok(Response::Err { error }) => Err(self.failed("reading a message", error)),
            Err(error) => Err(self.failed("reading a message", error)),
        }
    }

    fn delivered(
        &self,
        handle: &TopicHandle,
        message: &RawMessage,
    ) -> Result<Delivered, BrokerError> {
        let bytes = |text: &str| {
            let decoded = STANDARD.decode(text);
            decoded.map_err(|error| self.failed("reading a message", error))
        };
        let payload = Bytes::from(bytes(&message.payload)?);
        let at_ms = millis(message.time.unix_timestamp_nanos());
        let raw = message.headers.as_deref().map(bytes).transpose()?;
        let mut record = match raw.as_deref().map(parse) {
            None => record_of(None, payload, at_ms),
            Some(Ok(map)) => record_of(Some(&map), payload, at_ms),
            Some(Err(reason)) => {
                unreadable(&reason, raw.as_deref().unwrap_or_default(), payload, at_ms)
            }
        };
        if record.key.is_none() {
            record.key = handle.key_in(&message.subject).map(SmolStr::new);
        }
        Ok(Delivered {
            offset: message.sequence,
            record: Arc::new(record),
        })
    }
}

/// A record whose headers cannot be read: its body, why, and the bytes themselves.
fn unreadable(reason: &str, raw: &[u8], payload: Bytes, timestamp_ms: i64) -> Record {
    let kept = &raw[..raw.len().min(KEPT)];
    let mut headers = Headers::new();
    headers.push_unlimited(UNREADABLE, Bytes::copy_from_slice(reason.as_bytes()));
    headers.push_unlimited(RAW_HEADERS, STANDARD.encode(kept).into());
    Record {
        key: None,
        headers,
        payload,
        timestamp_ms,
    }
}

/// The headers that a client can make of these bytes, or why it cannot.
fn parse(bytes: &[u8]) -> Result<HeaderMap, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        format!(
            "its headers are not UTF-8, from byte {}",
            error.valid_up_to()
        )
    })?;
    let mut lines = text.lines().peekable();
    let status = lines
        .next()
        .and_then(|line| line.strip_prefix(VERSION))
        .ok_or_else(|| format!("its headers do not begin with {VERSION}"))?;
    if !status.trim().is_empty() {
        // A consumer takes it for something that the server says, and never gives it to a reader.
        return Err("its headers begin with a status, which only the server may send".to_owned());
    }
    let mut map = HeaderMap::new();
    while let Some(line) = lines.next() {
        if line.is_empty() {
            continue;
        }
        let (name, value) = line
            .split_once(':')
            .ok_or_else(|| format!("a line of its headers has no colon: {line:.80?}"))?;
        let name: HeaderName = name
            .parse()
            .map_err(|_| format!("a header is called {name:.80?}, which is no name"))?;
        let mut value = value.trim_start().to_owned();
        while let Some(more) = lines.next_if(|line| line.starts_with(char::is_whitespace)) {
            value.push_str(more);
        }
        let value: HeaderValue = value
            .trim_end()
            .parse()
            .map_err(|_| format!("header {name} has a carriage return in its value"))?;
        map.append(name, value);
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_a_client_reads_them() {
        let map =
            parse(b"NATS/1.0\r\na: 1\r\nB:  x\r\n  y \r\na: 2\r\nempty:\r\n\r\n").expect("headers");
        let all =
            |name: &str| -> Vec<String> { map.get_all(name).map(ToString::to_string).collect() };
        assert_eq!(all("a"), ["1", "2"]);
        assert_eq!(all("B"), ["x  y"]);
        assert_eq!(all("empty"), [""]);
        assert!(parse(b"NATS/1.0\r\n\r\n").expect("none").is_empty());
    }

    #[test]
    fn what_are_no_headers_is_told() {
        for (bytes, reason) in [
            (
                &b"NATS/1.0\r\na: M\xfcller\r\n\r\n"[..],
                "not UTF-8, from byte 14",
            ),
            (b"NATS/1.0\r\nno colon\r\n\r\n", "no colon"),
            (b"NATS/1.0\r\ntwo words: x\r\n\r\n", "no name"),
            (b"NATS/1.0\r\na: x\ry\r\n\r\n", "a carriage return"),
            (b"NATS/1.0 503 gone\r\n\r\n", "a status"),
            (b"HTTP/1.1\r\n\r\n", "do not begin"),
            (b"", "do not begin"),
        ] {
            let error = parse(bytes).expect_err("no headers");
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn much_of_what_cannot_be_read_is_not_kept() {
        let raw = vec![0xff; 100_000];
        let record = unreadable("why", &raw, Bytes::from_static(b"body"), 7);
        let kept = record.headers.get(RAW_HEADERS).expect("kept");
        assert!(kept.len() <= MAX_VALUE, "{}", kept.len());
        assert_eq!(record.headers.get_str(UNREADABLE), Some("why"));
        assert_eq!(record.payload.as_ref(), b"body");
    }
}
