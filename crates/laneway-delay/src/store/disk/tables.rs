//! The tables, and opening them.

use std::path::Path;

use fjall::config::{BlockSizePolicy, CompressionPolicy, FilterPolicy, PartitioningPolicy};
use fjall::{CompressionType, Keyspace, KeyspaceCreateOptions};
use laneway_disk::{Database, Directory, read_numbers, unsealed};

use super::doubt::Doubt;
use super::keys;
use crate::store::DueKey;
use crate::{Counts, Error, Timestamp, TopicCounts};

const MIB: u64 = 1 << 20;

/// New rows of a large table, before they are written as a file. When that is done the engine locks the table
/// for some milliseconds, and messages that are due wait: with less there would be more of those moments, and with
/// much more each would be longer.
const MEMTABLE_BYTES: u64 = 32 * MIB;

/// Blocks of rows that were read from disk.
const CACHE_BYTES: u64 = 64 * MIB;

/// How much is kept in memory, and how much is done at a time. Tests make it small, so that rows are moved to files
/// all the time, and every bound acts.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// New rows of a large table, before they are written as a file.
    pub memtable: u64,
    /// Blocks of rows that were read.
    pub cache: u64,
    /// The bytes of all requests that wait or are being written; at least 512.
    pub queue: usize,
    /// How many bytes of rows one commit has, about. More would only add latency.
    pub batch_bytes: usize,
    /// How many bytes of payloads, metadata and headers a page has, but for one message.
    pub page_bytes: usize,
    /// How many bytes of the same are looked up at a time for changes, but for one message.
    pub ahead_bytes: usize,
    /// How many changed messages are remembered, at least. What was read before all of them is read again.
    pub remembered: usize,
    /// How many ended messages, and how many keys, are forgotten at a time.
    pub forget: usize,
    /// Fewer claims than these are looked up one by one; of more it is worth to read what lies between them.
    pub scan_from: usize,
}

impl Sizes {
    /// For a machine that does other things as well.
    pub const DEFAULT: Self = Self {
        memtable: MEMTABLE_BYTES,
        cache: CACHE_BYTES,
        queue: 32 << 20,
        batch_bytes: 4 << 20,
        page_bytes: 8 << 20,
        ahead_bytes: 8 << 20,
        remembered: 65_536,
        forget: 2000,
        scan_from: 32,
    };

    /// As little at a time as can be.
    pub const TINY: Self = Self {
        memtable: 4 << 10,
        cache: 64 << 10,
        queue: 512,
        batch_bytes: 300,
        page_bytes: 10,
        ahead_bytes: 10,
        remembered: 3,
        forget: 2,
        scan_from: 2,
    };
}

impl Default for Sizes {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The tables.
pub(super) struct Tables {
    pub(super) database: Database,
    pub(super) due: Keyspace,
    pub(super) ids: Keyspace,
    pub(super) ended: Keyspace,
    pub(super) topics: Keyspace,
    pub(super) keys: Keyspace,
    pub(super) meta: Keyspace,
}

/// Names a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Table {
    Due,
    Ids,
    Ended,
    Topics,
    Keys,
    Meta,
}

impl Table {
    pub(super) const ALL: [Self; 6] = [
        Self::Due,
        Self::Ids,
        Self::Ended,
        Self::Topics,
        Self::Keys,
        Self::Meta,
    ];
}

/// What is known when the tables are opened.
pub(super) struct Recovered {
    pub(super) commit: u64,
    pub(super) next_serial: u64,
    pub(super) floor: DueKey,
    pub(super) counts: Counts,
    /// Before which moment claims of a process stood that did not end in order, in milliseconds; 0 if it did.
    pub(super) claimed: u64,
    /// What earlier ones may have sent.
    pub(super) doubt: Doubt,
}

impl Tables {
    pub(super) fn open(directory: &Path, sizes: Sizes) -> fjall::Result<Self> {
        Self::of(Database::open(directory, sizes.cache)?, sizes)
    }

    /// The same to look at: the engine does nothing by itself.
    pub(super) fn open_idle(directory: &Path, sizes: Sizes) -> fjall::Result<Self> {
        Self::of(Database::open_idle(directory, sizes.cache)?, sizes)
    }

    fn of(database: Database, sizes: Sizes) -> fjall::Result<Self> {
        let memtable = sizes.memtable;
        let rows = |memtable| {
            move || {
                KeyspaceCreateOptions::default()
                    .max_memtable_size(memtable)
                    // Messages are looked up one by one as often as they are read in order.
                    .data_block_size_policy(BlockSizePolicy::all(4 << 10))
                    .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
                    // Index and filter of a large file come to megabytes. In one piece they would push
                    // each other out of the cache, and be read again for every single row.
                    .index_block_partitioning_policy(PartitioningPolicy::new([false, false, true]))
                    .filter_block_partitioning_policy(PartitioningPolicy::new([false, true]))
            }
        };
        // Read by scans and by those who know that their row is there: filters would only cost.
        let known = |memtable| move || rows(memtable)().filter_policy(FilterPolicy::disabled());
        Ok(Self {
            // The same, but many new files lie side by side: filters tell which of them has the row.
            due: database.keyspace("line", || rows(memtable)().expect_point_read_hits(true))?,
            // Ids hardly get smaller, and unpacking a block costs more than finding an id in it.
            ids: database.keyspace("ids", || {
                let plain = CompressionPolicy::all(CompressionType::None);
                rows(memtable)().data_block_compression_policy(plain)
            })?,
            ended: database.keyspace("ended", known(memtable))?,
            topics: database.keyspace("topics", known(memtable))?,
            keys: database.keyspace("keys", rows(memtable.min(8 * MIB)))?,
            meta: database.keyspace("meta", known(memtable.min(4 * MIB)))?,
            database,
        })
    }

