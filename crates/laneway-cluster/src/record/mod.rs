//! What the log of a shard carries.
//!
//! A [`Record`] is an [`Owner`] that announces itself, or a [`Fact`] with rows. Only owners write records, and whether one
//! counts is decided by [`apply`](crate::apply) alone: a record is a claim until it is read back.
//!
//! Every record names its [`Basis`]: how far its writer had read the log, and what the writer had made of it by then. A
//! writer whose view went wrong thereby says so itself.
//!
//! # Bytes
//!
//! ```text
//! "LWF" format:u8 kind:u8 … check:8       numbers are varints, texts and bytes stand behind their length
//! ```
//!
//! The check is the start of the BLAKE3 hash of all that is before it. A record of many rows has at most
//! [`MAX_BYTES`]; one row alone may be larger, up to what the broker takes.
//!
//! | bytes | [`decode`](Record::decode) says | a reader |
//! |---|---|---|
//! | not beginning with `LWF` | [`Unreadable::Foreign`] | passes them over, loudly |
//! | of a later format, of an unknown kind | [`Unreadable::Format`], [`Unreadable::Kind`] | stops the shard |
//! | of ours, but damaged | [`Unreadable::Damaged`] | stops the shard |
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `codec` | records as bytes, and back |
//! | `image` | all that is known of one message; it is what a carried row holds |
//! | `pack` | as many rows as fit into a fact |
//! | `parts` | what images are made of, as bytes |
//! | `rows` | the rows of a fact |
//! | `wire` | numbers and texts as bytes |

pub(crate) mod codec;
mod image;
mod pack;
pub(crate) mod parts;
mod rows;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod wire;

use std::fmt;

pub(crate) use codec::FORMAT;
pub use codec::Unreadable;
pub use image::{
    Answered, Doubt, Event, HistoryEvent, Image, MAX_ANSWERS, MAX_DOUBTS, MAX_EVENTS, MAX_REASON,
    State,
};
pub use pack::{MAX_BYTES, Pack};
pub(crate) use parts::put_image as image_bytes;
pub use rows::{
    Answer, Cause, Change, Close, Command, Forgotten, MessageRow, Next, Open, Refusal, Row, Verb,
};

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Record {
    /// A center announces that it owns the shard.
    Owner(Owner),
    /// The owner of the shard decided something.
    Fact(Fact),
}

/// A center announces that it owns the shard from here on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// One more than the highest in the log.
    pub epoch: u64,
    /// Which of the centers that took this epoch it is.
    pub reign: Reign,
    /// What the center had read.
    pub basis: Basis,
}

/// Decisions of an owner, in the order in which they were made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fact {
    /// The epoch of its owner.
    pub epoch: u64,
    /// The reign of its owner.
    pub reign: Reign,
    /// Counts the facts of a reign, from 1.
    pub sequence: u64,
    /// What the owner had read.
    pub basis: Basis,
    /// What was decided. None: a barrier, which only has to be read back.
    pub rows: Vec<Row>,
}

/// How far a writer had read the log, and what it had made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Basis {
    /// The offset behind the last record that was read; 0 if none was.
    pub read: u64,
    /// The chain over all records up to there.
    pub chain: Chain,
    /// The digest of all rows as of there.
    pub digest: RowDigest,
}

/// Which owner it is, drawn at random for every announcement: epochs can be taken twice, when a log lost its end
/// or two centers announce themselves at once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reign(pub [u8; 16]);

/// A process of a worker: drawn at its start, so that a worker that returns is another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance(pub [u8; 16]);

/// The hash over all records of a log up to some offset.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Chain(pub [u8; 32]);

/// The digest of a set of rows: the sum of their hashes, so that a row is added and taken away at its own cost.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowDigest(pub [u64; 4]);

/// What a client asked for, as a SHA-256 of the request as it was written. A due time that was computed from a delay is
/// not part of it, or the same request would be another one when it is sent again.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestDigest(pub [u8; 32]);

/// The key of a command, hashed: clients choose keys of any length, and rows have to stay small.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub [u8; 16]);

/// How a reign begins that fences a shard off, until all messages that are moved into it are there.
const FENCE: [u8; 6] = *b"LWmove";

