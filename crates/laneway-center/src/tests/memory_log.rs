//! The log of a cluster in one process. Each center has a handle of its own, so that one can be cut off or frozen.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::SystemTime;

use bytes::Bytes;
use laneway_cluster::checker::LogEntry;
use laneway_delay::{BoxFuture, Timestamp};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::log::{Follow, LogError, Records, ShardLog};

/// All records that there ever were, and from where on they are left.
#[derive(Default)]
struct Partition {
    first: u64,
    all: Vec<LogEntry>,
}

struct Topic {
    partitions: Vec<Mutex<Partition>>,
    ends: Vec<watch::Sender<u64>>,
}

/// A center's handle of the log.
#[derive(Clone)]
pub(super) struct MemoryLog {
    topic: Arc<Topic>,
    /// While it is true nothing gets through, in either direction.
    frozen: Arc<watch::Sender<bool>>,
    /// So many appends land, and their answers are lost.
    unknown: Arc<AtomicU32>,
    /// So many appends are lost.
    lost: Arc<AtomicU32>,
    /// The first offset from which it was read.
    read_from: Arc<AtomicU64>,
}

impl MemoryLog {
    pub(super) fn new(shards: u32) -> Self {
        let topic = Topic {
            partitions: (0..shards).map(|_| Mutex::default()).collect(),
            ends: (0..shards).map(|_| watch::Sender::new(0)).collect(),
        };
        Self::over(Arc::new(topic))
    }

    fn over(topic: Arc<Topic>) -> Self {
        Self {
            topic,
            frozen: Arc::new(watch::Sender::new(false)),
            unknown: Arc::default(),
            lost: Arc::default(),
            read_from: Arc::new(AtomicU64::new(u64::MAX)),
        }
    }

    /// A handle for another center.
    pub(super) fn another(&self) -> Self {
        Self::over(self.topic.clone())
    }

    pub(super) fn freeze(&self, is_frozen: bool) {
        self.frozen.send_replace(is_frozen);
    }

    pub(super) fn lose_answers(&self, count: u32) {
        self.unknown.store(count, SeqCst);
    }

    pub(super) fn lose_appends(&self, count: u32) {
        self.lost.store(count, SeqCst);
    }

    /// All records of a shard that there ever were.
    pub(super) fn all(&self, shard: u32) -> Vec<LogEntry> {
        self.topic.partitions[shard as usize].lock().all.clone()
    }

    pub(super) fn first(&self, shard: u32) -> u64 {
        self.topic.partitions[shard as usize].lock().first
    }

    /// The first offset from which any shard was read by this center.
    pub(super) fn read_from(&self) -> u64 {
        self.read_from.load(SeqCst)
    }

    async fn thaw(&self) {
        let mut frozen = self.frozen.subscribe();
        let _ = frozen.wait_for(|frozen| !frozen).await;
    }

    fn push(&self, shard: u32, records: Vec<Bytes>) {
        let at = Timestamp::from(SystemTime::now());
        let mut partition = self.topic.partitions[shard as usize].lock();
        for bytes in records {
            let offset = partition.all.len() as u64;
            partition.all.push(LogEntry { offset, at, bytes });
        }
        let end = partition.all.len() as u64;
        drop(partition);
        self.topic.ends[shard as usize].send_replace(end);
    }
}

fn takes(counter: &AtomicU32) -> bool {
    let less = |count: u32| count.checked_sub(1);
    counter.fetch_update(SeqCst, SeqCst, less).is_ok()
}

impl ShardLog for MemoryLog {
    fn identity(&self) -> &'static str {
        "memory"
    }

    fn shards(&self) -> u32 {
        u32::try_from(self.topic.partitions.len()).unwrap()
    }

    fn append(&self, shard: u32, records: Vec<Bytes>) -> BoxFuture<'_, Result<(), LogError>> {
        Box::pin(async move {
            self.thaw().await;
            tokio::task::yield_now().await;
            if takes(&self.lost) {
                return Err(LogError("it was lost".to_owned()));
            }
            self.push(shard, records);
            if takes(&self.unknown) {
                return Err(LogError("the answer was lost".to_owned()));
            }
            Ok(())
        })
    }

    fn bounds(&self, shard: u32) -> BoxFuture<'_, Result<Range<u64>, LogError>> {
        Box::pin(async move {
            self.thaw().await;
            let partition = self.topic.partitions[shard as usize].lock();
            Ok(partition.first..partition.all.len() as u64)
        })
    }

    fn read(&self, shard: u32, offset: u64) -> BoxFuture<'_, Result<Option<Bytes>, LogError>> {
        Box::pin(async move {
            self.thaw().await;
            let partition = self.topic.partitions[shard as usize].lock();
            let index = usize::try_from(offset).unwrap();
            let entry = partition.all.get(index);
            let is_left = offset >= partition.first;
            Ok(entry.filter(|_| is_left).map(|entry| entry.bytes.clone()))
        })
    }

    fn follow(&self, shard: u32, from: u64) -> Box<dyn Follow> {
        self.read_from.fetch_min(from, SeqCst);
        Box::new(Follower {
            log: self.clone(),
            shard,
            next: from,
        })
    }

    fn trim(&self, shard: u32, before: u64) -> BoxFuture<'_, Result<(), LogError>> {
        Box::pin(async move {
            self.thaw().await;
            let mut partition = self.topic.partitions[shard as usize].lock();
            partition.first = partition.first.max(before);
            Ok(())
        })
    }
}

struct Follower {
    log: MemoryLog,
    shard: u32,
    next: u64,
}

impl Follow for Follower {
    fn next(&mut self) -> BoxFuture<'_, Result<Records, LogError>> {
        Box::pin(async move {
            let mut ends = self.log.topic.ends[self.shard as usize].subscribe();
            let _ = ends.wait_for(|end| *end > self.next).await;
            self.log.thaw().await;
            let partition = self.log.topic.partitions[self.shard as usize].lock();
            if self.next < partition.first {
                return Err(LogError("it was trimmed".to_owned()));
            }
            let from = usize::try_from(self.next).unwrap();
            let records = partition.all[from..].iter().take(100);
            let records: Records = records
                .map(|entry| (entry.offset, entry.bytes.clone()))
                .collect();
            self.next += records.len() as u64;
            Ok(records)
        })
    }
}
