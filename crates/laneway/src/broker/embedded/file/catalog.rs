//! What the store knows beside the records: topics, where their records lie, positions.
//!
//! One keyspace of small rows, loaded when the store is opened. Every value is behind a checksum
//! that covers its key, too.

pub(super) use laneway_disk::{numbers, read_numbers, sealed, unsealed};

use super::varint::{Broken, Reader};

/// A row of the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// The number of the last synced commit.
    Commit,
    /// The number that the next new topic gets.
    NextTopic,
    /// A topic: its declaration.
    Topic(u32),
    /// Where a partition begins.
    Start(u32, u32),
    /// From this offset on, the records of a partition are in a certain segment.
    Span(u32, u32, u64),
    /// What a group has settled in a partition.
    Position(u32, u32, String),
}

impl Key {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(24);
        let (tag, topic, partition) = match *self {
            Self::Commit => (b'c', None, None),
            Self::NextTopic => (b'n', None, None),
            Self::Topic(topic) => (b't', Some(topic), None),
            Self::Start(topic, partition) => (b'a', Some(topic), Some(partition)),
            Self::Span(topic, partition, _) => (b's', Some(topic), Some(partition)),
            Self::Position(topic, partition, _) => (b'p', Some(topic), Some(partition)),
        };
        bytes.push(tag);
        for number in [topic, partition].into_iter().flatten() {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        match self {
            Self::Span(_, _, first) => bytes.extend_from_slice(&first.to_be_bytes()),
            Self::Position(_, _, group) => bytes.extend_from_slice(group.as_bytes()),
            _ => {}
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Broken> {
        let mut reader = Reader::new(bytes);
        let key = match reader.take(1)? {
            b"c" => Self::Commit,
            b"n" => Self::NextTopic,
            b"t" => Self::Topic(number(&mut reader)?),
            b"a" => Self::Start(number(&mut reader)?, number(&mut reader)?),
            b"s" => {
                let (topic, partition) = (number(&mut reader)?, number(&mut reader)?);
                let first = reader.array().map(u64::from_be_bytes)?;
                Self::Span(topic, partition, first)
            }
            b"p" => {
                let (topic, partition) = (number(&mut reader)?, number(&mut reader)?);
                let at = reader.position();
                let group = std::str::from_utf8(reader.rest()).map_err(|_| Broken { at })?;
                return Ok(Self::Position(topic, partition, group.to_owned()));
            }
            _ => return Err(Broken { at: 0 }),
        };
        reader.finish()?;
        Ok(key)
    }
}

fn number(reader: &mut Reader<'_>) -> Result<u32, Broken> {
    reader.array().map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_key() -> impl Strategy<Value = Key> {
        prop_oneof![
            Just(Key::Commit),
            Just(Key::NextTopic),
            any::<u32>().prop_map(Key::Topic),
            any::<(u32, u32)>().prop_map(|(topic, partition)| Key::Start(topic, partition)),
            any::<(u32, u32, u64)>()
                .prop_map(|(topic, partition, first)| Key::Span(topic, partition, first)),
            (any::<u32>(), any::<u32>(), ".{0,20}")
                .prop_map(|(topic, partition, group)| Key::Position(topic, partition, group)),
        ]
    }

    proptest! {
        #[test]
        fn keys_read_back(key in any_key()) {
            prop_assert_eq!(Key::decode(&key.encode()), Ok(key));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
            let _ = Key::decode(&bytes);
        }
    }

    #[test]
    fn spans_sort_by_their_first_offset() {
        let key = |first| Key::Span(1, 2, first).encode();
        assert!(key(3) < key(300));
        assert!(Key::Span(1, 2, u64::MAX).encode() < Key::Span(1, 3, 0).encode());
    }
}
