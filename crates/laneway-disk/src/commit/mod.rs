//! Group commit: one thread, one batch, one sync, all answers.
//!
//! A store hands requests to a [`Committer`] through [`Commits`], which it shares with it. The `Committer` takes all that
//! waits, has the store's [`Writer`] write it as one batch, syncs once if any request of it asked for that, and lets the
//! `Writer` answer. While a sync runs the next batch gathers in the queue; an idle `Committer` writes at once. Requests
//! that need no sync (positions, settlements) are synced with the next batch that needs one, or after
//! [`CommitLimits::sync_every`].
//!
//! # Why an answer means that it is on disk
//!
//! - [`Writer::committed`] runs after [`Database::sync`] has returned `Ok` for a batch of [`Durability::Synced`], and nothing
//!   else lets a `Writer` answer such a request with success.
//! - Batches of [`Durability::Synced`] are numbered, and batch n + 1 is not written before batch n is synced. So whatever
//!   part of n + 1 is found in a journal proves that n was acknowledged, and [`journals::check`](crate::journals::check)
//!   tells a torn end from damage.
//! - A sync that fails is final. The system forgets the pages that it could not write, so a second sync that succeeds,
//!   or reading them back, proves nothing. The state is [`StoreError::Failed`] until the process is started again.
//! - A batch that failed may be on disk nevertheless, whether its sync failed or its write: what the engine holds of it is
//!   written when it is closed. So its requests are told that ([`Writer::refused`]), unlike those that were not tried
//!   ([`Writer::refuse`]).
//! - A batch that could not be *written* was not acknowledged, and harms nothing but itself, if
//!   [`Database::is_intact`]: no journal ever failed to reach the disk. It passes where its cause does, that is if the write
//!   itself failed (no room, no descriptor, an error of the system), or if a background thread of the engine failed, which
//!   tells nobody why: it may have found no descriptor, or a block that it cannot read ([`Writer::mend`]). If it was
//!   the sync of a journal, that is told to our own descriptor of that journal, too; a failure in the background is
//!   final if there is a journal of which we have none yet ([`Database::holds_journals`]). Tables that could not be synced are
//!   not used: what is in them is in the journals.
//! - After a failure that passes, [`Writer::open`] does what a start of the process does: the journals are checked, and
//!   the last commit is compared with the one that was noted. A numbered commit is written and synced ([`Writer::mark`])
//!   before [`Writer::adopt`] and any reader see what was found, since batches that were refused may be there, and
//!   are not durable before that.
//! - Requests that a `Writer` hands back ([`Writer::refused`]) were answered nothing. They are written again after that, so a
//!   `Writer` that does so looks whether their first batch is there.
//! - A sync that finds no free descriptor was not tried, and has not failed: [`Database::sync`] waits for one.
//!
//! # Backpressure
//!
//! The queue is bounded by bytes, and a request holds its [`QueuePermit`] until it is answered. New data is refused before
//! the disk is full ([`Turn::is_short_of_room`]), so that what gives room back still finds some.
//!
//! # Layout
//!
//! | file | what it is |
//! |---|---|
//! | `committer` | the thread |
//! | `shared` | what it shares with its store: queue, engine, state |
//! | `queue` | what waits, bounded by bytes |
//! | `pace` | whether to wait for company before a commit |

mod committer;
mod pace;
mod queue;
mod shared;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

pub use self::committer::Committer;
pub use self::queue::QueuePermit;
pub use self::shared::{Commits, StoreError};
use crate::database::Database;
use crate::directory::Directory;

/// When something happens.
#[derive(Clone, Copy, Debug)]
pub struct CommitLimits {
    /// The bytes of all requests that wait or are being written.
    pub queue: usize,
    /// How often the last commit is noted where damage to the engine's files does not reach it.
    pub note_every: Duration,
    /// How long what was written without a sync may stay so: a power cut takes it back.
    pub sync_every: Duration,
    /// How long a write or sync may take before [`Commits::health`] tells of it.
    pub slow_after: Duration,
}

