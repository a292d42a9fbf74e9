//! A record as a message of Kafka, and back. Kafka has keys, and headers in their order: nothing has to be
//! bent.

use std::sync::Arc;

use bytes::Bytes;
use rdkafka::message::{BorrowedMessage, Header, Headers as _, Message, OwnedHeaders};
use smol_str::SmolStr;

use super::panics::caught;
use crate::headers::Headers;
use crate::planted::planted;
use crate::record::{Delivered, Record, UNREADABLE};

/// The headers of the message that carries a record.
pub(super) fn headers_of(record: &Record) -> Option<OwnedHeaders> {
    if record.headers.is_empty() {
        return None;
    }
    let mut headers = OwnedHeaders::new_with_capacity(record.headers.len());
    for (key, value) in record.headers.iter() {
        headers = headers.insert(Header {
            key,
            value: Some(value.as_ref()),
        });
    }
    Some(headers)
}

/// Why a record cannot be read whose headers have such a name.
const NAME_NOT_TEXT: &str = "it has a header name that is not UTF-8";

/// Whether a message has no value. Where logs are compacted that says that there is nothing more of its key:
/// it is no event, and no body that could be wrong.
pub(super) fn is_tombstone(message: &BorrowedMessage<'_>) -> bool {
    message.payload().is_none()
}

/// The record that a message carries, at its place.
pub(super) fn delivered(message: &BorrowedMessage<'_>) -> Delivered {
    let record = if planted("A5") {
        whole(message)
    } else {
        caught(|| whole(message)).unwrap_or_else(|| without_names(message))
    };
    Delivered {
        offset: u64::try_from(message.offset()).unwrap_or_default(),
        record: Arc::new(record),
    }
}

/// The record with all headers. Panics if one has a name that is not UTF-8.
fn whole(message: &BorrowedMessage<'_>) -> Record {
    // All values share one buffer with the body: far cheaper than an allocation for each.
    let payload = message.payload().unwrap_or_default();
    let theirs = message.headers();
    let values = || theirs.iter().flat_map(|headers| headers.iter());
    let length: usize = values()
        .map(|header| header.value.map_or(0, <[u8]>::len))
        .sum();
    let mut buffer = Vec::with_capacity(payload.len() + length);
    buffer.extend_from_slice(payload);
    for header in values() {
        buffer.extend_from_slice(header.value.unwrap_or_default());
    }
    let mut rest = Bytes::from(buffer);
    let payload = rest.split_to(payload.len());
    let mut headers = Headers::new();
    for header in values() {
        let length = header.value.map_or(0, <[u8]>::len);
        headers.push_unlimited(header.key, rest.split_to(length));
    }
    record(message, headers, payload)
}

/// The record with the headers that have names, and a note that there are others.
fn without_names(message: &BorrowedMessage<'_>) -> Record {
    let mut headers = Headers::new();
    headers.push_unlimited(UNREADABLE, Bytes::from_static(NAME_NOT_TEXT.as_bytes()));
    if let Some(theirs) = message.headers() {
        for index in 0..theirs.count() {
            if let Some(Some(header)) = caught(|| theirs.try_get(index)) {
                let value = header.value.unwrap_or_default();
                headers.push_unlimited(header.key, Bytes::copy_from_slice(value));
            }
        }
    }
    let payload = Bytes::copy_from_slice(message.payload().unwrap_or_default());
    record(message, headers, payload)
}

fn record(message: &BorrowedMessage<'_>, headers: Headers, payload: Bytes) -> Record {
    let key = message.key().and_then(|key| std::str::from_utf8(key).ok());
    Record {
        key: key.map(SmolStr::new),
        headers,
        payload,
        timestamp_ms: message.timestamp().to_millis().unwrap_or_default(),
    }
}
