//! The headers that the bus itself writes: what a dead letter was, and whom a record is for.

use bytes::Bytes;

use crate::headers::Headers;

/// The topic that the record was in.
pub(in crate::bus) const TOPIC: &str = "laneway-topic";
/// The partition that it was in.
pub(in crate::bus) const PARTITION: &str = "laneway-partition";
/// Its offset there.
pub(in crate::bus) const OFFSET: &str = "laneway-offset";
/// The group whose handler failed.
pub(in crate::bus) const GROUP: &str = "laneway-group";
/// What the last attempt said.
pub(in crate::bus) const REASON: &str = "laneway-reason";
/// How many attempts were made.
pub(in crate::bus) const ATTEMPTS: &str = "laneway-attempts";
/// Counts the owners of the partition: which of them put it aside.
pub(in crate::bus) const EPOCH: &str = "laneway-epoch";
/// The offset of the record that this one stands for, in the partition that it was in.
pub(in crate::bus) const REFERENCE: &str = "laneway-reference";
/// Which record that is, or the one that was put aside: [`Digest`](super::digest::Digest), in hexadecimal. Missing in
/// letters that were written before there was one.
pub(in crate::bus) const DIGEST: &str = "laneway-digest";
/// What its lane goes by, if that is not the key of the record: the aggregate id of the event. Missing in letters that
/// were written before there was one.
pub(in crate::bus) const KEY: &str = "laneway-key";
/// When it was put aside, in milliseconds since 1970.
pub(in crate::bus) const AT: &str = "laneway-at";
/// Only this group handles the record; others skip it.
pub(in crate::bus) const ONLY_GROUP: &str = "laneway-only-group";
/// What the bus is asked to do.
const CONTROL: &str = "laneway-control";
const RELEASE: &str = "release";
/// Letters of earlier owners do not count behind this.
pub(in crate::bus) const FENCE: &str = "fence";
/// The same, and what was counted before does not count any more.
pub(in crate::bus) const FENCE_ANEW: &str = "fence-anew";

const PREFIX: &str = "laneway-";

/// A reason may be a whole page; a header is not the place for it.
const LONGEST_REASON: usize = 1024;
/// Where there is hardly any room.
const BRIEF_REASON: usize = 64;

pub(in crate::bus) fn put(headers: &mut Headers, name: &str, value: &str) {
    headers.remove(name);
    headers.push_unlimited(name, Bytes::copy_from_slice(value.as_bytes()));
}

pub(in crate::bus) fn put_reason(headers: &mut Headers, reason: &str) {
    put(headers, REASON, start_of(reason, LONGEST_REASON));
}

/// The beginning of the reason, in one line: some brokers need more room for others.
pub(in crate::bus) fn put_brief_reason(headers: &mut Headers, reason: &str) {
    let line = reason.lines().next().unwrap_or_default();
    let line = start_of(line, BRIEF_REASON).replace(char::is_control, " ");
    put(headers, REASON, line.trim());
}

/// As much of a text as fits into so many bytes.
fn start_of(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

pub(in crate::bus) fn get_u64(headers: &Headers, name: &str) -> Option<u64> {
    headers.get_str(name)?.parse().ok()
}

/// What the bus is asked to do by these headers, if anything.
pub(in crate::bus) fn control(headers: &Headers) -> Option<&str> {
    if headers.is_empty() {
        return None;
    }
    headers.get_str(CONTROL)
}

pub(in crate::bus) fn put_control(headers: &mut Headers, control: &str) {
    put(headers, CONTROL, control);
}

/// The offset of the record that one with these headers stands for.
pub(in crate::bus) fn reference(headers: &Headers) -> Option<u64> {
    if headers.is_empty() {
        return None;
    }
    get_u64(headers, REFERENCE)
}

pub(in crate::bus) fn put_release(headers: &mut Headers) {
    put_control(headers, RELEASE);
}

pub(in crate::bus) fn is_release(headers: &Headers) -> bool {
    control(headers) == Some(RELEASE)
}

/// Whether a group handles a record with these headers.
pub(in crate::bus) fn is_for(headers: &Headers, group: &str) -> bool {
    headers.is_empty() || headers.get_str(ONLY_GROUP).is_none_or(|only| only == group)
}

/// The headers as their publisher wrote them.
pub(in crate::bus) fn stripped(headers: &Headers) -> Headers {
    let mut original = Headers::new();
    for (name, value) in headers.iter() {
        if !name.starts_with(PREFIX) {
            original.push_unlimited(name, value.clone());
        }
    }
    original
}
