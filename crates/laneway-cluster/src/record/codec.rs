//! Records as bytes.

use bytes::Bytes;

use super::parts::{
    answer, cause, cause_tag, command, id, image, next, put_answer, put_command, put_id, put_image,
    put_next, put_time, time,
};
use super::wire::{Broken, Read, Reader, put, put_bytes};
use super::{
    Basis, Chain, Change, Close, Fact, Forgotten, Image, Instance, Key, MessageRow, Open, Owner,
    Record, Reign, RequestDigest, Row, RowDigest,
};
use crate::apply::Identity;

/// What every record begins with.
const MAGIC: &[u8] = b"LWF";
/// The newest format that is read and written.
pub(crate) const FORMAT: u8 = 1;
const CHECK_BYTES: usize = 8;

/// Why bytes of the log are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// No owner wrote it.
    #[error(
        "a record that is not one of Laneway; find out what else writes to this topic, and keep it out"
    )]
    Foreign,
    /// It is of a later version of Laneway.
    #[error("a record of format {found}, and {supported} is the newest known here; upgrade this center", supported = FORMAT)]
    Format {
        /// Its format.
        found: u8,
    },
    /// It has a kind, or has a row of a kind, that is not known.
    #[error("a record of an unknown kind {0:?}; upgrade this center")]
    Kind(u8),
    /// It is one of ours, and it is not as it was written.
    #[error("a damaged record ({0}); compare it with the copies of other replicas")]
    Damaged(&'static str),
}

impl From<Broken> for Unreadable {
    fn from(broken: Broken) -> Self {
        Self::Damaged(broken.0)
    }
}

/// What is wrong inside a record.
pub(crate) enum Inside {
    Broken(Broken),
    Kind(u8),
}

impl From<Broken> for Inside {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

impl From<Inside> for Unreadable {
    fn from(inside: Inside) -> Self {
        match inside {
            Inside::Broken(broken) => broken.into(),
            Inside::Kind(kind) => Self::Kind(kind),
        }
    }
}

pub(crate) type Found<T> = Result<T, Inside>;

impl Record {
    /// The record as the log carries it.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut into = Vec::with_capacity(256);
        into.extend_from_slice(MAGIC);
        into.push(FORMAT);
        match self {
            Self::Owner(owner) => {
                into.push(b'O');
                put(&mut into, owner.epoch);
                into.extend_from_slice(&owner.reign.0);
                put_basis(&mut into, &owner.basis);
            }
            Self::Fact(fact) => {
                into.push(b'F');
                put(&mut into, fact.epoch);
                into.extend_from_slice(&fact.reign.0);
                put(&mut into, fact.sequence);
                put_basis(&mut into, &fact.basis);
                put(&mut into, fact.rows.len() as u64);
                for row in &fact.rows {
                    put_row(&mut into, row);
                }
            }
        }
        let check = check(&into);
        into.extend_from_slice(&check);
        into.into()
    }

    /// A record of the log.
    ///
    /// # Errors
    /// [`Unreadable`], which says what a reader has to do. It never panics, whatever the bytes are.
    pub fn decode(bytes: &Bytes) -> Result<Self, Unreadable> {
        let Some(behind) = bytes.strip_prefix(MAGIC) else {
            return Err(Unreadable::Foreign);
        };
        let whole = bytes.len().saturating_sub(CHECK_BYTES);
        if behind.len() < 2 + CHECK_BYTES || check(&bytes[..whole]) != bytes[whole..] {
            return Err(Unreadable::Damaged("its check does not fit"));
        }
        let mut from = Reader::new(bytes, &bytes[MAGIC.len()..whole]);
        let format = from.byte()?;
        if format != FORMAT {
            return Err(Unreadable::Format { found: format });
        }
        let record = match from.byte()? {
            b'O' => Self::Owner(Owner {
                epoch: from.number()?,
                reign: Reign(from.array()?),
                basis: basis(&mut from)?,
            }),
            b'F' => Self::Fact(fact(&mut from)?),
            kind => return Err(Unreadable::Kind(kind)),
        };
        if from.is_empty() {
            Ok(record)
        } else {
            Err(Unreadable::Damaged("something is behind its end"))
        }
    }
}

fn check(bytes: &[u8]) -> [u8; CHECK_BYTES] {
    let mut check = [0; CHECK_BYTES];
    check.copy_from_slice(&blake3::hash(bytes).as_bytes()[..CHECK_BYTES]);
    check
}

