//! One face for all engines: an append-only log of several streams (topic-partitions), each record
//! known by its stream and offset.

mod file;
mod fjall;
mod pack;
mod redb;
mod sqlite;

use std::path::Path;

use ::fjall::PersistMode;
use anyhow::Result;
use clap::ValueEnum;

/// One record to append. Offsets of a stream count up from 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'a> {
    pub(crate) stream: u16,
    pub(crate) offset: u64,
    pub(crate) body: &'a [u8],
}

/// What a log needs of an engine.
pub(crate) trait Engine: Send {
    /// Appends a batch over any streams. It is durable when this returns: one fsync (or whatever
    /// the engine takes).
    fn append(&mut self, batch: &[Record<'_>]) -> Result<()>;

    /// Hands up to `max` records from `from` on to `each`, in order; returns how many.
    fn scan(
        &self,
        stream: u16,
        from: u64,
        max: usize,
        each: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<usize>;

    /// Removes all records of a stream before `offset`, durably enough that space comes back.
    fn drop_before(&mut self, stream: u16, offset: u64) -> Result<()>;
}

/// The engines and layouts under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Choice {
    /// Floor: a bare file that grows, `write` + `fdatasync`.
    File,
    /// Floor: a bare file whose blocks were written with zeros before.
    FileZeroed,
    /// fjall, a keyspace per stream, a row per record.
    Fjall,
    /// fjall, as it comes: 64 MiB memtables, 512 MiB of journals, bloom filters.
    FjallDefault,
    /// fjall, one keyspace for all streams, a row per record.
    FjallOne,
    /// fjall, a keyspace per stream, values from 1 KiB on in blob files.
    FjallBlob,
    /// fjall, a keyspace per stream, the records of a batch packed into rows of under 4 KiB.
    FjallPacked,
    /// As `fjall-packed`, and every 32 MiB all memtables are flushed, however small.
    FjallFlushed,
    /// fjall, one keyspace for all streams, packed as `fjall-packed`.
    FjallOnePacked,
    /// fjall, a keyspace per stream, the records of a batch packed into one row of any size.
    FjallWide,
    /// As `fjall-packed`, but a keyspace per stream and 32,768 offsets, deleted as a whole.
    FjallSegments,
    /// Control: as `fjall-packed`, but acked without an fsync. A power cut must lose something.
    FjallUnsynced,
    /// redb, a table per stream.
    Redb,
    /// redb with quick repair (two fsyncs a commit, allocator state in every commit).
    RedbQuick,
    /// redb, a table per stream, a row per stream and batch.
    RedbPacked,
    /// `SQLite`, WAL, `synchronous=FULL`, one table.
    Sqlite,
    /// `SQLite`, a row per stream and batch.
    SqlitePacked,
}

impl Choice {
    pub(crate) fn open(self, directory: &Path, streams: u16) -> Result<Box<dyn Engine>> {
        std::fs::create_dir_all(directory)?;
        let packed = |cap, flush_every, durability| -> Result<Box<dyn Engine>> {
            Ok(Box::new(fjall::Packed::open(
                directory,
                streams,
                cap,
                flush_every,
                durability,
            )?))
        };
        Ok(match self {
            Self::File => Box::new(file::Bare::open(directory, 0)?),
            Self::FileZeroed => Box::new(file::Bare::open(directory, file::ZEROED)?),
            Self::Fjall => Box::new(fjall::Rows::open(
                directory,
                streams,
                fjall::Layout::PerStream,
            )?),
            Self::FjallDefault => Box::new(fjall::Rows::open(
                directory,
                streams,
                fjall::Layout::Untuned,
            )?),
            Self::FjallBlob => {
                Box::new(fjall::Rows::open(directory, streams, fjall::Layout::Blobs)?)
            }
            Self::FjallOne => Box::new(fjall::OneKeyspace::open(directory)?),
            Self::FjallPacked => packed(fjall::CAP, None, PersistMode::SyncData)?,
            Self::FjallFlushed => packed(fjall::CAP, Some(32 << 20), PersistMode::SyncData)?,
            Self::FjallOnePacked => Box::new(fjall::OnePacked::open(directory, streams)?),
            Self::FjallWide => packed(usize::MAX, None, PersistMode::SyncData)?,
            Self::FjallUnsynced => packed(fjall::CAP, None, PersistMode::Buffer)?,
            Self::FjallSegments => Box::new(fjall::Segments::open(directory)?),
            Self::Redb => Box::new(redb::Rows::open(directory, streams, false)?),
            Self::RedbQuick => Box::new(redb::Rows::open(directory, streams, true)?),
            Self::RedbPacked => Box::new(redb::Packed::open(directory, streams)?),
            Self::Sqlite => Box::new(sqlite::Wal::open(directory)?),
            Self::SqlitePacked => Box::new(sqlite::Packed::open(directory, streams)?),
        })
    }

    pub(crate) fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }
}
