//! Heads and rows as bytes, for views on disk.
//!
//! ```text
//! "LWH" format:u8 head …      "LWK" format:u8 row …      numbers are varints, texts and bytes stand behind their length
//! ```
//!
//! Neither has a check of its own: a view puts one around them that covers their keys, too. Whatever the bytes are,
//! decoding answers with a [`StoredError`] and does not panic.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::{Head, Identity, Kept, Opened, Stop, Stub};
use crate::record::codec::{Found, Inside, basis, digest, put_basis, put_digest};
use crate::record::parts::{id, image, put_id, put_image};
use crate::record::wire::{Broken, Read, Reader, put, put_bytes};
use crate::record::{Chain, Image, Reign, Unreadable};

const HEAD: &[u8] = b"LWH";
const KEPT: &[u8] = b"LWK";

/// The newest format that is read and written.
const FORMAT: u8 = 1;

/// Why bytes are not a head, or not a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoredError {
    /// Another version of Laneway wrote it.
    #[error("it is of format {found}, and {supported} is the one that is read here", supported = FORMAT)]
    Format {
        /// Its format.
        found: u8,
    },
    /// It is not as it was written.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
}

impl From<Inside> for StoredError {
    fn from(inside: Inside) -> Self {
        match inside {
            Inside::Broken(broken) => broken.into(),
            Inside::Kind(_) => Self::Damaged("something in it is of an unknown kind"),
        }
    }
}

impl From<Broken> for StoredError {
    fn from(broken: Broken) -> Self {
        Self::Damaged(broken.0)
    }
}

/// A reader behind the magic and the format.
fn begin<'a>(bytes: &'a Bytes, magic: &[u8]) -> Result<Reader<'a>, StoredError> {
    let Some(behind) = bytes.strip_prefix(magic) else {
        return Err(StoredError::Damaged("it begins with something else"));
    };
    let mut from = Reader::new(bytes, behind);
    match from.byte()? {
        FORMAT => Ok(from),
        found => Err(StoredError::Format { found }),
    }
}

fn end<T>(from: &Reader<'_>, read: T) -> Result<T, StoredError> {
    if from.is_empty() {
        Ok(read)
    } else {
        Err(StoredError::Damaged("something is behind its end"))
    }
}

impl Kept {
    /// The row as a view keeps it.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut into = Vec::with_capacity(192 + self.image.body.len());
        into.extend_from_slice(KEPT);
        into.push(FORMAT);
        put(&mut into, self.version);
        put(&mut into, self.image_at);
        put(&mut into, self.changed_at);
        put_bytes(&mut into, &self.image.body);
        put_image(&mut into, &self.image);
        into.into()
    }

    /// A row as a view kept it. Its body is a slice of `bytes`.
    ///
    /// # Errors
    /// [`StoredError`], whatever the bytes are.
    pub fn decode(bytes: &Bytes) -> Result<Self, StoredError> {
        let mut from = begin(bytes, KEPT)?;
        let (version, image_at, changed_at) = (from.number()?, from.number()?, from.number()?);
        let body = from.bytes()?;
        let image = Image {
            body,
            ..image(&mut from)?
        };
        let kept = Self {
            version,
            image_at,
            changed_at,
            image,
        };
        end(&from, kept)
    }
}

impl Head {
    /// The head as a view keeps it.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut into = Vec::with_capacity(512 + 80 * self.marks.len());
        into.extend_from_slice(HEAD);
        into.push(FORMAT);
        put_identity(&mut into, &self.identity);
        put(&mut into, self.next);
        put(&mut into, self.epoch);
        into.extend_from_slice(&self.reign.0);
        put(&mut into, self.sequence);
        into.extend_from_slice(&self.last.0);
        into.extend_from_slice(&self.chain.0);
        put_digest(&mut into, self.digest);
        put(&mut into, self.rows);
        put(&mut into, self.without_image);
        put_open(&mut into, self.open);
        into.push(u8::from(self.is_complete));
        put(&mut into, self.forgotten);
        put(&mut into, self.stubs.len() as u64);
        for (id, stub) in &self.stubs {
            put_id(&mut into, id);
            put(&mut into, stub.version);
            into.push(u8::from(stub.is_gone));
        }
        put(&mut into, self.marks.len() as u64);
        for mark in &self.marks {
            put_basis(&mut into, mark);
        }
        put_stop(&mut into, self.stopped.as_ref());
        into.into()
    }

    /// A head as a view kept it.
    ///
    /// # Errors
    /// [`StoredError`], whatever the bytes are.
    pub fn decode(bytes: &Bytes) -> Result<Self, StoredError> {
        let mut from = begin(bytes, HEAD)?;
        let head = head(&mut from)?;
        end(&from, head)
    }
}

