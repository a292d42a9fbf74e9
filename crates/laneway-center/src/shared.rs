//! What the tasks of a center share.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use laneway_backup::Backup;
use laneway_delay::clock::Clock;
use laneway_view::ViewReader;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::backup::CopyState;
use crate::log::ShardLog;
use crate::options::{Settings, Topics};
use crate::stats::Counters;
use crate::workers::Workers;

/// What the tasks of a center share.
pub(crate) struct Shared {
    pub(crate) cluster: String,
    pub(crate) log: Arc<dyn ShardLog>,
    pub(crate) directory: PathBuf,
    pub(crate) settings: Settings,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) topics: Arc<dyn Topics>,
    pub(crate) workers: Arc<Workers>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) backup: Option<Backup>,
    /// How many views may be restored from it at once.
    pub(crate) restores: Semaphore,
    /// This center has given up all shards, and takes none.
    pub(crate) has_left: AtomicBool,
    /// One for each shard.
    pub(crate) states: Vec<ShardState>,
    /// Crashes the task of a shard at a record, in tests.
    #[cfg(test)]
    pub(crate) planted: Option<Planted>,
}

/// Whether the task of a shard crashes at a record.
#[cfg(test)]
pub(crate) type Planted = Arc<dyn Fn(u32, &[u8]) -> bool + Send + Sync>;

/// How a shard is doing, for callers that do not want to wait for its task.
#[derive(Debug, Default)]
pub(crate) struct ShardState {
    pub(crate) is_owner: AtomicBool,
    pub(crate) is_assigned: AtomicBool,
    pub(crate) epoch: AtomicU64,
    pub(crate) applied: AtomicU64,
    pub(crate) rows: AtomicU64,
    /// Up to where its view is on disk, for tests.
    #[cfg(test)]
    pub(crate) committed: AtomicU64,
    pub(crate) copy: CopyState,
    stopped: Mutex<Option<String>>,
    reader: Mutex<Option<ViewReader>>,
}

impl ShardState {
    /// Its task runs.
    pub(crate) fn runs(&self, reader: ViewReader) {
        *self.reader.lock() = Some(reader);
        *self.stopped.lock() = None;
    }

    /// It goes no further.
    pub(crate) fn stop(&self, why: &str) {
        *self.stopped.lock() = Some(why.to_owned());
    }

    pub(crate) fn stopped(&self) -> Option<String> {
        self.stopped.lock().clone()
    }

    pub(crate) fn reader(&self) -> Option<ViewReader> {
        self.reader.lock().clone()
    }
}

impl Shared {
    /// The task of a shard has ended.
    pub(crate) fn lost(&self, number: u32) {
        let state = &self.states[number as usize];
        *state.reader.lock() = None;
        state.copy.note(None);
        if state.is_owner.swap(false, Relaxed) {
            self.counters.owned.fetch_sub(1, Relaxed);
        }
    }

    #[cfg(test)]
    #[expect(clippy::panic, reason = "that is what it is for")]
    pub(crate) fn plant(&self, number: u32, record: &[u8]) {
        if self
            .planted
            .as_ref()
            .is_some_and(|planted| planted(number, record))
        {
            panic!("a crash that a test has planted");
        }
    }
}
