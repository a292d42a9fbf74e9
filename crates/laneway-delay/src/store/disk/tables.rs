//! The tables, and opening them.

use std::path::Path;

use fjall::config::{BlockSizePolicy, CompressionPolicy, FilterPolicy, PartitioningPolicy};
use fjall::{CompressionType, Keyspace, KeyspaceCreateOptions};
use laneway_disk::{Database, read_numbers, unsealed};

use super::keys;
use crate::store::Place;
use crate::{Counts, Error, Timestamp, TopicCounts};

const MIB: u64 = 1 << 20;

/// New rows of a large table, before they are written as a file. When that is done the engine locks the table
/// for some milliseconds, and messages that are due wait: with less there would be more of those moments, and with
/// much more each would be longer.
const MEMTABLE_BYTES: u64 = 32 * MIB;

/// Blocks of rows that were read from disk.
const CACHE_BYTES: u64 = 64 * MIB;

/// The tables.
pub(super) struct Tables {
    pub(super) database: Database,
    pub(super) line: Keyspace,
    pub(super) ids: Keyspace,
    pub(super) ended: Keyspace,
    pub(super) topics: Keyspace,
    pub(super) keys: Keyspace,
    pub(super) meta: Keyspace,
}

/// Names a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Table {
    Line,
    Ids,
    Ended,
    Topics,
    Keys,
    Meta,
}

impl Table {
    pub(super) const ALL: [Self; 6] = [
        Self::Line,
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
    pub(super) floor: Place,
    pub(super) counts: Counts,
}

impl Tables {
    pub(super) fn open(directory: &Path) -> fjall::Result<Self> {
        let database = Database::open(directory, CACHE_BYTES)?;
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
            line: database.keyspace("line", || {
                rows(MEMTABLE_BYTES)().expect_point_read_hits(true)
            })?,
            // Ids hardly get smaller, and unpacking a block costs more than finding an id in it.
            ids: database.keyspace("ids", || {
                let plain = CompressionPolicy::all(CompressionType::None);
                rows(MEMTABLE_BYTES)().data_block_compression_policy(plain)
            })?,
            ended: database.keyspace("ended", known(MEMTABLE_BYTES))?,
            topics: database.keyspace("topics", known(MEMTABLE_BYTES))?,
            keys: database.keyspace("keys", rows(8 * MIB))?,
            meta: database.keyspace("meta", known(4 * MIB))?,
            database,
        })
    }

    pub(super) fn table(&self, table: Table) -> &Keyspace {
        match table {
            Table::Line => &self.line,
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
        let floor = numbers(keys::FLOOR)?.map_or(Place::FIRST, |(at, serial)| Place {
            at: Timestamp::from_millis(at),
            serial,
        });
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
        })
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

/// What our rows tell about our commits, to whoever reads the engine's journals.
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
