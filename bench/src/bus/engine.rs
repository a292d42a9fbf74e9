//! The floors under `file:`: the bare engine, and the bare disk.

use std::cell::Cell;
use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use fjall::config::{BlockSizePolicy, CompressionPolicy, FilterPolicy};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::load::{Events, KEYS};
use super::{file, place};
use crate::frame::Sample;

/// Partitions of a topic, unless it says otherwise.
const PARTITIONS: usize = 16;

/// The most events that go into one commit.
const MOST: usize = 1024;

/// An encoded event of a partition, and where to say that it is durable.
struct Publish {
    partition: usize,
    body: Bytes,
    ack: oneshot::Sender<()>,
}

/// Publishes for so long by group commit, as anybody would write it around the engine: publishers
/// make and encode their events, send them to a queue and wait; one thread takes all that is there,
/// writes and syncs it as one batch, and answers.
pub(super) async fn group_commit(publishers: u32, time: Duration) -> Result<Sample> {
    let folder = place::folder()?;
    let rows = Rows::open(folder.path())?;
    let events = Events::new()?;
    let (queue, mut queued) = mpsc::channel::<Publish>(MOST);
    let writer = tokio::task::spawn_blocking(move || {
        let mut taken = Vec::with_capacity(MOST);
        while queued.blocking_recv_many(&mut taken, MOST) > 0 {
            rows.write(
                taken
                    .iter()
                    .map(|publish| (publish.partition, &publish.body)),
            )?;
            for publish in taken.drain(..) {
                let _ = publish.ack.send(());
            }
        }
        anyhow::Ok(())
    });
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for publisher in 0..publishers {
        let (queue, events) = (queue.clone(), events.clone());
        tasks.spawn(async move {
            let mut count = 0_usize;
            for key in (publisher..KEYS).step_by(publishers as usize).cycle() {
                if started.elapsed() >= time {
                    break;
                }
                let (ack, durable) = oneshot::channel();
                let publish = Publish {
                    partition: key as usize % PARTITIONS,
                    body: events.event(key, 0)?.encode(),
                    ack,
                };
                let sent = queue.send(publish).await;
                sent.ok().context("the writer has ended")?;
                durable.await.context("the writer has failed")?;
                count += 1;
            }
            anyhow::Ok(count)
        });
    }
    drop(queue);
    let mut count = 0;
    while let Some(done) = tasks.join_next().await {
        count += done.context("a publisher failed")??;
    }
    let sample = Sample::rate(count, started.elapsed());
    writer.await.context("the writer failed")??;
    Ok(sample)
}

/// One thread makes and writes batches of so many events, each batch with one sync: what the engine
/// can do when nobody has to be waited for or answered.
pub(super) async fn batches(size: u32, time: Duration) -> Result<Sample> {
    let events = Events::new()?;
    let writing = tokio::task::spawn_blocking(move || {
        let folder = place::folder()?;
        let rows = Rows::open(folder.path())?;
        let mut keys = (0..KEYS).cycle();
        let mut written = 0_usize;
        let started = Instant::now();
        while started.elapsed() < time {
            let bodies: Vec<(usize, Bytes)> = keys
                .by_ref()
                .take(size as usize)
                .map(|key| anyhow::Ok((key as usize % PARTITIONS, events.event(key, 0)?.encode())))
                .collect::<Result<_>>()?;
            rows.write(bodies.iter().map(|(partition, body)| (*partition, body)))?;
            written += bodies.len();
        }
        anyhow::Ok(Sample::rate(written, started.elapsed()))
    });
    writing.await.context("the writer failed")?
}

/// The engine, set up as the broker does it.
struct Rows {
    database: Database,
    keyspace: Keyspace,
    next: Cell<u64>,
}

impl Rows {
    fn open(folder: &Path) -> Result<Self> {
        let database = Database::builder(folder)
            .journal_compression(CompressionType::None)
            .max_journaling_size(128 << 20)
            .open()?;
        let keyspace = database.keyspace("rows", || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(16 << 20)
                .filter_policy(FilterPolicy::disabled())
                .data_block_size_policy(BlockSizePolicy::all(16 << 10))
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
        })?;
        Ok(Self {
            database,
            keyspace,
            next: Cell::new(0),
        })
    }

    /// Writes events, those of a partition in one row as the broker does, and syncs once.
    fn write<'a>(&self, events: impl Iterator<Item = (usize, &'a Bytes)>) -> Result<()> {
        let mut values = [const { Vec::new() }; PARTITIONS];
        for (partition, body) in events {
            values[partition].extend_from_slice(body);
        }
        let number = self.next.replace(self.next.get() + 1);
        let mut batch = self
            .database
            .batch()
            .durability(Some(PersistMode::SyncData));
        for (partition, value) in (0_u32..)
            .zip(&values)
            .filter(|(_, value)| !value.is_empty())
        {
            let mut key = [0; 16];
            key[4..8].copy_from_slice(&partition.to_be_bytes());
            key[8..].copy_from_slice(&number.to_be_bytes());
            batch.insert(&self.keyspace, key, value.as_slice());
        }
        Ok(batch.commit()?)
    }
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
