//! What the log of a shard means: a pure function of its records, the same for the owner, for copies, for a rebuild and for
//! the checker. It knows no clock.
//!
//! [`Shard::apply`] takes the records in the order of the log:
//!
//! - An `Owner` counts if its epoch is above the one so far.
//! - A `Fact` counts if it is of the epoch and reign of the last `Owner` that counted, and the next one in its sequence.
//! - Both count only if their [`Basis`] is what this reader had at that offset, too.
//! - A row counts on the version that it is based on, if the state of its message allows it. Rows are judged one by one.
//!
//! What does not count is void for every reader, and changes nothing but the chain.
//!
//! # A log that is complete by itself
//!
//! An `open` starts the chain and the digest anew, so that neither depends on what is before it. From there on the digest
//! covers the rows that have an image behind the `open`: exactly those that a reader which begins there knows. A reader that begins
//! there ([`Shard::begin_at`]) remembers of rows without an image only their version, as a *stub*, so that a carried row that was
//! overtaken by a change does not count there either. `close` says that every row has an image. It counts only if that is so.
//!
//! IMPORTANT: an owner appends `open` and `close` when nothing of its own is under way, and nothing behind them before they are read
//! back. Apply enforces the first half by the basis: records that had not read the `open` are void behind it.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `rebuild` | from a log that was trimmed |
//! | `rows` | whether a row counts, and what it changes |
//! | `stored` | heads and rows as bytes, for views on disk |
//! | `table` | where rows are kept |
//! | `transition` | what a change makes of a message |

mod rebuild;
mod rows;
mod stored;
mod table;
#[cfg(test)]
mod tests;
mod transition;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use laneway_delay::MessageId;

pub use rebuild::rebuild;
#[cfg(test)]
pub(crate) use rebuild::rebuild_with;
pub use stored::StoredError;
pub use table::{Kept, Memory, Table};
pub(crate) use transition::{is_forgettable, transition};

use crate::record::{
    Basis, Chain, Close, Fact, Open, Owner, Record, Reign, Row, RowDigest, Unreadable,
};
use crate::rules::{Rule, Rules};

/// How many records back a writer may have read. What is older is void: its writer has to begin anew.
pub const WINDOW: usize = 512;

/// Which log it is. A topic that was deleted and made anew is another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The cluster.
    pub cluster: String,
    /// What the broker calls this very topic.
    pub topic: String,
    /// The number of the shard whose log it is, from 0.
    pub shard: u32,
    /// How many there are.
    pub shards: u32,
}

/// A shard, as of some offset of its log.
#[derive(Clone, Debug)]
pub struct Shard<T> {
    head: Head,
    table: T,
    rules: Rules,
}

/// All of a shard but its rows. It is small, and written with the rows that changed, in one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Which log it is.
    pub identity: Identity,
    /// The offset behind the last record.
    pub next: u64,
    /// The epoch of the owner; 0 if there was none.
    pub epoch: u64,
    /// The reign of the owner.
    pub reign: Reign,
    /// The last fact of the reign that counted; 0 if none has.
    pub sequence: u64,
    /// The hash of the last record.
    pub last: Chain,
    /// The chain over all records since the last `open`.
    pub chain: Chain,
    /// The digest of the rows that have an image behind the last `open`.
    pub digest: RowDigest,
    /// How many rows there are.
    pub rows: u64,
    /// How many of them have no image behind the last `open`.
    pub without_image: u64,
    /// The last `open`.
    pub open: Option<Opened>,
    /// Everything that is needed is known. A reader that began at an `open` lacks rows until its `close`.
    pub is_complete: bool,
    /// The offset behind the last fact that forgot something.
    pub forgotten: u64,
    /// Rows that are known to be somewhere before the `open` at which this reader began.
    stubs: BTreeMap<MessageId, Stub>,
    /// The last records: a writer names one of these.
    marks: VecDeque<Basis>,
    stopped: Option<Stop>,
}

/// An `open` that counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opened {
    /// Its offset.
    pub offset: u64,
    /// The epoch of its fact.
    pub epoch: u64,
    /// The sequence of its fact.
    pub sequence: u64,
    /// Its `close` has counted: what is before it may be trimmed.
    pub is_closed: bool,
}

