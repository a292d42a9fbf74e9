//! A record as a message of NATS, and back.
//!
//! Headers on NATS are text, in no order across names, and those that begin with `Nats-` are the
//! server's. What a record has beyond that travels in a header of ours, [`PACKED`], next to the plain
//! ones that others read.

use std::collections::HashSet;

use async_nats::header::{HeaderMap, HeaderName, HeaderValue, NATS_MESSAGE_ID};
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use smol_str::SmolStr;

use crate::headers::{self, Headers};
use crate::record::Record;

/// The key of a record, where no other header says it.
const KEY: HeaderName = HeaderName::from_static("Laneway-Key");
/// All headers of a record, exactly, where plain ones would not do.
const PACKED: HeaderName = HeaderName::from_static("Laneway-Headers");

/// What nearly every message has: these names are not copied for each.
static USUAL: [(&str, HeaderName); 5] = [
    (
        headers::EVENT_ID,
        HeaderName::from_static(headers::EVENT_ID),
    ),
    (
        headers::AGGREGATE_ID,
        HeaderName::from_static(headers::AGGREGATE_ID),
    ),
    (
        headers::EVENT_TYPE,
        HeaderName::from_static(headers::EVENT_TYPE),
    ),
    (
        headers::EVENT_VERSION,
        HeaderName::from_static(headers::EVENT_VERSION),
    ),
    (
        headers::TRACEPARENT,
        HeaderName::from_static(headers::TRACEPARENT),
    ),
];

/// The most bytes of headers that the server keeps with a message.
pub(super) const LONGEST_HEADERS: usize = 65_535;

/// What headers of the server begin with.
const OF_SERVER: &str = "nats-";
/// What headers begin with that the bus itself writes.
const OF_BUS: &str = "laneway-";

/// The id by which the server knows a record that it has already. Only what is published the first
/// time has one: a letter, a replay or a request must not be taken for the event that it is about.
pub(super) fn message_id(record: &Record) -> Option<&str> {
    let of_bus = |(name, _): (&str, &Bytes)| starts_with(name, OF_BUS);
    if record.headers.iter().any(of_bus) {
        return None;
    }
    let id = record.headers.get_str(headers::EVENT_ID)?;
    is_plain(id.as_bytes())
        .then_some(id)
        .filter(|id| !id.is_empty())
}

/// The headers of the message that carries a record.
pub(super) fn headers_of(record: &Record, id: Option<&str>) -> HeaderMap {
    let mut map = HeaderMap::new();
    // Names that differ only in case are the same name to us.
    let mut exact = names_differ(&record.headers);
    for (name, value) in record.headers.iter() {
        let Some((name, value)) = plain(name, value) else {
            exact = false;
            continue;
        };
        // Of those with one name the first is for others to read.
        if exact || map.get(name.clone()).is_none() {
            map.insert(name, value);
        }
    }
    if !exact {
        let packed = pack(&record.headers);
        map.insert(PACKED, packed.as_str());
    }
    if let Some(key) = &record.key
        && record.headers.get_str(headers::AGGREGATE_ID) != Some(key)
    {
        map.insert(KEY, STANDARD_NO_PAD.encode(key.as_bytes()).as_str());
    }
    if let Some(id) = id {
        map.insert(NATS_MESSAGE_ID, id);
    }
    map
}

/// How many bytes headers are on their way to the server.
pub(super) fn size_of(map: &HeaderMap) -> usize {
    const AROUND: usize = "NATS/1.0\r\n\r\n".len();
    const AROUND_EACH: usize = ": \r\n".len();
    let each = map.iter().flat_map(|(name, values)| {
        let name = AsRef::<str>::as_ref(name).len();
        let values = values.iter();
        values.map(move |value| name + value.as_str().len() + AROUND_EACH)
    });
    AROUND + each.sum::<usize>()
}

/// The record that a message carries.
pub(super) fn record_of(map: Option<&HeaderMap>, payload: Bytes, timestamp_ms: i64) -> Record {
    let Some(map) = map else {
        return Record {
            payload,
            timestamp_ms,
            ..Record::default()
        };
    };
    let headers = map
        .get(PACKED)
        .and_then(|packed| unpack(packed.as_str()))
        .unwrap_or_else(|| plain_headers(map));
    let key = map.get(KEY).and_then(|key| {
        let bytes = STANDARD_NO_PAD.decode(key.as_str()).ok()?;
        std::str::from_utf8(&bytes).ok().map(SmolStr::new)
    });
    let key = key.or_else(|| headers.get_str(headers::AGGREGATE_ID).map(SmolStr::new));
    Record {
        key,
        headers,
        payload,
        timestamp_ms,
    }
}

/// A header as NATS can carry it, if it can.
fn plain(name: &str, value: &Bytes) -> Option<(HeaderName, HeaderValue)> {
    if starts_with(name, OF_SERVER) || !is_plain(value) {
        return None;
    }
    let value = std::str::from_utf8(value).ok()?;
    let usual = USUAL.iter().find(|(usual, _)| *usual == name);
    let name = match usual {
        Some((_, name)) => name.clone(),
        None => name.parse().ok()?,
    };
    Some((name, value.parse().ok()?))
}

/// Whether a value is text that comes out as it went in.
fn is_plain(value: &[u8]) -> bool {
    // Nearly all are, and are seen to be at a glance.
    if value.iter().all(u8::is_ascii_graphic) {
        return true;
    }
    std::str::from_utf8(value)
        .is_ok_and(|text| text.trim() == text && !text.contains(char::is_control))
}