    pub(super) fn table(&self, table: Table) -> &Keyspace {
        match table {
            Table::Due => &self.due,
            Table::Ids => &self.ids,
            Table::Ended => &self.ended,
            Table::Topics => &self.topics,
            Table::Keys => &self.keys,
            Table::Meta => &self.meta,
        }
    }

    /// A row, behind its checksum.
    pub(super) fn get(
        &self,
        table: Table,
        key: &[u8],
        identity: u64,
    ) -> Result<Option<Vec<u8>>, Error> {
        let row = self
            .table(table)
            .get(key)
            .map_err(|error| failed(table, error))?;
        row.map(|row| opened(table, key, &row, identity).map(<[u8]>::to_vec))
            .transpose()
    }

    pub(super) fn recover(&self, identity: u64) -> Result<Recovered, Error> {
        let numbers = |key| -> Result<_, Error> {
            let Some(row) = self.get(Table::Meta, key, identity)? else {
                return Ok(None);
            };
            let [first, second] = read_numbers(&row).map_err(|_| damaged(Table::Meta, key))?;
            Ok(Some((first, second)))
        };
        let commit = numbers(keys::COMMIT)?.map_or(0, |(commit, _)| commit);
        let next_serial = numbers(keys::NEXT_SERIAL)?.map_or(0, |(next, _)| next);
        let floor = numbers(keys::FLOOR)?.map_or(DueKey::FIRST, |(at, serial)| DueKey {
            at: Timestamp::from_millis(at),
            serial,
        });
        // Stores of earlier builds have neither.
        let claimed = numbers(keys::CLAIMED)?.map_or(0, |(before, _)| before);
        let doubt = numbers(keys::DOUBT)?.unwrap_or_default();
        let doubt = Doubt {
            before: doubt.0,
            below: doubt.1,
        };
        let mut counts = Counts::new();
        for row in self.meta.prefix([keys::TOPIC]) {
            let (key, row) = row
                .into_inner()
                .map_err(|error| failed(Table::Meta, error))?;
            let row = opened(Table::Meta, &key, &row, identity)?;
            let broken = || damaged(Table::Meta, &key);
            let name = String::from_utf8(key[1..].to_vec()).map_err(|_| broken())?;
            let [scheduled, delivered, dead, withdrawn] =
                read_numbers(row).map_err(|_| broken())?;
            counts.insert(
                name,
                TopicCounts {
                    scheduled,
                    firing: 0,
                    delivered,
                    dead,
                    withdrawn,
                },
            );
        }
        Ok(Recovered {
            commit,
            next_serial,
            floor,
            counts,
            claimed,
            doubt,
        })
    }
}

/// Opens the tables of a directory that is ours.
pub(super) fn open_tables(
    directory: &mut Directory,
    sizes: Sizes,
) -> Result<(Tables, Recovered), Error> {
    let identity = directory.seal.identity;
    let least = directory.prepare(&Marks { identity })?;
    let tables = Tables::open(&directory.log(), sizes).map_err(|error| {
        directory.restore();
        laneway_disk::Error::opening(directory.path(), error)
    })?;
    let found = tables.recover(identity).and_then(|found| {
        directory.expect(least, found.commit)?;
        Ok(found)
    });
    match found {
        Ok(found) => Ok((tables, found)),
        Err(error) => {
            drop(tables);
            directory.restore();
            Err(error)
        }
    }
}

impl AsRef<Database> for Tables {
    fn as_ref(&self) -> &Database {
        &self.database
    }
}

/// The value of a row, if its checksum matches.
pub(super) fn opened<'a>(
    table: Table,
    key: &[u8],
    row: &'a [u8],
    identity: u64,
) -> Result<&'a [u8], Error> {
    unsealed(key, row, identity).ok_or_else(|| damaged(table, key))
}

pub(super) fn damaged(table: Table, key: &[u8]) -> Error {
    Error::Damaged {
        what: format!("a row of the table {table:?}"),
        detail: format!("key {}", key.escape_ascii()),
    }
}

pub(super) fn failed(table: Table, error: fjall::Error) -> Error {
    laneway_disk::Error::reading(|| format!("the table {table:?}"), error).into()
}

/// What our rows tell about our commits, where the engine's journals are read.
pub(super) struct Marks {
    pub(super) identity: u64,
}

impl laneway_disk::Marks for Marks {
    fn commit_in(&self, key: &[u8], value: &[u8]) -> Option<u64> {
        if key != keys::COMMIT {
            return None;
        }
        let value = unsealed(key, value, self.identity)?;
        let [commit, _] = read_numbers(value).ok()?;
        Some(commit)
    }

    /// Our rows do not carry the number of their commit; whole batches do.
    fn latest_row(&self, _: &[u8]) -> u64 {
        0
    }
}
