//! The sizes at which something happens. Tests make them tiny, so that segments end, tables are written and merged,
//! and queues fill hundreds of times where they would otherwise never.

use std::time::Duration;

use crate::broker::embedded::retention;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The sizes at which something happens in a store on disk. They are no part of what is stored: each opening may
/// have others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
#[non_exhaustive]
pub struct FileLimits {
    /// Written to one segment of a topic, by the size of its records, before the next one begins.
    ///
    /// About what the engine keeps in memory for a topic, so that a table holds about one segment.
    pub segment: u64,
    /// Written to memory and the journal before a topic gets a new table. The engine locks the topic for some
    /// milliseconds then: not too often.
    pub memtable: u64,
    /// The same of the catalog.
    pub catalog_memtable: u64,
    /// The most in memory for all topics together. Topics that each stay below their own limit would
    /// otherwise keep the journal from ever being shortened.
    pub all_memtables: u64,
    /// Committed between two looks at that.
    pub look_every: u64,
    /// Records that are kept in memory for readers at the end of their logs, by their size.
    pub cache: u64,
    /// Blocks of rows that were read from disk.
    pub blocks: u64,
    /// More than this in one batch would only add latency.
    pub batch: usize,
    /// The bytes of all that waits or is being written.
    pub queue: usize,
    /// Decoded at once, about; the first record is read whatever its size.
    pub read: usize,
    /// How often the last commit is noted where damage to the engine's files does not reach it.
    pub note_every: Duration,
    /// How long a write without a waiting caller may stay unsynced: a power cut repeats it.
    pub sync_every: Duration,
    /// How often it is looked for what retention removes.
    pub retain_every: Duration,
}

impl Default for FileLimits {
    fn default() -> Self {
        Self {
            segment: 16 * MIB,
            memtable: 32 * MIB,
            catalog_memtable: 4 * MIB,
            all_memtables: 64 * MIB,
            look_every: 4 * MIB,
            cache: 32 * MIB,
            blocks: 32 * MIB,
            batch: 8 << 20,
            queue: 32 << 20,
            read: 4 << 20,
            note_every: if cfg!(test) {
                Duration::from_millis(200)
            } else {
                Duration::from_secs(10)
            },
            sync_every: Duration::from_secs(1),
            retain_every: retention::EVERY,
        }
    }
}

impl FileLimits {
    /// For tests: a few records fill anything.
    #[must_use]
    pub fn tiny() -> Self {
        Self {
            segment: 2 * KIB,
            memtable: 16 * KIB,
            catalog_memtable: 16 * KIB,
            all_memtables: 24 * KIB,
            look_every: KIB,
            cache: 4 * KIB,
            blocks: 64 * KIB,
            batch: 4 << 10,
            queue: 64 << 10,
            read: 2 << 10,
            note_every: Duration::from_millis(200),
            sync_every: Duration::from_millis(50),
            retain_every: Duration::from_millis(50),
        }
    }

    /// With less left than this a segment is sparse.
    pub(super) fn sparse(&self) -> u64 {
        self.segment / 2
    }
}