fn fact(from: &mut Reader<'_>) -> Found<Fact> {
    let epoch = from.number()?;
    let reign = Reign(from.array()?);
    let sequence = from.number()?;
    let basis = basis(from)?;
    let count = from.count()?;
    let mut rows = Vec::new();
    for _ in 0..count {
        rows.push(row(from)?);
    }
    Ok(Fact {
        epoch,
        reign,
        sequence,
        basis,
        rows,
    })
}

pub(crate) fn put_basis(into: &mut Vec<u8>, basis: &Basis) {
    put(into, basis.read);
    into.extend_from_slice(&basis.chain.0);
    put_digest(into, basis.digest);
}

pub(crate) fn basis(from: &mut Reader<'_>) -> Read<Basis> {
    Ok(Basis {
        read: from.number()?,
        chain: Chain(from.array()?),
        digest: digest(from)?,
    })
}

pub(crate) fn put_digest(into: &mut Vec<u8>, digest: RowDigest) {
    for lane in digest.0 {
        into.extend_from_slice(&lane.to_le_bytes());
    }
}

pub(crate) fn digest(from: &mut Reader<'_>) -> Read<RowDigest> {
    let mut lanes = [0; 4];
    for lane in &mut lanes {
        *lane = u64::from_le_bytes(from.array()?);
    }
    Ok(RowDigest(lanes))
}

pub(super) fn put_row(into: &mut Vec<u8>, row: &Row) {
    match row {
        Row::Message(row) => {
            into.push(kind(&row.change));
            put_id(into, &row.id);
            put(into, row.version);
            put_change(into, &row.change);
        }
        Row::Open(open) => {
            into.push(b'o');
            put_bytes(into, open.identity.cluster.as_bytes());
            put_bytes(into, open.identity.topic.as_bytes());
            put(into, u64::from(open.identity.shard));
            put(into, u64::from(open.identity.shards));
            into.push(open.format);
            put(into, open.forgotten);
        }
        Row::Close(close) => {
            into.push(b'c');
            put(into, close.epoch);
            put(into, close.sequence);
            put(into, close.rows);
            put_digest(into, close.digest);
        }
    }
}

fn row(from: &mut Reader<'_>) -> Found<Row> {
    Ok(match from.byte()? {
        b'o' => Row::Open(Open {
            identity: Identity {
                cluster: from.text()?.to_owned(),
                topic: from.text()?.to_owned(),
                shard: from.small()?,
                shards: from.small()?,
            },
            format: from.byte()?,
            forgotten: from.number()?,
        }),
        b'c' => Row::Close(Close {
            epoch: from.number()?,
            sequence: from.number()?,
            rows: from.number()?,
            digest: digest(from)?,
        }),
        // IMPORTANT: what follows a row of an unknown kind cannot be read, not even its id, so the kind is judged first.
        kind if !b"abusfewtdprmnvgk".contains(&kind) => return Err(Inside::Kind(kind)),
        kind => {
            let id = id(from)?;
            let version = from.number()?;
            if version == 0 {
                return Err(Broken("a row makes version 0").into());
            }
            let change = change(from, kind)?;
            Row::Message(MessageRow {
                id,
                version,
                change,
            })
        }
    })
}

const fn kind(change: &Change) -> u8 {
    match change {
        Change::Accepted { .. } => b'a',
        Change::Begun { .. } => b'b',
        Change::Unstarted { .. } => b'u',
        Change::Delivered { .. } => b's',
        Change::Failed { .. } => b'f',
        Change::Extended { .. } => b'e',
        Change::Withdrawn { .. } => b'w',
        Change::Stopped { .. } => b't',
        Change::Dead { .. } => b'd',
        Change::Replayed { .. } => b'p',
        Change::Rescheduled { .. } => b'r',
        Change::Purged { .. } => b'm',
        Change::Answered { .. } => b'n',
        Change::Carried { .. } => b'v',
        Change::Forgotten(Forgotten::Message) => b'g',
        Change::Forgotten(Forgotten::Keys(_)) => b'k',
    }
}