/// What is known of a row that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stub {
    version: u64,
    /// It was forgotten since.
    is_gone: bool,
}

/// A view that was found to belong to its log, as of an offset: without one, no center announces itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    chain: Chain,
}

impl Verified {
    /// Whether that is how far the view is.
    pub(crate) fn is_of(self, head: &Head) -> bool {
        self.chain == head.chain
    }
}

/// What a record did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Applied {
    /// Nothing, for this reason.
    Void(Void),
    /// Its center owns the shard now.
    Owner,
    /// Its rows were judged.
    Fact {
        /// For each row whether it counted.
        counted: Vec<bool>,
    },
}

/// Why a record does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Void {
    /// It was read before.
    #[error("it was read before")]
    Old,
    /// No owner wrote it.
    #[error("it is not a record of Laneway")]
    Foreign,
    /// An operator said so.
    #[error("it is skipped by an operator's order")]
    Skipped,
    /// It is of an epoch that is over, or that another center took.
    #[error("its writer does not own the shard")]
    NotOwner,
    /// It is not the next one of its reign.
    #[error("it is not the next fact of its reign")]
    OutOfSequence,
    /// Its writer had read something else.
    #[error("its writer had read something else, or too long ago")]
    OtherBasis,
}

/// Why a shard goes no further on this center.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Stop {
    /// A record cannot be read.
    #[error("offset {offset} has {why}")]
    Unreadable {
        /// The offset of the record.
        offset: u64,
        /// What is wrong with its bytes.
        why: Unreadable,
    },
    /// The log is another one than the one that was asked for.
    #[error("the log is that of {found:?}, not of {expected:?}")]
    OtherLog {
        /// What the log says.
        found: Box<Identity>,
        /// What was asked for.
        expected: Box<Identity>,
    },
    /// A `close` says that all rows are there, and they are not.
    #[error(
        "the log is closed at offset {offset}, but rows are missing; restore the shard from a view that has them"
    )]
    Incomplete {
        /// The offset of the `close`.
        offset: u64,
    },
    /// The log has another record where the view ends, or none.
    #[error(
        "the log has another record where the view ends; the view is set aside and built again from the log"
    )]
    OtherRecord,
    /// The rows of a view are not those that its head tells of.
    #[error(
        "the view has other rows than it should have; it is set aside and built again from the log"
    )]
    OtherRows,
    /// The log was trimmed, and there is no `open` in it with its `close`.
    #[error(
        "the log begins in the middle, and nothing in it is complete; restore the shard from a view"
    )]
    NoBeginning,
}

impl Head {
    fn new(identity: Identity) -> Self {
        let start = Basis {
            read: 0,
            chain: Chain::START,
            digest: RowDigest::EMPTY,
        };
        Self {
            identity,
            next: 0,
            epoch: 0,
            reign: Reign([0; 16]),
            sequence: 0,
            last: Chain::START,
            chain: start.chain,
            digest: start.digest,
            rows: 0,
            without_image: 0,
            open: None,
            is_complete: true,
            forgotten: 0,
            stubs: BTreeMap::new(),
            marks: VecDeque::from([start]),
            stopped: None,
        }
    }

    /// What a record names that is written now.
    #[must_use]
    pub const fn basis(&self) -> Basis {
        Basis {
            read: self.next,
            chain: self.chain,
            digest: self.digest,
        }
    }

    /// Whether a writer that had read so far had made the same of the log; `None` where it had read more than this head, or so little
    /// that it is not known any more.
    #[must_use]
    pub fn knows(&self, basis: &Basis) -> Option<bool> {
        // Offsets may have gaps, so a mark is looked for, not computed.
        let found = self
            .marks
            .binary_search_by_key(&basis.read, |mark| mark.read);
        found.ok().map(|index| self.marks[index] == *basis)
    }

    /// Why it goes no further, if it does not.
    #[must_use]
    pub const fn stopped(&self) -> Option<&Stop> {
        self.stopped.as_ref()
    }

    /// Whether an image at this offset is behind the last `open`.
    fn covers(&self, image_at: u64) -> bool {
        self.open.is_none_or(|open| image_at > open.offset)
    }
}

