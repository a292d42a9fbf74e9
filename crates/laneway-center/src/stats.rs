//! What a center has done.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a center has done since it was started, over all shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CenterStats {
    /// Shards that it owns now.
    pub owned: u64,
    /// Records of logs that it has applied.
    pub applied: u64,
    /// Facts and announcements that it has appended.
    pub appended: u64,
    /// Appends without an answer, after which everything was sent again.
    pub unknown_appends: u64,
    /// Submits that it has taken from the intake.
    pub accepted: u64,
    /// Attempts that it has given to workers.
    pub begun: u64,
    /// Outcomes that are in the log.
    pub outcomes: u64,
    /// How often it became the owner of a shard.
    pub takeovers: u64,
    /// How often it stopped being the owner of a shard.
    pub step_downs: u64,
    /// Workers that it has taken for dead.
    pub dead_workers: u64,
    /// Views that were built from the log.
    pub rebuilds: u64,
    /// Views that were restored from the backup, so that only the end of the log was read.
    pub restored: u64,
    /// How often a log was trimmed.
    pub trims: u64,
    /// Crashes of shards.
    pub crashes: u64,
    /// Shards that were stopped here after too many crashes.
    pub quarantined: u64,
}

macro_rules! counters {
    ($($name:ident),*) => {
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn read(&self) -> CenterStats {
                CenterStats { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters!(
    owned,
    applied,
    appended,
    unknown_appends,
    accepted,
    begun,
    outcomes,
    takeovers,
    step_downs,
    dead_workers,
    rebuilds,
    restored,
    trims,
    crashes,
    quarantined
);

/// Counts one more.
pub(crate) fn count(counter: &AtomicU64) {
    count_many(counter, 1);
}

pub(crate) fn count_many(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}
