//! The floors under `file:`: the bare engine, and the bare disk.

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fjall::config::{BlockSizePolicy, CompressionPolicy, FilterPolicy};
use fjall::{CompressionType, Database, KeyspaceCreateOptions, PersistMode};

use super::load::{Events, KEYS};
use super::{file, place};
use crate::frame::Sample;

/// Partitions of a topic, unless it says otherwise.
const PARTITIONS: usize = 16;

/// One thread writes batches of so many events, each batch with one sync: what group commit comes to
/// when nobody has to be waited for, answered or read to. The engine is set up as the broker does it,
/// and gets the same bytes: every event is made and encoded, and those of a partition share a row.
pub(super) async fn batches(size: u32, time: Duration) -> Result<Sample> {
    let events = Events::new()?;
    let writing = tokio::task::spawn_blocking(move || {
        let folder = place::folder()?;
        let database = Database::builder(folder.path())
            .journal_compression(CompressionType::None)
            .max_journaling_size(128 << 20)
            .open()?;
        let rows = database.keyspace("rows", || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(16 << 20)
                .filter_policy(FilterPolicy::disabled())
                .data_block_size_policy(BlockSizePolicy::all(16 << 10))
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
        })?;
        let mut keys = (0..KEYS).cycle();
        let mut written = 0_usize;
        let started = Instant::now();
        while started.elapsed() < time {
            let mut values = [const { Vec::new() }; PARTITIONS];
            for (key, partition) in keys
                .by_ref()
                .take(size as usize)
                .zip((0..PARTITIONS).cycle())
            {
                values[partition].extend_from_slice(&events.event(key, 0)?.encode());
            }
            let mut batch = database.batch().durability(Some(PersistMode::SyncData));
            for (partition, value) in values.iter().enumerate().filter(|(_, v)| !v.is_empty()) {
                let mut key = [0; 16];
                key[4..8].copy_from_slice(&u32::try_from(partition)?.to_be_bytes());
                key[8..].copy_from_slice(&(written as u64).to_be_bytes());
                batch.insert(&rows, key, value.as_slice());
            }
            batch.commit()?;
            written += size as usize;
        }
        anyhow::Ok(Sample::rate(written, started.elapsed()))
    });
    writing.await.context("the writer failed")?
}

/// How a file is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writing {
    /// At its end: every sync has to note its new length as well.
    Growing,
    /// Over zeros that were written before: nothing but the bytes.
    InPlace,
}

/// The median time of writing one record's bytes and syncing them, without any engine.
pub(super) async fn fdatasync(writes: u32, how: Writing) -> Result<Sample> {
    let body = Events::new()?.event(0, 0)?.encode();
    let writing = tokio::task::spawn_blocking(move || {
        let folder = place::folder()?;
        let mut file = OpenOptions::new()
            .create_new(true)
            .write(true)
            .open(folder.path().join("log"))?;
        if how == Writing::InPlace {
            file.write_all(&vec![0; body.len() * (writes as usize + 1)])?;
            file.sync_all()?;
            file.seek(SeekFrom::Start(0))?;
        }
        let mut times = Vec::with_capacity(writes as usize);
        for _ in 0..writes {
            let started = Instant::now();
            file.write_all(&body)?;
            file.sync_data()?;
            times.push(started.elapsed());
        }
        anyhow::Ok(Sample::time(file::median(times)))
    });
    writing.await.context("the writer failed")?
}
