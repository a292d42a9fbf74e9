//! fjall: a log-structured merge tree behind a shared journal.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use fjall::config::{CompressionPolicy, FilterPolicy};
use fjall::{
    AbstractTree, CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions,
    PersistMode, Readable,
};

use super::pack::{self, Unpacker};
use super::{Engine, Record};

const MIB: u64 = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    PerStream,
    Untuned,
    Blobs,
}

fn open(directory: &Path) -> Result<Database> {
    Ok(Database::builder(directory)
        .journal_compression(CompressionType::None)
        // What must be replayed when it is opened again.
        .max_journaling_size(64 * MIB)
        .open()?)
}

fn options() -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .max_memtable_size(8 * MIB)
        // Reads are scans from a cursor: filters would only cost.
        .filter_policy(FilterPolicy::disabled())
        .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
}

fn per_stream(
    database: &Database,
    streams: u16,
    options: &KeyspaceCreateOptions,
) -> Result<Vec<Keyspace>> {
    (0..streams)
        .map(|stream| Ok(database.keyspace(&format!("stream-{stream}"), || options.clone())?))
        .collect()
}

pub(super) struct Rows {
    database: Database,
    streams: Vec<Keyspace>,
}

impl Rows {
    pub(super) fn open(directory: &Path, streams: u16, layout: Layout) -> Result<Self> {
        let (database, options) = match layout {
            Layout::PerStream => (open(directory)?, options()),
            Layout::Untuned => (
                Database::builder(directory).open()?,
                KeyspaceCreateOptions::default(),
            ),
            Layout::Blobs => (
                open(directory)?,
                options().with_kv_separation(Some(KvSeparationOptions::default())),
            ),
        };
        let streams = per_stream(&database, streams, &options)?;
        Ok(Self { database, streams })
    }
}

