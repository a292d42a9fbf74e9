//! What is kept with a committed offset: who has the partition for the how-manieth time, and what is
//! done above the offset.
//!
//! Kafka keeps a text of up to 4096 bytes with every committed offset. Ours is base64 of a version, the
//! epoch, the birth of the topic and the [`Position`].

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use crate::settle::Position;

/// The longest text that a broker takes unless it is set up otherwise (`offset.metadata.max.bytes`).
const LONGEST: usize = 4096;

/// What version, epoch and birth take.
const HEAD: usize = 17;

/// The most bytes that a position may take.
pub(super) const ROOM: usize = LONGEST / 4 * 3 - HEAD;

const VERSION: u8 = 1;

/// What is committed for a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// Counts the owners.
    pub(super) epoch: u64,
    /// The birth of the topic that it is about. Another one of the same name begins anew.
    pub(super) born: u64,
    pub(super) position: Position,
}

impl Mark {
    /// The text that is committed with [`Position::low`].
    pub(super) fn encode(&self) -> String {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.extend_from_slice(&self.born.to_le_bytes());
        bytes.extend(self.position.encode());
        STANDARD_NO_PAD.encode(bytes)
    }

    /// What was committed, if we wrote it and nobody moved the offset since.
    fn decode(text: &str, offset: u64) -> Option<Self> {
        let bytes = STANDARD_NO_PAD.decode(text).ok()?;
        let (&version, rest) = bytes.split_first()?;
        let (epoch, rest) = rest.split_first_chunk()?;
        let (born, rest) = rest.split_first_chunk()?;
        let position = Position::decode(rest).ok()?;
        (version == VERSION && position.low() == offset).then(|| Self {
            epoch: u64::from_le_bytes(*epoch),
            born: u64::from_le_bytes(*born),
            position,
        })
    }

    /// What a committed offset and its text say of the topic that was born then. Offsets that were
    /// committed by somebody else, or reset with other tools, count as they are.
    pub(super) fn read(text: &str, offset: u64, born: u64) -> Option<Self> {
        match Self::decode(text, offset) {
            Some(mark) if mark.born != born => None,
            Some(mark) => Some(mark),
            None => Some(Self {
                epoch: 0,
                born,
                position: Position::at(offset),
            }),
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
            position: tracker.position(),
        }
    }

    #[test]
    fn it_reads_back() {
        let mark = mark();
        assert_eq!(Mark::read(&mark.encode(), 5, mark.born), Some(mark));
    }

    #[test]
    fn a_mark_is_about_one_topic() {
        assert_eq!(Mark::read(&mark().encode(), 5, 1), None);
    }

    #[test]
    fn offsets_of_others_count_as_they_are() {
        let plain = |offset| Mark {
            epoch: 0,
            born: 1,
            position: Position::at(offset),
        };
        for text in ["", "note", "AQ", "////"] {
            assert_eq!(Mark::read(text, 8, 1), Some(plain(8)), "{text}");
        }
        // Somebody has reset the offset and left the text there.
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
