//! fjall, as the store uses it.
//!
//! - A keyspace per topic. A row's key is its segment, its partition and its last offset. Segments
//!   follow each other in time, so new rows are the highest of their keyspace and compaction has
//!   nothing to merge; and within a segment a partition lies together, so that reading it is a scan.
//!   The first row at or after a key holds the record that is looked for.
//! - A keyspace for the [catalog](super::catalog).
//! - All share one journal. Writing to it and syncing it are two steps here, so that a failure tells
//!   which of them it was.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use fjall::config::{BlockSizePolicy, CompressionPolicy, FilterPolicy};
use fjall::{
    AbstractTree, CompressionType, Guard, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch,
};
use laneway_disk::{Database, Disk};

use super::limits::FileLimits;

const CATALOG: &str = "catalog";

pub(super) struct Engine {
    database: Database,
    catalog: Keyspace,
    topics: HashMap<u32, Keyspace>,
    limits: FileLimits,
    /// Committed since the last look at the memory of all topics.
    unlooked: AtomicU64,
}

/// The key of a row.
pub(super) fn row_key(segment: u32, partition: u32, last: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..4].copy_from_slice(&segment.to_be_bytes());
    key[4..8].copy_from_slice(&partition.to_be_bytes());
    key[8..].copy_from_slice(&last.to_be_bytes());
    key
}

fn topic_name(topic: u32) -> String {
    format!("topic-{topic}")
}

fn topic_options(limits: &FileLimits) -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .max_memtable_size(limits.memtable)
        // Reads are scans from a cursor: filters would only cost.
        .filter_policy(FilterPolicy::disabled())
        .data_block_size_policy(BlockSizePolicy::all(16 << 10))
        .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
}

fn catalog_options(limits: &FileLimits) -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .max_memtable_size(limits.catalog_memtable)
        .filter_policy(FilterPolicy::disabled())
}

impl Engine {
    /// Opens the engine, and makes its files if there are none.
    pub(super) fn open(directory: &Path, limits: &FileLimits) -> fjall::Result<Self> {
        let database = Database::open(directory, limits.blocks)?;
        let catalog = database.keyspace(CATALOG, || catalog_options(limits))?;
        let mut topics = HashMap::new();
        for name in database.keyspace_names() {
            let topic = name.strip_prefix("topic-");
            if let Some(topic) = topic.and_then(|topic| topic.parse().ok()) {
                let keyspace = database.keyspace(&name, || topic_options(limits))?;
                topics.insert(topic, keyspace);
            }
        }
        Ok(Self {
            database,
            catalog,
            topics,
            limits: *limits,
            unlooked: AtomicU64::new(0),
        })
    }

    pub(super) fn topics(&self) -> impl Iterator<Item = u32> {
        self.topics.keys().copied()
    }

    pub(super) fn has_topic(&self, topic: u32) -> bool {
        self.topics.contains_key(&topic)
    }

    /// Makes room for a topic; nothing if it is there.
    pub(super) fn make_topic(&mut self, topic: u32) -> fjall::Result<()> {
        if !self.has_topic(topic) {
            let options = || topic_options(&self.limits);
            let keyspace = self.database.keyspace(&topic_name(topic), options)?;
            self.topics.insert(topic, keyspace);
        }
        Ok(())
    }

    /// Removes a topic. What is left of its records goes when the engine has let go of them, at the
    /// latest when it is opened again: drop them before.
    pub(super) fn delete_topic(&mut self, topic: u32) -> fjall::Result<()> {
        match self.topics.remove(&topic) {
            Some(keyspace) => self.database.delete_keyspace(keyspace),
            None => Ok(()),
        }
    }

    /// All rows of the catalog.
    pub(super) fn catalog(&self) -> impl Iterator<Item = Guard> {
        self.catalog.iter()
    }

    /// The rows of a partition in a segment whose last offset is `from` or above.
    pub(super) fn rows(
        &self,
        topic: u32,
        segment: u32,
        partition: u32,
        from: u64,
    ) -> impl DoubleEndedIterator<Item = Guard> + use<> {
        let range = row_key(segment, partition, from)..=row_key(segment, partition, u64::MAX);
        let rows = self.topics.get(&topic).map(|rows| rows.range(range));
        rows.into_iter().flatten()
    }

    /// The highest segment of a topic in which anything is stored.
    pub(super) fn highest_segment(&self, topic: u32) -> fjall::Result<Option<u32>> {
        let last = self
            .topics
            .get(&topic)
            .and_then(|rows| rows.iter().next_back());
        let Some(last) = last else {
            return Ok(None);
        };
        let key = last.key()?;
        Ok(key.first_chunk().map(|first| u32::from_be_bytes(*first)))
    }

