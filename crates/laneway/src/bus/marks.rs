//! The headers that the bus itself writes: what a dead letter was, and whom a record is for.

use bytes::Bytes;

use crate::headers::Headers;

/// The topic that the record was in.
pub(super) const TOPIC: &str = "laneway-topic";
/// The partition that it was in.
pub(super) const PARTITION: &str = "laneway-partition";
/// Its offset there.
pub(super) const OFFSET: &str = "laneway-offset";
/// The group whose handler failed.
pub(super) const GROUP: &str = "laneway-group";
/// What the last attempt said.
pub(super) const REASON: &str = "laneway-reason";
/// How many attempts were made.
pub(super) const ATTEMPTS: &str = "laneway-attempts";
/// When it was put aside, in milliseconds since 1970.
pub(super) const AT: &str = "laneway-at";
/// Only this group handles the record; others skip it.
pub(super) const ONLY_GROUP: &str = "laneway-only-group";
/// What the bus is asked to do.
const CONTROL: &str = "laneway-control";
const RELEASE: &str = "release";

const PREFIX: &str = "laneway-";

/// A reason may be a whole page; a header is not the place for it.
const LONGEST_REASON: usize = 1024;

pub(super) fn put(headers: &mut Headers, name: &str, value: &str) {
    headers.remove(name);
    headers.push_unlimited(name, Bytes::copy_from_slice(value.as_bytes()));
}

pub(super) fn put_reason(headers: &mut Headers, reason: &str) {
    let mut end = reason.len().min(LONGEST_REASON);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    put(headers, REASON, &reason[..end]);
}

pub(super) fn get_u64(headers: &Headers, name: &str) -> Option<u64> {
    headers.get_str(name)?.parse().ok()
}

pub(super) fn put_release(headers: &mut Headers) {
    put(headers, CONTROL, RELEASE);
}

pub(super) fn is_release(headers: &Headers) -> bool {
    !headers.is_empty() && headers.get_str(CONTROL) == Some(RELEASE)
}

/// Whether a group handles a record with these headers.
pub(super) fn is_for(headers: &Headers, group: &str) -> bool {
    headers.is_empty() || headers.get_str(ONLY_GROUP).is_none_or(|only| only == group)
}

/// The headers as their publisher wrote them.
pub(super) fn stripped(headers: &Headers) -> Headers {
    let mut original = Headers::new();
    for (name, value) in headers.iter() {
        if !name.starts_with(PREFIX) {
            original.push_unlimited(name, value.clone());
        }
    }
    original
}
