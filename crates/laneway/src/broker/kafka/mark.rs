//! The metadata of a committed offset: the owner of the partition, its epoch, and what is done above the offset.
//!
//! Kafka keeps a text of up to 4096 bytes with every committed offset. [`Mark`] is base64 of a version, the
//! epoch, the birth of the topic, the [`Owner`] and the [`Position`]. The first version had no owner. A text
//! of a later version counts for nothing, and its offset as it is.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use xxhash_rust::xxh3::xxh3_64;

use crate::settle::Position;

/// The longest text that a broker takes unless it is set up otherwise (`offset.metadata.max.bytes`).
const LONGEST: usize = 4096;

/// What version, epoch, birth and owner take.
const HEAD: usize = 25;

/// The most bytes that a position may take.
pub(super) const ROOM: usize = LONGEST / 4 * 3 - HEAD;

const VERSION: u8 = 2;
const WITHOUT_OWNER: u8 = 1;

/// The half of an owner that stands for its name.
const HIGH: u64 = !(u32::MAX as u64);

/// The process that has a partition, and the name that it has in its groups if it has one (static
/// membership).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner(u64);

impl Owner {
    /// The last owner has released it, or is not known.
    pub(super) const NONE: Self = Self(0);

    /// A process that begins.
    pub(super) fn new(instance: Option<&str>) -> Self {
        let name = instance.map_or(0, |instance| xxh3_64(instance.as_bytes()) | (1 << 32));
        let process = rand::random_range(1..=u64::from(u32::MAX));
        Self((name & HIGH) | process)
    }

    /// Whether it has a name.
    pub(super) fn has_name(self) -> bool {
        self.0 & HIGH != 0
    }

    /// Whether this is another process of the same name.
    pub(super) fn is_namesake(self, other: Self) -> bool {
        self.has_name() && self.0 & HIGH == other.0 & HIGH && self != other
    }
}

/// What is committed for a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// Counts the owners.
    pub(super) epoch: u64,
    /// The birth of the topic that it is about. Another one of the same name begins anew.
    pub(super) born: u64,
    pub(super) owner: Owner,
    pub(super) position: Position,
}

impl Mark {
    /// The text that is committed with [`Position::low`].
    pub(super) fn encode(&self) -> String {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.extend_from_slice(&self.born.to_le_bytes());
        bytes.extend_from_slice(&self.owner.0.to_le_bytes());
        bytes.extend(self.position.encode());
        STANDARD_NO_PAD.encode(bytes)
    }

    /// What was committed, if Laneway wrote it and the offset has not been moved since.
    fn decode(text: &str, offset: u64) -> Option<Self> {
        let bytes = STANDARD_NO_PAD.decode(text).ok()?;
        let (&version, rest) = bytes.split_first()?;
        let (epoch, rest) = rest.split_first_chunk()?;
        let (born, rest) = rest.split_first_chunk()?;
        let (owner, rest) = match version {
            VERSION => {
                let (owner, rest) = rest.split_first_chunk()?;
                (Owner(u64::from_le_bytes(*owner)), rest)
            }
            WITHOUT_OWNER => (Owner::NONE, rest),
            _ => return None,
        };
        let position = Position::decode(rest).ok()?;
        (position.low() == offset).then(|| Self {
            epoch: u64::from_le_bytes(*epoch),
            born: u64::from_le_bytes(*born),
            owner,
            position,
        })
    }

    /// What a committed offset and its text say of the topic that was born then. Offsets that were
    /// committed or reset with other tools count as they are.
    pub(super) fn read(text: &str, offset: u64, born: u64) -> Option<Self> {
        match Self::decode(text, offset) {
            Some(mark) if mark.born != born => None,
            Some(mark) => Some(mark),
            None => Some(Self::at(offset, born)),
        }
    }

    /// A place in a topic of that birth, and no owner yet.
    pub(super) fn at(offset: u64, born: u64) -> Self {
        Self {
            epoch: 0,
            born,
            owner: Owner::NONE,
            position: Position::at(offset),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settle::Tracker;

    fn mark() -> Mark {
        let mut tracker = Tracker::resume(Position::at(5));
        for offset in [5, 9, 12] {
            tracker.deliver(offset);
        }
        tracker.done(9);
        Mark {
            epoch: 1_700_000_003,
            born: u64::MAX,
            owner: Owner::new(Some("one")),
            position: tracker.position(),
        }
    }

    #[test]
    fn it_reads_back() {
        let mark = mark();
        assert_eq!(Mark::read(&mark.encode(), 5, mark.born), Some(mark));
    }

    #[test]
    fn the_fixture_of_a_mark_is_what_is_read_and_written() {
        let mark = Mark {
            owner: Owner(0x0123_4567_89ab_cdef),
            ..mark()
        };
        let text = fixtures::text("kafka-mark-2.txt", || mark.encode() + "\n");
        assert_eq!(mark.encode(), text.trim());
        assert_eq!(Mark::read(text.trim(), 5, mark.born), Some(mark));
    }

    #[test]
    fn marks_without_an_owner_read_back() {
        let mark = Mark {
            owner: Owner::NONE,
            ..mark()
        };
        let mut bytes = STANDARD_NO_PAD.decode(mark.encode()).expect("base64");
        bytes.drain(17..25);
        bytes[0] = WITHOUT_OWNER;
        let text = STANDARD_NO_PAD.encode(bytes);
        assert_eq!(Mark::read(&text, 5, mark.born), Some(mark));
    }

    #[test]
    fn only_another_process_of_the_same_name_is_a_namesake() {
        let one = Owner::new(Some("one"));
        assert!(one.is_namesake(Owner::new(Some("one"))));
        for other in [one, Owner::new(Some("two")), Owner::new(None), Owner::NONE] {
            assert!(!one.is_namesake(other), "{one:?} {other:?}");
        }
        assert!(!Owner::new(None).is_namesake(Owner::new(None)));
    }

    #[test]
    fn a_mark_is_about_one_topic() {
        assert_eq!(Mark::read(&mark().encode(), 5, 1), None);
    }

    #[test]
    fn offsets_of_others_count_as_they_are() {
        let plain = |offset| Mark::at(offset, 1);
        let later = STANDARD_NO_PAD.encode([9; 60]);
        for text in ["", "note", "AQ", "////", &later] {
            assert_eq!(Mark::read(text, 8, 1), Some(plain(8)), "{text}");
        }
        // A tool has reset the offset and left the text there.
        let text = mark().encode();
        assert_eq!(Mark::read(&text, 3, 1), Some(plain(3)));
    }

    #[test]
    fn whatever_fits_is_taken_by_a_broker() {
        let mut tracker = Tracker::resume(Position::at(u64::from(u32::MAX)));
        let mut offset = u64::from(u32::MAX);
        while tracker.most_bytes_with(offset) <= ROOM {
            tracker.deliver(offset);
            offset += 1;
        }
        let began = u64::from(u32::MAX);
        assert!(offset - began > 20_000, "only {}", offset - began);
        for done in (began + 1..offset).filter(|offset| offset % 3 != 0) {
            tracker.done(done);
        }
        let mark = Mark {
            position: tracker.position(),
            ..mark()
        };
        assert!(mark.encode().len() <= LONGEST);
    }
}
