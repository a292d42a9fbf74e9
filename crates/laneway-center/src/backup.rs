//! How far the copies of the owned shards are.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Center;

/// How many views are restored at once. The others wait a moment, and then read the log.
pub(crate) const RESTORES: usize = 8;

/// How far the copies of the owned shards in the backup are, and what was done for them since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupStats {
    /// Owned shards whose copies lack something now.
    pub behind: u64,
    /// For how long the first of them has lacked something.
    pub behind_for: Duration,
    /// About how many bytes wait to be written.
    pub waiting_bytes: u64,
    /// Why nothing can be written now; `None` where that works.
    pub trouble: Option<String>,
    /// Calls that wrote something.
    pub writes: u64,
    /// Calls without an answer, or with an error.
    pub failures: u64,
    /// How often what waited was dropped because it was too much.
    pub dropped: u64,
    /// Copies that were filled anew.
    pub refills: u64,
    /// Calls that were refused because a later owner has written.
    pub refused: u64,
}

/// How far the copy of one shard is, for callers that do not want to wait for its task.
#[derive(Debug, Default)]
pub(crate) struct CopyState(Mutex<(Option<Instant>, usize)>);

/// How far a copy is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) is_whole: bool,
    pub(crate) waiting_bytes: usize,
}

impl CopyState {
    /// `None`: there is no copy to be kept.
    pub(crate) fn note(&self, progress: Option<Progress>) {
        let (since, waiting) = &mut *self.0.lock();
        match progress {
            Some(progress) if !progress.is_whole => {
                since.get_or_insert_with(Instant::now);
            }
            _ => *since = None,
        }
        *waiting = progress.map_or(0, |progress| progress.waiting_bytes);
    }
}

impl Center {
    /// How far the copies of the owned shards are; `None` without a backup.
    #[must_use]
    pub fn backup_stats(&self) -> Option<BackupStats> {
        let backup = self.shared.backup.as_ref()?;
        let done = backup.stats();
        let mut stats = BackupStats {
            trouble: backup.trouble(),
            writes: done.writes,
            failures: done.failures,
            dropped: done.dropped,
            refills: done.refills,
            refused: done.refused,
            ..BackupStats::default()
        };
        for state in &self.shared.states {
            let (since, waiting) = *state.copy.0.lock();
            if let Some(since) = since {
                stats.behind += 1;
                stats.behind_for = stats.behind_for.max(since.elapsed());
            }
            stats.waiting_bytes += waiting as u64;
        }
        Some(stats)
    }
}
