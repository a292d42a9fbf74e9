//! The keys of rows.

use crate::store::DueKey;
use crate::{StateName, Timestamp};

/// The number of the last synced commit. No other table has such a key.
pub(super) const COMMIT: &[u8] = b"\0commit";
/// The number that the next message gets, at least.
pub(super) const NEXT_SERIAL: &[u8] = b"\0serial";
/// Nothing waits before this place.
pub(super) const FLOOR: &[u8] = b"\0floor";
/// All that was claimed stood before this moment. Not there if no process with claims left the store in disorder.
pub(super) const CLAIMED: &[u8] = b"\0claimed";
/// Which messages earlier processes may have sent.
pub(super) const DOUBT: &[u8] = b"\0doubt";
/// Up to where old keys were forgotten.
pub(super) const KEYS_FORGOTTEN: &[u8] = b"\0keys";
/// Before the name of a topic: its counts.
pub(super) const TOPIC: u8 = b't';

pub(super) fn due_key(due_key: DueKey) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&due_key.at.as_millis().to_be_bytes());
    key[8..].copy_from_slice(&due_key.serial.to_be_bytes());
    key
}

pub(super) fn read_due_key(key: &[u8]) -> Option<DueKey> {
    let (at, serial) = key.split_first_chunk::<8>()?;
    Some(DueKey {
        at: Timestamp::from_millis(u64::from_be_bytes(*at)),
        serial: u64::from_be_bytes(serial.try_into().ok()?),
    })
}

pub(super) fn ended(state: StateName, at: DueKey) -> [u8; 17] {
    let mut key = [0; 17];
    key[0] = tag(state);
    key[1..].copy_from_slice(&due_key(at));
    key
}

pub(super) fn read_ended(key: &[u8]) -> Option<DueKey> {
    read_due_key(key.get(1..)?)
}

/// A message, by its topic and state. The length comes first, so that no topic is the beginning of another.
pub(super) fn of_topic(topic: &str, state: StateName, at: DueKey) -> Vec<u8> {
    let length = u16::try_from(topic.len()).unwrap_or(u16::MAX);
    [
        &length.to_be_bytes()[..],
        topic.as_bytes(),
        &[tag(state)],
        &due_key(at),
    ]
    .concat()
}

pub(super) fn read_of_topic(key: &[u8]) -> Option<DueKey> {
    read_due_key(key.last_chunk::<16>()?)
}

/// Up to where ended messages of a state were forgotten.
pub(super) fn forgotten(state: StateName) -> Vec<u8> {
    [b"\0ended", &[tag(state)][..]].concat()
}

/// A letter for each state that is stored. What fires is stored as scheduled.
pub(super) fn tag(state: StateName) -> u8 {
    match state {
        StateName::Scheduled | StateName::Firing => b's',
        StateName::Delivered => b'd',
        StateName::Dead => b'x',
        StateName::Withdrawn => b'w',
    }
}

pub(super) fn state(tag: u8) -> Option<StateName> {
    Some(match tag {
        b's' => StateName::Scheduled,
        b'd' => StateName::Delivered,
        b'x' => StateName::Dead,
        b'w' => StateName::Withdrawn,
        _ => return None,
    })
}

/// What an idempotency key was used for.
pub(super) fn used(key: &str) -> Vec<u8> {
    [b"k", key.as_bytes()].concat()
}

/// The same, by age.
pub(super) fn used_at(at: Timestamp, key: &str) -> Vec<u8> {
    [b"a", &at.as_millis().to_be_bytes()[..], key.as_bytes()].concat()
}

/// The first of those that were used at this moment.
pub(super) fn used_from(at: Timestamp) -> Vec<u8> {
    used_at(at, "")
}

pub(super) fn read_used_at(key: &[u8]) -> Option<(Timestamp, &str)> {
    let (at, key) = key.strip_prefix(b"a")?.split_first_chunk::<8>()?;
    let at = Timestamp::from_millis(u64::from_be_bytes(*at));
    Some((at, std::str::from_utf8(key).ok()?))
}

pub(super) fn topic(name: &str) -> Vec<u8> {
    [&[TOPIC], name.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_sort_as_their_keys_do() {
        let due_keys = [(0, 9), (1, 0), (1, 1), (256, 0), (u64::MAX, u64::MAX)];
        let due_keys = due_keys.map(|(at, serial)| DueKey {
            at: Timestamp::from_millis(at),
            serial,
        });
        assert!(due_keys.is_sorted_by_key(|at| due_key(*at)));
        for at in due_keys {
            assert_eq!(read_due_key(&due_key(at)), Some(at));
            assert_eq!(read_ended(&ended(StateName::Dead, at)), Some(at));
            assert_eq!(
                read_of_topic(&of_topic("topic", StateName::Dead, at)),
                Some(at)
            );
        }
        assert_eq!(read_due_key(&[1; 15]), None);
        assert_eq!(read_due_key(&[1; 17]), None);
    }

    #[test]
    fn messages_of_a_topic_lie_together_in_the_order_of_their_places() {
        let key = |topic, state, millis| {
            of_topic(topic, state, DueKey::at(Timestamp::from_millis(millis)))
        };
        let keys = [
            key("a", StateName::Delivered, 7),
            key("a", StateName::Scheduled, 1),
            key("a", StateName::Scheduled, 2),
            key("b", StateName::Scheduled, 1),
            // The state of one topic is not the end of the name of another.
            key("as", StateName::Scheduled, 1),
        ];
        assert!(keys.is_sorted());
    }

    #[test]
    fn ages_read_back() {
        let at = Timestamp::from_millis(7);
        assert_eq!(read_used_at(&used_at(at, "key")), Some((at, "key")));
        assert_eq!(read_used_at(b"a123"), None);
        assert_eq!(read_used_at(&used("key")), None);
    }
}
