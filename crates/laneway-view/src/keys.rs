//! The keys of a view, and which of them a row has.
//!
//! | first byte | then | value |
//! |---|---|---|
//! | `h` | | the head, and the bytes of all rows |
//! | `c` | topic | its name and counts |
//! | `r` | id | a row without its body |
//! | `b` | id | the body |
//! | `s` | state, sort time, id | nothing: rows by state |
//! | `t` | topic, state, sort time, id | nothing: rows by topic |
//! | `e` | ended or last answered, id | nothing: rows that can be forgotten |
//!
//! Sort time is `next` of scheduled rows, and the end of ended ones. What is replayed or purged is in no list.

use laneway_cluster::record::{Image, State};
use laneway_delay::{MessageId, StateName, Timestamp, TopicCounts};

pub(crate) const HEAD: &[u8] = b"h";
pub(crate) const COUNTS: u8 = b'c';
pub(crate) const ROW: u8 = b'r';
pub(crate) const BODY: u8 = b'b';
/// Before the sort time in keys of rows that can be forgotten.
pub(crate) const FORGETTABLE: &[u8] = b"e";

/// A longer name of a topic stands in keys by its hash: the engine takes keys of up to 64 KiB.
const LONGEST_TOPIC: usize = 1024;

pub(crate) fn of_id(kind: u8, id: &MessageId) -> Vec<u8> {
    [&[kind], id.as_str().as_bytes()].concat()
}

pub(crate) fn counts(topic: &str) -> Vec<u8> {
    [&[COUNTS][..], &of_topic(topic)].concat()
}

/// A topic within a key. The length comes first, so that no topic is the beginning of another.
fn of_topic(topic: &str) -> Vec<u8> {
    match u16::try_from(topic.len()) {
        Ok(length) if topic.len() <= LONGEST_TOPIC => {
            [&length.to_be_bytes()[..], topic.as_bytes()].concat()
        }
        _ => [
            &u16::MAX.to_be_bytes()[..],
            blake3::hash(topic.as_bytes()).as_bytes(),
        ]
        .concat(),
    }
}

/// What stands before the sort time in keys of rows in a state, of one topic or of all.
pub(crate) fn prefix(topic: Option<&str>, list: List) -> Vec<u8> {
    match topic {
        Some(topic) => [b"t", &of_topic(topic)[..], &[list.tag()]].concat(),
        None => vec![b's', list.tag()],
    }
}

/// The key of a row, or where the rows of that sort time begin.
pub(crate) fn place(prefix: &[u8], at: Timestamp, id: Option<&MessageId>) -> Vec<u8> {
    let id = id.map_or("", MessageId::as_str);
    [prefix, &at.as_millis().to_be_bytes(), id.as_bytes()].concat()
}

/// Sort time and id of a key with that prefix.
pub(crate) fn read_place(prefix: &[u8], key: &[u8]) -> Option<(Timestamp, MessageId)> {
    let (at, id) = key.strip_prefix(prefix)?.split_first_chunk::<8>()?;
    let id = MessageId::new(std::str::from_utf8(id).ok()?).ok()?;
    Some((Timestamp::from_millis(u64::from_be_bytes(*at)), id))
}

/// The first key behind all that begin with the prefix, whose last byte is below 255.
pub(crate) fn behind(prefix: &[u8]) -> Vec<u8> {
    let mut key = prefix.to_vec();
    if let Some(last) = key.last_mut() {
        *last = last.saturating_add(1);
    }
    key
}

/// A list of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    Scheduled,
    Delivered,
    Dead,
    Withdrawn,
}

impl List {
    /// The list of a state. None is that of rows that fire: a view does not know them.
    pub(crate) const fn of(state: StateName) -> Option<Self> {
        match state {
            StateName::Scheduled => Some(Self::Scheduled),
            StateName::Delivered => Some(Self::Delivered),
            StateName::Dead => Some(Self::Dead),
            StateName::Withdrawn => Some(Self::Withdrawn),
            _ => None,
        }
    }

    const fn tag(self) -> u8 {
        match self {
            Self::Scheduled => b's',
            Self::Delivered => b'd',
            Self::Dead => b'x',
            Self::Withdrawn => b'w',
        }
    }

    pub(crate) const fn count(self, counts: &mut TopicCounts) -> &mut u64 {
        match self {
            Self::Scheduled => &mut counts.scheduled,
            Self::Delivered => &mut counts.delivered,
            Self::Dead => &mut counts.dead,
            Self::Withdrawn => &mut counts.withdrawn,
        }
    }
}

/// In which list a row stands, and where. What was stopped stands with what was withdrawn.
pub(crate) fn listed(image: &Image) -> Option<(List, Timestamp)> {
    match &image.state {
        State::Scheduled => Some((List::Scheduled, image.next)),
        State::Delivered { at } => Some((List::Delivered, *at)),
        State::Dead { at, .. } => Some((List::Dead, *at)),
        State::Withdrawn { at } | State::Stopped { at } => Some((List::Withdrawn, *at)),
        _ => None,
    }
}

/// Since when nothing has happened to a row that can be forgotten. A dead letter waits for a person.
fn idle_since(image: &Image) -> Option<Timestamp> {
    let answered = image.answers.values().map(|answered| answered.at).max();
    match &image.state {
        State::Dead { .. } => None,
        State::Absent => answered,
        state => state
            .ended()
            .max(answered)
            .filter(|_| state.ended().is_some()),
    }
}

/// All keys without a value that a row has.
pub(crate) fn entries(id: &MessageId, image: &Image) -> Vec<Vec<u8>> {
    let mut entries = Vec::with_capacity(3);
    if let Some((list, at)) = listed(image) {
        entries.push(place(&prefix(None, list), at, Some(id)));
        entries.push(place(&prefix(Some(&image.topic), list), at, Some(id)));
    }
    if let Some(since) = idle_since(image) {
        entries.push(place(FORGETTABLE, since, Some(id)));
    }
    entries
}