fn put_change(into: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Accepted {
            due,
            at,
            digest,
            topic,
            body,
        } => {
            put_time(into, *due);
            put_time(into, *at);
            into.extend_from_slice(&digest.0);
            put_bytes(into, topic.as_bytes());
            put_bytes(into, body);
        }
        Change::Begun {
            attempt,
            worker,
            at,
        } => {
            put(into, u64::from(*attempt));
            into.extend_from_slice(&worker.0);
            put_time(into, *at);
        }
        Change::Unstarted { attempt, again, at } => {
            put(into, u64::from(*attempt));
            put_time(into, *again);
            put_time(into, *at);
        }
        Change::Delivered { attempt, at } => {
            put(into, u64::from(*attempt));
            put_time(into, *at);
        }
        Change::Failed {
            attempt,
            next,
            reason,
            at,
        } => {
            put(into, u64::from(*attempt));
            put_next(into, *next);
            put_bytes(into, reason.as_bytes());
            put_time(into, *at);
        }
        Change::Extended { due, command, at } => {
            put_time(into, *due);
            put_command(into, command.as_ref());
            put_time(into, *at);
        }
        Change::Withdrawn { command, at }
        | Change::Stopped { command, at }
        | Change::Purged { command, at } => {
            put_command(into, command.as_ref());
            put_time(into, *at);
        }
        Change::Dead { cause, at } => {
            into.push(cause_tag(*cause));
            put_time(into, *at);
        }
        Change::Replayed { to, command, at } => {
            put_id(into, to);
            put_command(into, command.as_ref());
            put_time(into, *at);
        }
        Change::Rescheduled { again, at } => {
            put_time(into, *again);
            put_time(into, *at);
        }
        Change::Answered {
            command,
            answer,
            at,
        } => {
            put_command(into, Some(command));
            put_answer(into, answer);
            put_time(into, *at);
        }
        Change::Carried { image } => {
            put_bytes(into, &image.body);
            put_image(into, image);
        }
        Change::Forgotten(Forgotten::Message) => {}
        Change::Forgotten(Forgotten::Keys(keys)) => {
            put(into, keys.len() as u64);
            for key in keys {
                into.extend_from_slice(&key.0);
            }
        }
    }
}

fn change(from: &mut Reader<'_>, kind: u8) -> Found<Change> {
    Ok(match kind {
        b'a' => Change::Accepted {
            due: time(from)?,
            at: time(from)?,
            digest: RequestDigest(from.array()?),
            topic: from.text()?.to_owned(),
            body: from.bytes()?,
        },
        b'b' => Change::Begun {
            attempt: from.small()?,
            worker: Instance(from.array()?),
            at: time(from)?,
        },
        b'u' => Change::Unstarted {
            attempt: from.small()?,
            again: time(from)?,
            at: time(from)?,
        },
        b's' => Change::Delivered {
            attempt: from.small()?,
            at: time(from)?,
        },
        b'f' => Change::Failed {
            attempt: from.small()?,
            next: next(from)?,
            reason: from.text()?.to_owned(),
            at: time(from)?,
        },
        b'e' => Change::Extended {
            due: time(from)?,
            command: command(from)?,
            at: time(from)?,
        },
        b'w' => Change::Withdrawn {
            command: command(from)?,
            at: time(from)?,
        },
        b't' => Change::Stopped {
            command: command(from)?,
            at: time(from)?,
        },
        b'd' => Change::Dead {
            cause: cause(from)?,
            at: time(from)?,
        },
        b'p' => Change::Replayed {
            to: id(from)?,
            command: command(from)?,
            at: time(from)?,
        },
        b'r' => Change::Rescheduled {
            again: time(from)?,
            at: time(from)?,
        },
        b'm' => Change::Purged {
            command: command(from)?,
            at: time(from)?,
        },
        b'n' => Change::Answered {
            command: command(from)?.ok_or(Broken("an answer without a command"))?,
            answer: answer(from)?,
            at: time(from)?,
        },
        b'v' => {
            let body = from.bytes()?;
            let image = Box::new(Image {
                body,
                ..image(from)?
            });
            Change::Carried { image }
        }
        b'g' => Change::Forgotten(Forgotten::Message),
        b'k' => {
            let count = from.count()?;
            let mut keys = Vec::new();
            for _ in 0..count {
                keys.push(Key(from.array()?));
            }
            Change::Forgotten(Forgotten::Keys(keys))
        }
        kind => return Err(Inside::Kind(kind)),
    })
}