    /// Whether anything is stored in the segments from `first` to before `end`.
    pub(super) fn has_rows(&self, topic: u32, first: u32, end: u32) -> bool {
        let range = row_key(first, 0, 0)..row_key(end, 0, 0);
        let rows = self.topics.get(&topic).map(|rows| rows.range(range));
        rows.into_iter().flatten().next().is_some()
    }

    /// Frees what is stored in the segments from `first` to before `end`, table by table. What is
    /// still in memory, or in a table with others, stays.
    pub(super) fn drop_segments(&self, topic: u32, first: u32, end: u32) -> fjall::Result<()> {
        let range = row_key(first, 0, 0)..row_key(end, 0, 0);
        match self.topics.get(&topic) {
            Some(rows) => Ok(rows.tree.drop_range(range)?),
            None => Ok(()),
        }
    }

    /// Removes the files of dropped tables. The engine does so whenever it begins a new table, for
    /// all that was dropped before the last commit.
    pub(super) fn remove_dropped(&self) -> fjall::Result<()> {
        self.catalog.rotate_memtable()?;
        Ok(())
    }

    pub(super) fn writes(&self) -> Writes<'_> {
        Writes {
            engine: self,
            batch: self.database.batch(),
            topics: Vec::new(),
            bytes: 0,
        }
    }

    /// Moves topics out of memory, the largest first, if they are too large together.
    fn relieve(&self, committed: u64) -> fjall::Result<()> {
        let unlooked = self.unlooked.fetch_add(committed, Ordering::Relaxed) + committed;
        if unlooked < self.limits.look_every {
            return Ok(());
        }
        self.unlooked.store(0, Ordering::Relaxed);
        let size_of = |keyspace: &&Keyspace| keyspace.tree.active_memtable().size();
        let mut topics: Vec<_> = self.topics.values().collect();
        topics.sort_by_key(size_of);
        let mut all: u64 = topics.iter().map(size_of).sum();
        while all > self.limits.all_memtables
            && let Some(largest) = topics.pop()
        {
            all -= size_of(&largest);
            largest.rotate_memtable()?;
        }
        Ok(())
    }
}

impl AsRef<Database> for Engine {
    fn as_ref(&self) -> &Database {
        &self.database
    }
}

/// Rows that are written together.
pub(super) struct Writes<'a> {
    engine: &'a Engine,
    batch: OwnedWriteBatch,
    topics: Vec<u32>,
    bytes: u64,
}

impl Writes<'_> {
    pub(super) fn put_row(&mut self, topic: u32, key: [u8; 16], row: &[u8]) {
        self.bytes += row.len() as u64;
        if let Some(rows) = self.engine.topics.get(&topic) {
            self.batch.insert(rows, key, row);
        }
        if self.topics.last() != Some(&topic) && !self.topics.contains(&topic) {
            self.topics.push(topic);
        }
    }

    /// Sets or removes a row of the catalog. Once per key: rows of a batch have no order.
    pub(super) fn put_catalog(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        match value {
            Some(value) => self.batch.insert(&self.engine.catalog, key, value),
            None => self.batch.remove(&self.engine.catalog, key),
        }
    }

    /// Hands all of it to the system, as a whole or not at all. It survives the process then, not
    /// yet the machine.
    pub(super) fn commit(self, disk: &dyn Disk) -> fjall::Result<()> {
        let engine = self.engine;
        let database = &engine.database;
        database.throttle(&engine.catalog)?;
        for topic in &self.topics {
            let rows = engine.topics.get(topic);
            database.throttle(rows.ok_or(fjall::Error::KeyspaceDeleted)?)?;
        }
        database.write(disk, self.batch)?;
        engine.relieve(self.bytes)
    }
}

#[cfg(test)]
impl Engine {
    /// Moves a topic out of memory and the journal, into a table.
    pub(super) fn flush(&self, topic: u32) {
        self.topics[&topic].rotate_memtable_and_wait().unwrap();
    }

    /// What all topics have in memory and may still grow.
    pub(super) fn memory(&self) -> u64 {
        let topics = self.topics.values();
        topics.map(|rows| rows.tree.active_memtable().size()).sum()
    }

    /// Lets a background thread fail: it finds no place for a new table.
    pub(super) fn fail_in_background(&self, topic: u32) {
        let rows = &self.topics[&topic];
        let (tables, aside) = (rows.path().join("tables"), rows.path().join("aside"));
        std::fs::rename(&tables, &aside).unwrap();
        std::fs::write(&tables, "in the way").unwrap();
        rows.rotate_memtable().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_mins(1);
        while self.database.check().is_ok() {
            assert!(std::time::Instant::now() < deadline, "it still works");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        std::fs::remove_file(&tables).unwrap();
        std::fs::rename(&aside, &tables).unwrap();
    }
}