impl Engine for Rows {
    fn append(&mut self, batch: &[Record<'_>]) -> Result<()> {
        let mut writes = self
            .database
            .batch()
            .durability(Some(PersistMode::SyncData));
        for record in batch {
            let stream = &self.streams[usize::from(record.stream)];
            writes.insert(stream, record.offset.to_be_bytes(), record.body);
        }
        Ok(writes.commit()?)
    }

    fn scan(
        &self,
        stream: u16,
        from: u64,
        max: usize,
        each: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<usize> {
        let mut count = 0;
        let snapshot = self.database.snapshot();
        let range = snapshot.range(&self.streams[usize::from(stream)], from.to_be_bytes()..);
        for row in range.take(max) {
            let (key, value) = row.into_inner()?;
            each(u64::from_be_bytes(key[..].try_into()?), &value);
            count += 1;
        }
        Ok(count)
    }

    /// Whole tables below the offset go in one step; the few rows left in the first table stay.
    fn drop_before(&mut self, stream: u16, offset: u64) -> Result<()> {
        let stream = &self.streams[usize::from(stream)];
        Ok(stream.tree.drop_range(..offset.to_be_bytes())?)
    }
}

pub(super) struct OneKeyspace {
    database: Database,
    rows: Keyspace,
    /// Where each stream was cut last.
    cut: BTreeMap<u16, u64>,
}

fn key(stream: u16, offset: u64) -> [u8; 10] {
    let mut key = [0; 10];
    key[..2].copy_from_slice(&stream.to_be_bytes());
    key[2..].copy_from_slice(&offset.to_be_bytes());
    key
}

impl OneKeyspace {
    pub(super) fn open(directory: &Path) -> Result<Self> {
        let database = open(directory)?;
        let rows = database.keyspace("rows", options)?;
        Ok(Self {
            database,
            rows,
            cut: BTreeMap::new(),
        })
    }
}

impl Engine for OneKeyspace {
    fn append(&mut self, batch: &[Record<'_>]) -> Result<()> {
        let mut writes = self
            .database
            .batch()
            .durability(Some(PersistMode::SyncData));
        for record in batch {
            writes.insert(&self.rows, key(record.stream, record.offset), record.body);
        }
        Ok(writes.commit()?)
    }

    fn scan(
        &self,
        stream: u16,
        from: u64,
        max: usize,
        each: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<usize> {
        let mut count = 0;
        let snapshot = self.database.snapshot();
        let range = snapshot.range(&self.rows, key(stream, from)..=key(stream, u64::MAX));
        for row in range.take(max) {
            let (key, value) = row.into_inner()?;
            each(u64::from_be_bytes(key[2..].try_into()?), &value);
            count += 1;
        }
        Ok(count)
    }

    /// Streams share tables, so each row gets its tombstone.
    fn drop_before(&mut self, stream: u16, offset: u64) -> Result<()> {
        let mut next = self.cut.insert(stream, offset).unwrap_or(0);
        while next < offset {
            let mut writes = self.database.batch().durability(Some(PersistMode::Buffer));
            for row in next..offset.min(next + 10_000) {
                writes.remove(&self.rows, key(stream, row));
            }
            writes.commit()?;
            next += 10_000;
        }
        Ok(self.database.persist(PersistMode::SyncData)?)
    }
}

/// With its header a row stays below a page: if a power cut leaves a page of the journal unwritten,
/// the hole covers a header, and the journal ends there. Inside a larger value it would go unseen
/// until the batch's checksum fails, and then fjall refuses to open.
pub(super) const CAP: usize = 4000;

pub(super) struct Packed {
    database: Database,
    streams: Vec<Keyspace>,
    cap: usize,
    /// How many bytes go to the journal before all memtables are flushed.
    flush_every: Option<usize>,
    journaled: usize,
    durability: PersistMode,
}

impl Packed {
    pub(super) fn open(
        directory: &Path,
        streams: u16,
        cap: usize,
        flush_every: Option<usize>,
        durability: PersistMode,
    ) -> Result<Self> {
        let database = open(directory)?;
        let streams = per_stream(&database, streams, &options())?;
        Ok(Self {
            database,
            streams,
            cap,
            flush_every,
            journaled: 0,
            durability,
        })
    }
}

/// Hands records of packed rows to `each` until there are `max` of them.
fn scan_packed(
    rows: fjall::Iter,
    prefix: usize,
    from: u64,
    max: usize,
    count: &mut usize,
    each: &mut dyn FnMut(u64, &[u8]),
) -> Result<()> {
    let mut unpacker = Unpacker::default();
    for row in rows {
        let (key, value) = row.into_inner()?;
        let last = pack::last_of(&key[prefix..]).context("a key holds an offset")?;
        unpacker.row(last, &value, &mut |offset, body| {
            if offset >= from && *count < max {
                each(offset, body);
                *count += 1;
            }
        });
        if *count == max {
            break;
        }
    }
    Ok(())
}

impl Engine for Packed {
    fn append(&mut self, batch: &[Record<'_>]) -> Result<()> {
        let mut writes = self.database.batch().durability(Some(self.durability));
        for (stream, keyspace) in (0..).zip(&self.streams) {
            for row in pack::rows(batch, stream, self.cap) {
                self.journaled += row.value.len();
                writes.insert(keyspace, row.key(), row.value);
            }
        }
        writes.commit()?;
        if self.flush_every.is_some_and(|bytes| self.journaled > bytes) {
            self.journaled = 0;
            for keyspace in &self.streams {
                keyspace.rotate_memtable()?;
            }
        }
        Ok(())
    }

    fn scan(
        &self,
        stream: u16,
        from: u64,
        max: usize,
        each: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<usize> {
        let mut count = 0;
        let snapshot = self.database.snapshot();
        let rows = snapshot.range(&self.streams[usize::from(stream)], pack::key(from, 0)..);
        scan_packed(rows, 0, from, max, &mut count, each)?;
        Ok(count)
    }

    fn drop_before(&mut self, stream: u16, offset: u64) -> Result<()> {
        let stream = &self.streams[usize::from(stream)];
        Ok(stream.tree.drop_range(..pack::key(offset, 0))?)
    }
}

/// All streams in one keyspace, the stream in front of the key. The tables of different flushes
/// overlap, so they are merged; in return there is one memtable, however many streams there are.
pub(super) struct OnePacked {
    database: Database,
    rows: Keyspace,
    streams: u16,
}

fn stream_key(stream: u16, key: [u8; 10]) -> [u8; 12] {
    let mut full = [0; 12];
    full[..2].copy_from_slice(&stream.to_be_bytes());
    full[2..].copy_from_slice(&key);
    full
}

impl OnePacked {
    pub(super) fn open(directory: &Path, streams: u16) -> Result<Self> {
        let database = open(directory)?;
        let rows = database.keyspace("rows", || options().max_memtable_size(32 * MIB))?;
        Ok(Self {
            database,
            rows,
            streams,
        })
    }
}

impl Engine for OnePacked {
    fn append(&mut self, batch: &[Record<'_>]) -> Result<()> {
        let mut by_stream = vec![Vec::new(); usize::from(self.streams)];
        for record in batch {
            by_stream[usize::from(record.stream)].push(*record);
        }
        let mut writes = self
            .database
            .batch()
            .durability(Some(PersistMode::SyncData));
        for (stream, records) in (0..).zip(by_stream) {
            for row in pack::rows(&records, stream, CAP) {
                writes.insert(&self.rows, stream_key(stream, row.key()), row.value);
            }
        }
        Ok(writes.commit()?)
    }

    fn scan(
        &self,
        stream: u16,
        from: u64,
        max: usize,
        each: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<usize> {
        let mut count = 0;
        let snapshot = self.database.snapshot();
        let first = stream_key(stream, pack::key(from, 0));
        let end = stream_key(stream, pack::key(u64::MAX, u16::MAX));
        scan_packed(
            snapshot.range(&self.rows, first..=end),
            2,
            from,
            max,
            &mut count,
            each,
        )?;
        Ok(count)
    }

    /// Whole tables first, then a tombstone for each row that is left.
    fn drop_before(&mut self, stream: u16, offset: u64) -> Result<()> {
        let first = stream_key(stream, pack::key(0, 0));
        let end = stream_key(stream, pack::key(offset, 0));
        self.rows.tree.drop_range(first..end)?;
        let mut writes = self
            .database
            .batch()
            .durability(Some(PersistMode::SyncData));
        for row in self.database.snapshot().range(&self.rows, first..end) {
            writes.remove(&self.rows, row.key()?);
        }
        Ok(writes.commit()?)
    }
}

const SEGMENT: u64 = 32_768;

/// A keyspace per stream and range of offsets: retention deletes keyspaces.
pub(super) struct Segments {
    database: Database,
    keyspaces: BTreeMap<(u16, u64), Keyspace>,
}

impl Segments {
    pub(super) fn open(directory: &Path) -> Result<Self> {
        let database = open(directory)?;
        let mut keyspaces = BTreeMap::new();
        for name in database.list_keyspace_names() {
            if let Some((stream, segment)) = name.split_once('-') {
                let keyspace = database.keyspace(&name, options)?;
                keyspaces.insert((stream.parse()?, segment.parse()?), keyspace);
            }
        }
        Ok(Self {
            database,
            keyspaces,
        })
    }
}

impl Engine for Segments {
    fn append(&mut self, batch: &[Record<'_>]) -> Result<()> {
        let mut by_segment: BTreeMap<_, Vec<Record<'_>>> = BTreeMap::new();
        for record in batch {
            by_segment
                .entry((record.stream, record.offset / SEGMENT))
                .or_default()
                .push(*record);
        }
        let mut writes = self
            .database
            .batch()
            .durability(Some(PersistMode::SyncData));
        for ((stream, segment), records) in by_segment {
            let rows = match self.keyspaces.entry((stream, segment)) {
                std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::btree_map::Entry::Vacant(fresh) => {
                    let name = format!("{stream}-{segment}");
                    fresh.insert(self.database.keyspace(&name, options)?)
                }
            };
            for row in pack::rows(&records, stream, CAP) {
                writes.insert(rows, row.key(), row.value);
            }
        }
        Ok(writes.commit()?)
    }

    fn scan(
        &self,
        stream: u16,
        from: u64,
        max: usize,
        each: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<usize> {
        let mut count = 0;
        let snapshot = self.database.snapshot();
        let first = (stream, from / SEGMENT);
        for (_, rows) in self.keyspaces.range(first..(stream + 1, 0)) {
            let rows = snapshot.range(rows, pack::key(from, 0)..);
            scan_packed(rows, 0, from, max, &mut count, each)?;
            if count == max {
                break;
            }
        }
        Ok(count)
    }

    fn drop_before(&mut self, stream: u16, offset: u64) -> Result<()> {
        let gone = self
            .keyspaces
            .range((stream, 0)..(stream, offset / SEGMENT));
        for place in gone.map(|(place, _)| *place).collect::<Vec<_>>() {
            if let Some(segment) = self.keyspaces.remove(&place) {
                self.database.delete_keyspace(segment)?;
            }
        }
        Ok(())
    }
}
