//! Which record had an offset.
//!
//! Offsets of a partition can begin anew: where a topic lives in memory and its server or process is restarted, where
//! other tools make it again, where a server loses the end of a partition in a power cut. Letters outlive that. So a
//! letter says by a digest which record it is about, and is not taken for one about another record at the same offset.

use std::fmt;

use super::headers as letter_headers;
use crate::headers::Headers;
use crate::record::Record;

/// The digest of a record: FNV-1a of its payload, 64 bits wide. Envelopes have ids, so no two of them are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::bus) struct Digest(u64);

impl Digest {
    /// Of a record of the topic. One that stands for another one says which; `None` if it was written before they did.
    pub(in crate::bus) fn of(record: &Record) -> Option<Self> {
        if letter_headers::reference(&record.headers).is_some() {
            return Self::read(&record.headers);
        }
        let hash = record.payload.iter().fold(OFFSET_BASIS, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(PRIME)
        });
        Some(Self(hash))
    }

    /// What a letter, or a record that stands for another one, says.
    pub(in crate::bus) fn read(headers: &Headers) -> Option<Self> {
        let text = headers.get_str(letter_headers::DIGEST)?;
        u64::from_str_radix(text, 16).ok().map(Self)
    }

    /// Whether two can be of one record. Those that are not known can.
    pub(in crate::bus) fn can_be(one: Option<Self>, other: Option<Self>) -> bool {
        match (one, other) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(payload: &'static str) -> Digest {
        let record = Record {
            payload: payload.into(),
            ..Record::default()
        };
        Digest::of(&record).expect("it stands for no other")
    }

    /// From the authors' test suite (`test_fnv.c`, `fnv1a_64_vector`): letters are read by other builds.
    #[test]
    fn a_digest_is_the_same_in_every_build() {
        assert_eq!(of("").to_string(), "cbf29ce484222325");
        assert_eq!(of("a").to_string(), "af63dc4c8601ec8c");
        assert_eq!(of("foobar").to_string(), "85944171f73967e8");
    }

    #[test]
    fn a_digest_reads_back_and_may_be_missing() {
        let mut headers = Headers::new();
        assert_eq!(Digest::read(&headers), None);
        letter_headers::put(
            &mut headers,
            letter_headers::DIGEST,
            &of("foobar").to_string(),
        );
        assert_eq!(Digest::read(&headers), Some(of("foobar")));
        assert!(Digest::can_be(None, Some(of("a"))));
        assert!(!Digest::can_be(Some(of("b")), Some(of("a"))));
    }
}
