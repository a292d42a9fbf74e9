//! A record as a message of Kafka, and back. Kafka has keys, and headers in their order: nothing has to be
//! bent.

use bytes::Bytes;
use rdkafka::message::{BorrowedMessage, Header, Headers as _, Message, OwnedHeaders};
use smol_str::SmolStr;

use crate::headers::Headers;
use crate::record::{Delivered, Record};

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

/// The record that a message carries, at its place.
pub(super) fn delivered(message: &BorrowedMessage<'_>) -> Delivered {
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
    let key = message.key().and_then(|key| std::str::from_utf8(key).ok());
    Delivered {
        offset: u64::try_from(message.offset()).unwrap_or_default(),
        record: std::sync::Arc::new(Record {
            key: key.map(SmolStr::new),
            headers,
            payload,
            timestamp_ms: message.timestamp().to_millis().unwrap_or_default(),
        }),
    }
}