impl<T: Table> Shard<T> {
    /// A shard of which nothing was read yet, over a table without rows.
    #[must_use]
    pub fn new(identity: Identity, table: T) -> Self {
        Self::with_rules(identity, table, Rules::default())
    }

    pub(crate) fn with_rules(identity: Identity, table: T, rules: Rules) -> Self {
        Self {
            head: Head::new(identity),
            table,
            rules,
        }
    }

    /// A shard as it was kept: its head, and the rows as of that head. All rows are read and compared with the digest: a view
    /// that lost one would not know.
    ///
    /// # Errors
    /// [`Stop::OtherRows`] when they do not belong together. The view has to be set aside and built again.
    pub fn resume(head: Head, table: T) -> Result<Self, Stop> {
        let rules = Rules::default();
        let shard = Self { head, table, rules };
        if shard.is_consistent() {
            Ok(shard)
        } else {
            Err(Stop::OtherRows)
        }
    }

    /// Compares the last record that was read with what the log has at that place now (`None`: it is gone). A center does so
    /// when it opens its view, whenever it has connected again, and before it announces itself: a log that lost its end, or that
    /// was made anew, is found out here. Others find out that this view is wrong by its basis; the center itself cannot,
    /// for it would judge its own records by its own view.
    ///
    /// # Errors
    /// [`Stop::OtherRecord`] when the view belongs to another log. It has to be set aside and built again.
    pub fn verify(&self, found: Option<&Bytes>) -> Result<Verified, Stop> {
        let is_same = found.is_some_and(|bytes| Chain::START.then(bytes) == self.head.last);
        if is_same || self.head.next == 0 {
            Ok(Verified {
                chain: self.head.chain,
            })
        } else {
            Err(Stop::OtherRecord)
        }
    }

    /// Whether the rows are those of the head.
    pub(crate) fn is_consistent(&self) -> bool {
        let (mut rows, mut without_image, mut digest) = (0, 0, RowDigest::EMPTY);
        let mut after = None;
        loop {
            let page = self.table.page(after.as_ref(), 256);
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            for (id, row) in &page {
                rows += 1;
                if self.head.covers(row.image_at) {
                    digest = digest.with(row.digest(id));
                } else {
                    without_image += 1;
                }
            }
        }
        (rows, without_image, digest) == (self.head.rows, self.head.without_image, self.head.digest)
    }

    /// All of it but the rows.
    #[must_use]
    pub const fn head(&self) -> &Head {
        &self.head
    }

    /// The rows.
    #[must_use]
    pub const fn table(&self) -> &T {
        &self.table
    }

    /// The rows alone: a view that is set aside, or closed.
    #[must_use]
    pub fn into_table(self) -> T {
        self.table
    }

    /// The rows, for a test that damages them.
    #[cfg(test)]
    pub(crate) const fn table_mut(&mut self) -> &mut T {
        &mut self.table
    }

    pub(crate) const fn rules(&self) -> Rules {
        self.rules
    }

    /// Reads the next record of the log.
    ///
    /// # Errors
    /// [`Stop`] when the shard can go no further here. It is not changed then, and says the same to every record.
    pub fn apply(&mut self, offset: u64, bytes: &Bytes) -> Result<Applied, Stop> {
        if let Some(stop) = &self.head.stopped {
            return Err(stop.clone());
        }
        if offset < self.head.next {
            return Ok(Applied::Void(Void::Old));
        }
        let done = match Record::decode(bytes) {
            Ok(record) => self.judge(offset, &record),
            Err(Unreadable::Foreign) => Ok(Applied::Void(Void::Foreign)),
            Err(why) => Err(Stop::Unreadable { offset, why }),
        };
        match done {
            Ok(applied) => {
                self.pass(offset, bytes);
                Ok(applied)
            }
            Err(stop) => {
                self.head.stopped = Some(stop.clone());
                Err(stop)
            }
        }
    }

    /// Goes past a record that cannot be read, by an operator's order, which has to be given on all centers.
    pub fn skip(&mut self, offset: u64, bytes: &Bytes) -> Applied {
        if offset >= self.head.next {
            self.head.stopped = None;
            self.pass(offset, bytes);
        }
        Applied::Void(Void::Skipped)
    }

