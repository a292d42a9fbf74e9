use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use laneway_cluster::apply::{Head, Identity};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::connection::Redis;
use crate::error::Error;
use crate::options::RedisOptions;
use crate::questions::Questions;
use crate::restore::{Unused, restore};
use crate::rows::{Row, Rows};
use crate::shard::ShardBackup;

/// How many shards are filled at once: the others would only make each other slow.
const FILLS: usize = 4;

/// A Redis that shards are backed up to. Cheap to clone.
#[derive(Clone)]
pub struct Backup {
    pub(crate) redis: Arc<Redis>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) fills: Arc<Semaphore>,
    /// Why the first write failed of those that have since the last one that went through.
    trouble: Arc<Mutex<Option<String>>>,
}

/// What was done since the start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) writes: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) refills: AtomicU64,
    pub(crate) refused: AtomicU64,
}

/// What a backup did since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Calls that wrote something.
    pub writes: u64,
    /// Calls without an answer, or with an error.
    pub failures: u64,
    /// How often what waited was dropped because it was too much.
    pub dropped: u64,
    /// Shards that were filled anew.
    pub refills: u64,
    /// Calls that were refused because a later owner has written.
    pub refused: u64,
}

impl Backup {
    /// Does not wait for Redis, and not even try to reach it: that is done when something is to be written or read.
    ///
    /// # Errors
    /// When the options cannot be used.
    pub fn open(mut options: RedisOptions) -> Result<Self, Error> {
        if let (Some(file), None) = (&options.ca, &options.authorities) {
            let read = std::fs::read(file).map_err(|source| {
                let file = file.clone();
                Error::File { file, source }
            });
            options.authorities = Some(read?);
        }
        Ok(Self {
            redis: Redis::new(options)?,
            counters: Arc::default(),
            fills: Arc::new(Semaphore::new(FILLS)),
            trouble: Arc::default(),
        })
    }

    /// Backs up a shard that this center owns, until the answer is dropped. `rows` answers the rows as they are now, to fill the
    /// copy.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    #[must_use]
    pub fn shard(&self, identity: Identity, rows: Rows) -> ShardBackup {
        ShardBackup::start(self.clone(), identity, rows)
    }

    /// Reads the copy of a shard, page by page, until `page` says `false`. It is told the head that they should lead to, so that it can put
    /// them into a view in batches; the rows are good only if the answer is that head.
    ///
    /// IMPORTANT: the caller then compares the record in front of [`Head::next`] with that of the log
    /// ([`Shard::verify`](laneway_cluster::apply::Shard::verify)), and reads the log from there on.
    ///
    /// # Errors
    /// [`Unused`]: the copy cannot be used, and the log has to be read from its start. Rows that were answered before are to be
    /// thrown away.
    pub async fn restore(
        &self,
        identity: &Identity,
        page: impl FnMut(&Head, Vec<Row>) -> bool,
    ) -> Result<Head, Unused> {
        restore(&self.redis, identity, page).await
    }

    /// Questions of people and tools about a cluster.
    #[must_use]
    pub fn questions(&self, cluster: &str, shards: u32) -> Questions {
        Questions::new(self.redis.clone(), cluster, shards)
    }

    /// Why nothing can be written now; `None` if the last write went through, or there was none.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    /// A write was answered.
    pub(crate) fn answered(&self) {
        if self.trouble.lock().take().is_some() {
            tracing::info!("the backup answers again");
        }
    }

    /// A write failed.
    pub(crate) fn failed(&self, error: &Error) {
        self.counters.failures.fetch_add(1, Relaxed);
        let mut trouble = self.trouble.lock();
        if trouble.is_none() {
            tracing::warn!(%error, "the backup cannot be written, retrying; nothing else waits for it");
            *trouble = Some(error.to_string());
        }
    }

    /// What was done since the start.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let counters = &self.counters;
        Stats {
            writes: counters.writes.load(Relaxed),
            failures: counters.failures.load(Relaxed),
            dropped: counters.dropped.load(Relaxed),
            refills: counters.refills.load(Relaxed),
            refused: counters.refused.load(Relaxed),
        }
    }
}

impl fmt::Debug for Backup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backup")
            .field("options", self.redis.options())
            .finish_non_exhaustive()
    }
}