/// What a store does in the thread of its [`Committer`].
pub trait Writer: Send + 'static {
    /// The open engine, with what the store keeps beside it.
    type Engine: AsRef<Database> + Send + Sync + 'static;
    /// What callers ask for.
    type Request: Send + 'static;
    /// What a batch changes in memory, and who waits for it.
    type Pending;
    /// What is known after the engine was opened.
    type Found;

    /// Opens the engine of a directory, and compares it with what was noted. The engine that was open before is gone.
    ///
    /// # Errors
    /// With whether it is worth another try.
    fn open(
        &self,
        directory: &mut Directory,
    ) -> Result<Reopened<Self::Engine, Self::Found>, OpenError>;

    /// Whether [`mend`](Self::mend) can help when the engine has given up for no reason that is known.
    const MENDS: bool = false;

    /// Makes readable again what the engine gave up on. The engine is closed. Answers whether anything was wrong.
    ///
    /// # Errors
    /// With whether it is worth another try.
    fn mend(&self, directory: &mut Directory) -> Result<bool, OpenError> {
        let _ = directory;
        Ok(false)
    }

    /// Takes over what [`open`](Self::open) found, and ends what was given up while nothing could be written.
    fn adopt(&mut self, found: Self::Found);

    /// Writes a commit that has nothing but its number.
    ///
    /// # Errors
    /// What the engine says.
    fn mark(&self, engine: &Self::Engine, commit: u64) -> fjall::Result<()>;

    /// Writes the last commit before an orderly end, which may say that it was one.
    ///
    /// # Errors
    /// What the engine says.
    fn mark_last(&self, engine: &Self::Engine, commit: u64) -> fjall::Result<()> {
        self.mark(engine, commit)
    }

    /// Takes requests off the front of `waiting`, at least one, and writes them as one batch.
    fn write(
        &mut self,
        engine: &Self::Engine,
        waiting: &mut VecDeque<Self::Request>,
        turn: &mut Turn<'_>,
    ) -> Batch<Self::Pending>;

    /// The batch is written, and not yet synced.
    fn written(&mut self, pending: &mut Self::Pending);

    /// All that was ever written is synced.
    fn synced(&mut self) {}

    /// The batch is as durable as it asked for: answers those who wait. What has to follow it is put in front of
    /// `waiting`. Returns how many waited for a sync.
    fn committed(&mut self, pending: Self::Pending, waiting: &mut VecDeque<Self::Request>)
    -> usize;

    /// The batch failed: answers those who wait. `is_unknown`: it may be on disk, or get there, nevertheless. If the failure [passes](StoreError::passes) requests can be handed back instead:
    /// the [`Committer`] keeps them, and they come first when the store writes again.
    fn refused(
        &mut self,
        pending: Self::Pending,
        failure: &StoreError,
        is_unknown: bool,
    ) -> Vec<Self::Request>;

    /// Answers a request that is not even tried, or hands it back, as [`refused`](Self::refused) does.
    fn refuse(&mut self, request: Self::Request, failure: &StoreError) -> Option<Self::Request>;
}

/// What the batch of a turn is written with.
pub struct Turn<'a> {
    /// The number of the batch, if it is to be synced.
    pub commit: u64,
    room: &'a mut dyn FnMut() -> bool,
    is_short: Option<bool>,
}

impl Turn<'_> {
    /// Whether nothing new may be taken. Asked of the disk once a turn.
    pub fn is_short_of_room(&mut self) -> bool {
        *self.is_short.get_or_insert_with(&mut self.room)
    }
}

/// A batch that was handed to the system, or was to be.
#[derive(Debug)]
pub struct Batch<P> {
    /// What it changes, and who waits.
    pub pending: P,
    /// What those who wait were promised.
    pub durability: Durability,
    /// Whether it was written.
    pub result: fjall::Result<()>,
}

/// What a batch needs before it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Nothing was written.
    Nothing,
    /// It survives the process. It is synced later.
    Written,
    /// It survives the machine. It has a number.
    Synced,
}

/// An engine that was opened again.
#[derive(Debug)]
pub struct Reopened<E, F> {
    /// The engine.
    pub engine: E,
    /// The last commit in it.
    pub commit: u64,
    /// What else is known.
    pub found: F,
}

/// Why an engine was not opened again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// It may work later.
    Passes(String),
    /// It does not.
    Stays(String),
}
