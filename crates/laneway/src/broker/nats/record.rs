//! What is kept of a group in a partition: who has it, and what is settled.
//!
//! A [`GroupRecord`] is one entry of a bucket, changed as a whole by compare-and-set on its last revision. So an owner
//! that was replaced is fenced: its writes fail. And what is settled can never be of one owner while the partition is
//! with another.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::settle::Position;

/// The entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupRecord {
    /// The member that has it.
    pub(super) owner: Option<String>,
    /// How many owners there were.
    pub(super) epoch: u64,
    /// When the stream was made that the position is about, in nanoseconds since 1970. Another stream
    /// of the same name begins anew.
    pub(super) born: i64,
    pub(super) position: Position,
}

/// As it is stored. JSON, so that people can look at it. A later build may add fields, which this one does
/// not read and so does not stop at; what it must not misunderstand has another version.
#[derive(Serialize, Deserialize)]
struct Stored {
    version: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    epoch: u64,
    born: i64,
    /// The lowest unsettled sequence, for people.
    low: u64,
    position: String,
}

const VERSION: u8 = 1;

/// Where a group starts in partitions that it has no position for.
#[derive(Serialize, Deserialize)]
struct StoredStart {
    version: u8,
    born: i64,
    from: u64,
}

pub(super) fn encode_start(born: i64, from: u64) -> Bytes {
    let stored = StoredStart {
        version: VERSION,
        born,
        from,
    };
    serde_json::to_vec(&stored).unwrap_or_default().into()
}

/// The sequence that a group starts at; nothing if that is said of another stream.
///
/// # Errors
/// With what is wrong about the bytes.
pub(super) fn decode_start(bytes: &[u8], born: i64) -> Result<Option<u64>, String> {
    let stored: StoredStart = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if stored.version != VERSION {
        return Err(format!("version {} is not known", stored.version));
    }
    Ok((stored.born == born).then_some(stored.from))
}

impl GroupRecord {
    pub(super) fn encode(&self) -> Bytes {
        let stored = Stored {
            version: VERSION,
            owner: self.owner.clone(),
            epoch: self.epoch,
            born: self.born,
            low: self.position.low(),
            position: STANDARD_NO_PAD.encode(self.position.encode()),
        };
        serde_json::to_vec(&stored).unwrap_or_default().into()
    }

    /// # Errors
    /// With what is wrong about the bytes.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let stored: Stored = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if stored.version != VERSION {
            return Err(format!("version {} is not known", stored.version));
        }
        let position = STANDARD_NO_PAD
            .decode(stored.position.as_bytes())
            .map_err(|error| error.to_string())?;
        Ok(Self {
            owner: stored.owner,
            epoch: stored.epoch,
            born: stored.born,
            position: Position::decode(&position).map_err(|error| error.to_string())?,
        })
    }

    /// The position, as far as it is about what the stream has: a stream that was made anew, or that
    /// lost its end in a power cut, hands out numbers again that are settled here.
    pub(super) fn position_in(&self, born: i64, last: u64) -> Position {
        if self.born != born {
            return Position::at(0);
        }
        self.position.clone().up_to(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> GroupRecord {
        let mut tracker = crate::settle::Tracker::resume(Position::at(5));
        for offset in [5, 9, 12] {
            tracker.deliver(offset);
        }
        tracker.done(9);
        GroupRecord {
            owner: Some("m1".into()),
            epoch: 3,
            born: 1_700_000_000_000_000_000,
            position: tracker.position(),
        }
    }

    #[test]
    fn it_reads_back() {
        let record = record();
        assert_eq!(GroupRecord::decode(&record.encode()), Ok(record.clone()));
        let free = GroupRecord {
            owner: None,
            ..record
        };
        assert_eq!(GroupRecord::decode(&free.encode()), Ok(free));
    }

    #[test]
    fn the_fixture_of_a_record_is_what_is_read_and_written() {
        let written = String::from_utf8(record().encode().to_vec()).expect("JSON");
        let text = fixtures::text("nats-group-record-1.json", || written.clone() + "\n");
        assert_eq!(written, text.trim());
        assert_eq!(GroupRecord::decode(text.trim().as_bytes()), Ok(record()));
    }

    #[test]
    fn damage_is_told() {
        for bytes in [
            &b""[..],
            b"{}",
            br#"{"version":2,"epoch":1,"born":1,"low":0,"position":"AQA"}"#,
            br#"{"version":1,"epoch":1,"born":1,"low":0,"position":"!"}"#,
            br#"{"version":1,"epoch":1,"born":1,"low":0,"position":"CQA"}"#,
        ] {
            assert!(GroupRecord::decode(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn what_a_later_build_adds_is_passed_over() {
        let text = String::from_utf8(record().encode().to_vec()).expect("JSON");
        let later = text.replacen('{', r#"{"added":{"later":[1]},"#, 1);
        assert_eq!(GroupRecord::decode(later.as_bytes()), Ok(record()));
    }

    #[test]
    fn a_position_is_about_one_stream() {
        let record = record();
        assert_eq!(record.position_in(record.born, 12), record.position);
        assert_eq!(record.position_in(1, 12), Position::at(0));
        // The server lost everything after 8, and then after 3.
        assert_eq!(record.position_in(record.born, 8), Position::at(5));
        assert_eq!(record.position_in(record.born, 3), Position::at(4));
    }
}