    /// Remembers that a record was read, whether it counted or not.
    fn pass(&mut self, offset: u64, bytes: &Bytes) {
        let head = &mut self.head;
        head.next = offset + 1;
        head.last = Chain::START.then(bytes);
        let is_open = head.open.is_some_and(|open| open.offset == offset);
        if is_open {
            // IMPORTANT: nothing behind an `open` may depend on what is before it, which a rebuild has not read.
            head.chain = head.last;
            head.marks.clear();
        } else {
            head.chain = head.chain.then(bytes);
        }
        head.marks.push_back(head.basis());
        if head.marks.len() > WINDOW {
            head.marks.pop_front();
        }
    }

    fn judge(&mut self, offset: u64, record: &Record) -> Result<Applied, Stop> {
        match record {
            Record::Owner(owner) => Ok(self.judge_owner(owner)),
            Record::Fact(fact) => match self.objection(fact) {
                Some(void) => Ok(Applied::Void(void)),
                None => self.count(offset, fact),
            },
        }
    }

    fn judge_owner(&mut self, owner: &Owner) -> Applied {
        if owner.epoch <= self.head.epoch {
            return Applied::Void(Void::NotOwner);
        }
        if !self.agrees(&owner.basis) {
            return Applied::Void(Void::OtherBasis);
        }
        self.head.epoch = owner.epoch;
        self.head.reign = owner.reign;
        self.head.sequence = 0;
        Applied::Owner
    }

    fn objection(&self, fact: &Fact) -> Option<Void> {
        let head = &self.head;
        let is_owner = fact.epoch == head.epoch && fact.reign == head.reign;
        if !is_owner && self.rules.holds(Rule::OnlyOwnersWrite) {
            return Some(Void::NotOwner);
        }
        let is_next = head.sequence.checked_add(1) == Some(fact.sequence);
        if is_owner && !is_next && self.rules.holds(Rule::Sequences) {
            return Some(Void::OutOfSequence);
        }
        (!self.agrees(&fact.basis)).then_some(Void::OtherBasis)
    }

    /// Whether a writer had made the same of the log as this reader.
    fn agrees(&self, basis: &Basis) -> bool {
        self.head.knows(basis) == Some(true) || !self.rules.holds(Rule::Chains)
    }

    fn count(&mut self, offset: u64, fact: &Fact) -> Result<Applied, Stop> {
        let counted = match &fact.rows[..] {
            [Row::Open(open)] => vec![self.open(offset, fact, open)?],
            [Row::Close(close)] => vec![self.close(offset, close)?],
            rows => self.count_rows(offset, fact.epoch, rows),
        };
        if fact.reign == self.head.reign {
            self.head.sequence = fact.sequence;
        }
        Ok(Applied::Fact { counted })
    }

    fn open(&mut self, offset: u64, fact: &Fact, open: &Open) -> Result<bool, Stop> {
        if open.identity != self.head.identity {
            return Err(Stop::OtherLog {
                found: Box::new(open.identity.clone()),
                expected: Box::new(self.head.identity.clone()),
            });
        }
        self.head.open = Some(Opened {
            offset,
            epoch: fact.epoch,
            sequence: fact.sequence,
            is_closed: false,
        });
        self.head.digest = RowDigest::EMPTY;
        self.head.without_image = self.head.rows;
        Ok(true)
    }

    fn close(&mut self, offset: u64, close: &Close) -> Result<bool, Stop> {
        let head = &mut self.head;
        let Some(open) = head.open.as_mut() else {
            return Ok(false);
        };
        if open.is_closed || (open.epoch, open.sequence) != (close.epoch, close.sequence) {
            return Ok(false);
        }
        let is_missing = head.stubs.values().any(|stub| !stub.is_gone);
        let is_whole = !is_missing
            && head.without_image == 0
            && head.rows == close.rows
            && head.digest == close.digest;
        if is_whole {
            open.is_closed = true;
            head.is_complete = true;
            head.stubs.clear();
            Ok(true)
        } else if head.is_complete {
            // Its owner was wrong. All that is needed is here, so nothing is lost.
            Ok(false)
        } else {
            Err(Stop::Incomplete { offset })
        }
    }
}
