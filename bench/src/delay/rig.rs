//! A store, a bus that messages are delivered to, and the messages.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use bytes::Bytes;
use laneway::{Bus, BusSink};
use laneway_delay::{Delays, MessageId, Options, Sinks, Submission, Target, Timestamp, When};
use tempfile::TempDir;

use crate::bus::place;

/// Where messages go.
pub(super) const TOPIC: &str = "due";

const PAYLOAD: usize = 128;
const KEYS: u64 = 1000;

/// Messages submitted at once.
pub(super) const BATCH: u64 = 500;

pub(super) struct Rig {
    pub(super) bus: Bus,
    pub(super) delays: Delays,
    pub(super) folder: TempDir,
}

impl Rig {
    /// A bus on disk, and messages on disk.
    pub(super) async fn new() -> Result<Self> {
        let folder = place::folder()?;
        let bus = Bus::open(&format!("file:{}", folder.path().join("bus").display())).await?;
        let delays = open(&bus, &folder).await?;
        Ok(Self {
            bus,
            delays,
            folder,
        })
    }

    /// Opens the messages again that were closed.
    pub(super) async fn open_again(&mut self) -> Result<()> {
        self.delays = open(&self.bus, &self.folder).await?;
        Ok(())
    }

    /// Submits messages in batches, several at a time; answers their ids.
    pub(super) async fn submit_all(
        &self,
        count: u64,
        tasks: u64,
        due: impl Fn(u64) -> Timestamp + Copy + Send + 'static,
    ) -> Result<Vec<MessageId>> {
        let mut all = Vec::new();
        let submitting = (0..tasks).map(|task| self.submit_some(count, tasks, task, due));
        for ids in futures_util::future::try_join_all(submitting).await? {
            all.extend(ids);
        }
        Ok(all)
    }

    async fn submit_some(
        &self,
        count: u64,
        tasks: u64,
        task: u64,
        due: impl Fn(u64) -> Timestamp + Copy + Send + 'static,
    ) -> Result<Vec<MessageId>> {
        let delays = self.delays.clone();
        let task = tokio::spawn(async move {
            let mut ids = Vec::new();
            let mut first = task * BATCH;
            while first < count {
                let numbers = first..(first + BATCH).min(count);
                let batch = numbers.map(|number| message(number, due(number)));
                for answer in delays.submit(batch.collect()).await {
                    ids.push(answer?.id);
                }
                first += tasks * BATCH;
            }
            anyhow::Ok(ids)
        });
        task.await.context("a publisher failed")?
    }

    pub(super) async fn close(self) -> Result<()> {
        self.delays.close(Duration::from_secs(30)).await?;
        self.bus.close(Duration::from_secs(30)).await?;
        Ok(())
    }
}

/// A message whose payload begins with its number.
pub(super) fn message(number: u64, due: Timestamp) -> Submission {
    let target = Target::bus(TOPIC, format!("key-{}", number % KEYS), "Due");
    Submission::new(TOPIC, When::At(due), target)
        .payload(payload(number))
        .content_type("application/json")
}

/// 128 bytes of JSON that begin with a number.
pub(super) fn payload(number: u64) -> String {
    format!("\"{number:010}{:x<1$}\"", "", PAYLOAD - 12)
}

/// The number that a payload begins with.
pub(super) fn number_of(payload: &Bytes) -> Option<usize> {
    std::str::from_utf8(payload.get(1..11)?).ok()?.parse().ok()
}

async fn open(bus: &Bus, folder: &TempDir) -> Result<Delays> {
    let sinks = Sinks {
        bus: Some(Arc::new(BusSink::new(bus.clone()))),
        callbacks: None,
    };
    let path = folder.path().join("delays");
    Ok(Delays::open(path, sinks, Options::default()).await?)
}

/// Microseconds of the wall clock.
pub(crate) fn now_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    })
}

/// A moment this far from now.
pub(super) fn after(delay: Duration) -> Timestamp {
    Timestamp::from(SystemTime::now()) + delay
}

/// A moment that no benchmark lives to see.
pub(super) fn next_week() -> Timestamp {
    after(Duration::from_hours(7 * 24))
}
