//! fjall, as the stores use it: writing and syncing are two steps, so that a failure tells which of
//! them it was.

use std::io;
use std::path::Path;
use std::time::Duration;

use fjall::{
    AbstractTree, CompressionType, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode,
    Snapshot,
};

use parking_lot::Mutex;

use crate::disk::Disk;
use crate::error::told;
use crate::journals::{Journals, SyncError};

/// What must be read again when the store is opened, about. The least that the engine takes.
const JOURNAL_BYTES: u64 = 64 << 20;

/// How far the engine's background work may be behind before writing waits for it. The engine has
/// limits of its own (4 and 20), but where its threads have failed it waits at them for ever.
const MOST_SEALED: usize = 2;
const MOST_RUNS: usize = 16;

/// Threads of the engine's background work. One of them is kept for what must not wait; while all others are
/// busy it passes the rest of the work round and round, and takes a core for that. With this many
/// others that is rare; each costs a thread, and only works when there is work.
const WORKERS: usize = 4;

/// How often a sync that waits for a free descriptor looks again.
const DESCRIPTOR_GLANCE: Duration = Duration::from_millis(50);

/// A commit that failed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// It was not written, or only in part.
    #[error("writing: {}", told(.0))]
    Write(fjall::Error),
    /// It was written, and it is unknown whether it is on disk.
    #[error("syncing: {0}")]
    Sync(io::Error),
}

impl CommitError {
    /// Whether the commit may be on disk nevertheless, or get there: what the engine holds of it is written when it is closed.
    pub(crate) fn may_be_there(&self) -> bool {
        // An engine that had failed before was not handed anything.
        !matches!(self, Self::Write(fjall::Error::Poisoned))
    }
}

/// An open database.
pub struct Database {
    engine: fjall::Database,
    journals: Mutex<Journals>,
}

impl Database {
    /// Opens a database, and makes its files if there are none. `cache` bytes of what was read are kept
    /// in memory.
    ///
    /// # Errors
    /// What the engine says.
    pub fn open(directory: &Path, cache: u64) -> fjall::Result<Self> {
        Self::open_with(directory, cache, WORKERS)
    }

    /// Opens a database that does nothing by itself: to be looked at, and closed.
    ///
    /// # Errors
    /// What the engine says.
    pub fn open_idle(directory: &Path, cache: u64) -> fjall::Result<Self> {
        Self::open_with(directory, cache, 0)
    }

    fn open_with(directory: &Path, cache: u64, workers: usize) -> fjall::Result<Self> {
        let engine = fjall::Database::builder(directory)
            // The journals are looked through for whole rows.
            .journal_compression(CompressionType::None)
            .max_journaling_size(JOURNAL_BYTES)
            .cache_size(cache)
            .worker_threads_unchecked(workers)
            .open()?;
        Ok(Self {
            engine,
            journals: Mutex::new(Journals::hold(directory)?),
        })
    }

    /// A keyspace, made if it is not there.
    ///
    /// # Errors
    /// What the engine says.
    pub fn keyspace(
        &self,
        name: &str,
        options: impl FnOnce() -> KeyspaceCreateOptions,
    ) -> fjall::Result<Keyspace> {
        self.engine.keyspace(name, options)
    }

    /// The names of all keyspaces.
    #[must_use]
    pub fn keyspace_names(&self) -> Vec<String> {
        let names = self.engine.list_keyspace_names();
        names.iter().map(ToString::to_string).collect()
    }

    /// Removes a keyspace.
    ///
    /// # Errors
    /// What the engine says.
    pub fn delete_keyspace(&self, keyspace: Keyspace) -> fjall::Result<()> {
        self.engine.delete_keyspace(keyspace)
    }

    /// Writes that are handed to the system together. They survive the process then, not yet the machine.
    #[must_use]
    pub fn batch(&self) -> OwnedWriteBatch {
        self.engine.batch().durability(Some(PersistMode::Buffer))
    }

    /// Hands a batch to the system, as a whole or not at all.
    ///
    /// # Errors
    /// What the engine says, or a disk that may not be written to.
    pub fn write(&self, disk: &dyn Disk, batch: OwnedWriteBatch) -> fjall::Result<()> {
        disk.may_write()?;
        batch.commit()
    }

    /// All tables as they are now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.engine.snapshot()
    }

    /// Fails if the engine no longer works.
    ///
    /// # Errors
    /// What the engine says.
    pub fn check(&self) -> fjall::Result<()> {
        // Nothing is buffered: this only tells whether the engine still works.
        self.engine.persist(PersistMode::Buffer)
    }

    /// Makes durable what was written. Where the process has no free descriptor to do that with it waits for one,
    /// however long that takes: only a sync that was tried can have failed. `waiting` hears when a wait begins.
    ///
    /// # Errors
    /// [`CommitError::Sync`]: it is unknown what is on disk then.
    pub fn sync(
        &self,
        disk: &dyn Disk,
        mut waiting: impl FnMut(&io::Error),
    ) -> Result<(), CommitError> {
        let mut journals = self.journals.lock();
        let mut is_told = false;
        loop {
            match journals.sync(|journal| disk.sync(journal)) {
                Ok(()) => return Ok(()),
                Err(SyncError::Failed(error)) => return Err(CommitError::Sync(error)),
                Err(SyncError::NoDescriptor(error)) => {
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::error!(
                            %error,
                            "a sync waits for a free file descriptor; allow the process more of them"
                        );
                        waiting(&error);
                    }
                    std::thread::sleep(DESCRIPTOR_GLANCE);
                }
            }
        }
    }

    /// Whether all that was ever synced is on disk, as far as the system knows.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.journals.lock().verify().is_ok()
    }

    /// Whether all journals are held, so that the failure of a sync of any of them is known to
    /// [`is_intact`](Self::is_intact), also where a thread of the engine was the first to hear of it.
    #[must_use]
    pub fn holds_journals(&self) -> bool {
        self.journals.lock().is_newest_still().unwrap_or(false)
    }

    /// Waits until the background work of a keyspace has caught up, or has failed.
    ///
    /// # Errors
    /// What the engine says when it has failed.
    pub fn throttle(&self, keyspace: &Keyspace) -> fjall::Result<()> {
        while keyspace.sealed_memtable_count() >= MOST_SEALED
            || keyspace.tree.l0_run_count() >= MOST_RUNS
        {
            self.check()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}