fn head(from: &mut Reader<'_>) -> Found<Head> {
    Ok(Head {
        identity: identity(from)?,
        next: from.number()?,
        epoch: from.number()?,
        reign: Reign(from.array()?),
        sequence: from.number()?,
        last: Chain(from.array()?),
        chain: Chain(from.array()?),
        digest: digest(from)?,
        rows: from.number()?,
        without_image: from.number()?,
        open: open(from)?,
        is_complete: from.flag()?,
        forgotten: from.number()?,
        stubs: {
            let mut stubs = BTreeMap::new();
            for _ in 0..from.count()? {
                let id = id(from)?;
                let version = from.number()?;
                let is_gone = from.flag()?;
                stubs.insert(id, Stub { version, is_gone });
            }
            stubs
        },
        marks: {
            let mut marks = VecDeque::new();
            for _ in 0..from.count()? {
                marks.push_back(basis(from)?);
            }
            marks
        },
        stopped: stop(from)?,
    })
}

fn put_identity(into: &mut Vec<u8>, identity: &Identity) {
    put_bytes(into, identity.cluster.as_bytes());
    put_bytes(into, identity.topic.as_bytes());
    put(into, u64::from(identity.shard));
    put(into, u64::from(identity.shards));
}

fn identity(from: &mut Reader<'_>) -> Read<Identity> {
    Ok(Identity {
        cluster: from.text()?.to_owned(),
        topic: from.text()?.to_owned(),
        shard: from.small()?,
        shards: from.small()?,
    })
}

fn put_open(into: &mut Vec<u8>, open: Option<Opened>) {
    let Some(open) = open else {
        into.push(0);
        return;
    };
    into.push(1);
    put(into, open.offset);
    put(into, open.epoch);
    put(into, open.sequence);
    into.push(u8::from(open.is_closed));
}

fn open(from: &mut Reader<'_>) -> Read<Option<Opened>> {
    if !from.flag()? {
        return Ok(None);
    }
    Ok(Some(Opened {
        offset: from.number()?,
        epoch: from.number()?,
        sequence: from.number()?,
        is_closed: from.flag()?,
    }))
}

fn put_stop(into: &mut Vec<u8>, stop: Option<&Stop>) {
    match stop {
        None => into.push(b'-'),
        Some(Stop::Unreadable { offset, why }) => {
            into.push(b'u');
            put(into, *offset);
            match why {
                Unreadable::Foreign => into.push(b'f'),
                Unreadable::Format { found } => into.extend_from_slice(&[b'v', *found]),
                Unreadable::Kind(kind) => into.extend_from_slice(&[b'k', *kind]),
                Unreadable::Damaged(detail) => {
                    into.push(b'd');
                    put_bytes(into, detail.as_bytes());
                }
            }
        }
        Some(Stop::OtherLog { found, expected }) => {
            into.push(b'l');
            put_identity(into, found);
            put_identity(into, expected);
        }
        Some(Stop::Incomplete { offset }) => {
            into.push(b'i');
            put(into, *offset);
        }
        Some(Stop::OtherRecord) => into.push(b'r'),
        Some(Stop::OtherRows) => into.push(b'o'),
        Some(Stop::NoBeginning) => into.push(b'n'),
    }
}

fn stop(from: &mut Reader<'_>) -> Found<Option<Stop>> {
    Ok(Some(match from.byte()? {
        b'-' => return Ok(None),
        b'u' => Stop::Unreadable {
            offset: from.number()?,
            why: match from.byte()? {
                b'f' => Unreadable::Foreign,
                b'v' => Unreadable::Format {
                    found: from.byte()?,
                },
                b'k' => Unreadable::Kind(from.byte()?),
                b'd' => Unreadable::Damaged(detail(from.text()?)),
                kind => return Err(Inside::Kind(kind)),
            },
        },
        b'l' => Stop::OtherLog {
            found: Box::new(identity(from)?),
            expected: Box::new(identity(from)?),
        },
        b'i' => Stop::Incomplete {
            offset: from.number()?,
        },
        b'r' => Stop::OtherRecord,
        b'o' => Stop::OtherRows,
        b'n' => Stop::NoBeginning,
        kind => return Err(Inside::Kind(kind)),
    }))
}

/// All that a damaged record can be said to be. A text that is not among them was written by another version.
const DETAILS: [&str; 10] = [
    "its check does not fit",
    "something is behind its end",
    "a row makes version 0",
    "an answer without a command",
    "an id is none",
    "it ends too early",
    "a flag is neither 0 nor 1",
    "a number has more than 64 bits",
    "a number has more than 32 bits",
    "a text is not UTF-8",
];

fn detail(text: &str) -> &'static str {
    let known = DETAILS.into_iter().find(|detail| *detail == text);
    known.unwrap_or("for a reason that another version of this center has named")
}