/// How the digest of a message begins of which only the fingerprint is known.
const FINGERPRINT_ONLY: [u8; 24] = *b"laneway fingerprint only";

impl Reign {
    /// A fence: as long as its owner is the last one, no center announces itself. `mover` is what is moved, always the same for
    /// the same; `draw` is drawn anew for every announcement.
    #[must_use]
    pub fn fence(mover: [u8; 6], draw: [u8; 4]) -> Self {
        let mut reign = [0; 16];
        reign[..6].copy_from_slice(&FENCE);
        reign[6..12].copy_from_slice(&mover);
        reign[12..].copy_from_slice(&draw);
        Self(reign)
    }

    /// What is moved, if this is a fence.
    #[must_use]
    pub fn mover(&self) -> Option<[u8; 6]> {
        let rest = self.0.strip_prefix(&FENCE)?;
        rest.first_chunk().copied()
    }
}

impl RequestDigest {
    /// The digest of a request of which only the fingerprint is known: that of a message which comes from one machine.
    #[must_use]
    pub fn of_fingerprint(fingerprint: u64) -> Self {
        Self([0; 32])
            .with_fingerprint(fingerprint)
            .begun_with(&FINGERPRINT_ONLY)
    }

    /// The same digest, ended by the fingerprint of the request.
    #[must_use]
    pub fn with_fingerprint(mut self, fingerprint: u64) -> Self {
        self.0[24..].copy_from_slice(&fingerprint.to_le_bytes());
        self
    }

    fn begun_with(mut self, beginning: &[u8; 24]) -> Self {
        self.0[..24].copy_from_slice(beginning);
        self
    }

    /// Whether the same was asked for. Where only the fingerprint of one is known, that decides.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        let by_fingerprint = |digest: &Self| digest.0[..24] == FINGERPRINT_ONLY;
        if by_fingerprint(self) || by_fingerprint(other) {
            return self.0[24..] == other.0[24..];
        }
        self == other
    }
}

impl Key {
    /// The key of a command as the client wrote it.
    #[must_use]
    pub fn of(written: &str) -> Self {
        let mut key = [0; 16];
        key.copy_from_slice(&blake3::hash(written.as_bytes()).as_bytes()[..16]);
        Self(key)
    }
}

impl Chain {
    /// The chain of an empty log.
    pub const START: Self = Self([0; 32]);

    /// The chain one record further.
    #[must_use]
    pub fn then(self, record: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0).update(record);
        Self(*hasher.finalize().as_bytes())
    }
}

impl RowDigest {
    /// The digest of no rows.
    pub const EMPTY: Self = Self([0; 4]);

    /// With a row.
    #[must_use]
    pub fn with(self, row: Self) -> Self {
        Self(std::array::from_fn(|lane| {
            self.0[lane].wrapping_add(row.0[lane])
        }))
    }

    /// Without a row.
    #[must_use]
    pub fn without(self, row: Self) -> Self {
        Self(std::array::from_fn(|lane| {
            self.0[lane].wrapping_sub(row.0[lane])
        }))
    }

    /// The digest of one row.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let hash = blake3::hash(bytes);
        let mut lanes = [0; 4];
        for (lane, bytes) in lanes.iter_mut().zip(hash.as_bytes().chunks_exact(8)) {
            *lane = bytes
                .iter()
                .rev()
                .fold(0, |lane, byte| lane << 8 | u64::from(*byte));
        }
        Self(lanes)
    }
}

impl Record {
    /// What the writer had read.
    #[must_use]
    pub fn basis(&self) -> &Basis {
        match self {
            Self::Owner(owner) => &owner.basis,
            Self::Fact(fact) => &fact.basis,
        }
    }
}

fn hexadecimal(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    // Enough to tell them apart in a log line.
    for byte in bytes.iter().take(4) {
        write!(f, "{byte:02x}")?;
    }
    Ok(())
}

macro_rules! shown_as_digits {
    ($($name:ident),*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                hexadecimal(f, &self.0)
            }
        }
    )*};
}

shown_as_digits!(Reign, Instance, Chain, RequestDigest, Key);

impl fmt::Debug for RowDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0[0] >> 32)
    }
}