fn starts_with(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// As many headers are compared each with each: quicker than to sort them.
const A_FEW: usize = 16;

fn names_differ(headers: &Headers) -> bool {
    if headers.len() > A_FEW {
        let names = headers.iter().map(|(name, _)| name.to_ascii_lowercase());
        return names.collect::<HashSet<_>>().len() == headers.len();
    }
    headers.iter().enumerate().all(|(handle, (name, _))| {
        let mut before = headers.iter().take(handle);
        !before.any(|(other, _)| name.eq_ignore_ascii_case(other))
    })
}

/// The headers that others wrote, and ours if they are plain. By name: the server has no order.
fn plain_headers(map: &HeaderMap) -> Headers {
    let mut all: Vec<(&str, &str)> = map
        .iter()
        .filter(|(name, _)| **name != KEY && **name != PACKED)
        .map(|(name, values)| (AsRef::<str>::as_ref(name), values))
        .filter(|(name, _)| !starts_with(name, OF_SERVER))
        .flat_map(|(name, values)| values.iter().map(move |value| (name, value.as_str())))
        .collect();
    // Those of one name stay in their order.
    all.sort_by_key(|(name, _)| *name);
    // All values share one buffer: far cheaper than an allocation for each.
    let joined: String = all.iter().map(|(_, value)| *value).collect();
    let mut joined = Bytes::from(joined);
    let mut headers = Headers::new();
    for (name, value) in all {
        headers.push_unlimited(name, joined.split_to(value.len()));
    }
    headers
}

/// Names and values, each after its length in four bytes.
fn pack(headers: &Headers) -> String {
    let mut bytes = Vec::new();
    for (name, value) in headers.iter() {
        for part in [name.as_bytes(), value] {
            let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(part);
        }
    }
    STANDARD_NO_PAD.encode(bytes)
}

fn unpack(packed: &str) -> Option<Headers> {
    let mut bytes = Bytes::from(STANDARD_NO_PAD.decode(packed).ok()?);
    let mut headers = Headers::new();
    while !bytes.is_empty() {
        let name = next_part(&mut bytes)?;
        let value = next_part(&mut bytes)?;
        headers.push_unlimited(std::str::from_utf8(&name).ok()?, value);
    }
    Some(headers)
}

fn next_part(bytes: &mut Bytes) -> Option<Bytes> {
    let length = u32::from_le_bytes(*bytes.first_chunk()?) as usize;
    if bytes.len() - 4 < length {
        return None;
    }
    drop(bytes.split_to(4));
    Some(bytes.split_to(length))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(headers: &[(&str, &[u8])]) -> Record {
        let mut record = Record::default();
        for (name, value) in headers {
            let value = Bytes::copy_from_slice(value);
            record.headers.append(name, value).expect("a header");
        }
        record
    }

    fn there_and_back(record: &Record) -> Record {
        let map = headers_of(record, message_id(record));
        record_of(Some(&map), record.payload.clone(), record.timestamp_ms)
    }

    #[test]
    fn plain_headers_are_readable_by_others() {
        let mut orders = record(&[("X-Aggregate-ID", b"a"), ("X-Event-ID", b"e-1")]);
        orders.key = Some("a".into());
        let map = headers_of(&orders, message_id(&orders));
        assert_eq!(map.len(), 3, "{map:?}");
        assert_eq!(map.get("X-Event-ID").map(HeaderValue::as_str), Some("e-1"));
        assert_eq!(map.get("Nats-Msg-Id").map(HeaderValue::as_str), Some("e-1"));
        assert_eq!(there_and_back(&orders), orders);
    }

    #[test]
    fn what_the_bus_puts_there_has_no_id() {
        let again = record(&[("X-Event-ID", b"e-1"), ("laneway-only-group", b"g")]);
        assert_eq!(message_id(&again), None);
        assert_eq!(message_id(&record(&[])), None);
        assert_eq!(message_id(&record(&[("x-event-id", b"\r\n")])), None);
    }

    #[test]
    fn headers_of_the_server_are_not_ours() {
        let mut map = HeaderMap::new();
        map.insert("Nats-Msg-Id", "7");
        map.insert("lang", "en");
        let read = record_of(Some(&map), Bytes::new(), 5);
        assert_eq!(read.headers.len(), 1);
        assert_eq!(
            (read.headers.get_str("lang"), read.timestamp_ms),
            (Some("en"), 5)
        );
        // And one that a user calls so does not become one.
        let named = record(&[("Nats-Rollup", b"all")]);
        let map = headers_of(&named, None);
        assert!(map.get("Nats-Rollup").is_none());
        assert_eq!(there_and_back(&named), named);
    }

    #[test]
    fn a_message_of_somebody_else_is_a_record() {
        let read = record_of(None, Bytes::from_static(b"x"), 1);
        assert_eq!((read.key, read.payload.as_ref()), (None, &b"x"[..]));
        let mut map = HeaderMap::new();
        map.insert(PACKED, "not packed");
        map.insert(KEY, "!");
        assert_eq!(record_of(Some(&map), Bytes::new(), 0), Record::default());
    }

    proptest! {
        #[test]
        fn any_record_comes_out_as_it_went_in(
            headers in prop::collection::vec(
                ("[!-9;-~]{1,12}|nats-x|A|a", prop::collection::vec(any::<u8>(), 0..12)), 0..24),
            key in prop::option::of("\\PC{0,12}"),
        ) {
            let headers: Vec<_> = headers
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_slice()))
                .collect();
            let mut before = record(&headers);
            before.key = key.map(SmolStr::new);
            let after = there_and_back(&before);
            let mut by_name: Vec<_> = before.headers.iter().collect();
            let mut found: Vec<_> = after.headers.iter().collect();
            by_name.sort_unstable();
            found.sort_unstable();
            prop_assert_eq!(by_name, found);
            if before.headers.get(headers::AGGREGATE_ID).is_none() {
                prop_assert_eq!(before.key, after.key);
            }
        }
    }
}
