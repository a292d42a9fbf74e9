//! Figures: counted where the work is done, added up when they are read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::capacity::Bound;
use super::histogram::{Histogram, Latency};
use super::hot::{HotKey, HotKeys};

/// Figures of a topic are counted in so many places, by worker, so that two cores rarely write to
/// the same cache line.
const STRIPES: usize = 8;

/// Shown of the hottest keys.
const HOTTEST: usize = 10;

/// What an engine looks like now. See [`Engine::stats`](super::Engine::stats).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// The topics, in the order they were added.
    pub topics: Vec<TopicStats>,
    /// The workers. In [`Scope::PerTopic`](super::Scope::PerTopic) those of all topics.
    pub workers: Vec<WorkerStats>,
    /// Lanes that wait for a worker.
    pub ready_lanes: usize,
}

/// The figures of one topic.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TopicStats {
    /// Its name.
    pub topic: Arc<str>,
    /// Jobs that were handled.
    pub processed: u64,
    /// Attempts that failed, whatever came of it.
    pub failed: u64,
    /// Attempts that failed by a panic.
    pub panicked: u64,
    /// Attempts that failed by their time limit.
    pub timed_out: u64,
    /// Jobs whose attempts were used up.
    pub exhausted: u64,
    /// Submits that found no room.
    pub saturated: u64,
    /// What is queued and running.
    pub depth: Bound,
    /// Lanes that have work.
    pub lanes: usize,
    /// Lanes that wait for a retry.
    pub backing_off: usize,
    /// From submit to the start of the attempt.
    pub queue_time: Latency,
    /// From the start to the end of an attempt.
    pub run_time: Latency,
    /// The keys with the most work, most first, from a sample.
    pub hottest: Vec<HotKey>,
}

/// The figures of one worker.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerStats {
    /// The topic that it works for, in [`Scope::PerTopic`](super::Scope::PerTopic).
    pub topic: Option<Arc<str>>,
    /// Its number among those that share a ready queue: all, or those of its topic.
    pub worker: usize,
    /// Jobs that it handled.
    pub processed: u64,
    /// Attempts that failed on it.
    pub failed: u64,
    /// How often it started afresh after a panic.
    pub restarts: u64,
    /// What it does now.
    pub state: WorkerState,
}

/// What a worker does now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkerState {
    /// Nothing to do.
    Idle,
    /// It runs a handler, since so long.
    Running(Duration),
    /// It restarted too often and rests before it goes on.
    Degraded,
}

/// The counters behind [`TopicStats`].
#[derive(Debug)]
pub(super) struct TopicCounters {
    stripes: Box<[Stripe]>,
    pub(super) exhausted: AtomicU64,
    pub(super) saturated: AtomicU64,
    pub(super) backing_off: AtomicU64,
    hot: Mutex<HotKeys>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Stripe {
    pub(super) processed: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) panicked: AtomicU64,
    pub(super) timed_out: AtomicU64,
    pub(super) queue_time: Histogram,
    pub(super) run_time: Histogram,
}

impl TopicCounters {
    pub(super) fn new() -> Self {
        Self {
            stripes: (0..STRIPES).map(|_| Stripe::default()).collect(),
            exhausted: AtomicU64::new(0),
            saturated: AtomicU64::new(0),
            backing_off: AtomicU64::new(0),
            hot: Mutex::default(),
        }
    }

    pub(super) fn of_worker(&self, worker: usize) -> &Stripe {
        &self.stripes[worker % STRIPES]
    }

    /// Counts for the hottest keys, unless another worker is just at it: this is a sample anyway.
    pub(super) fn sample_key(&self, key: &str, jobs: u64) {
        if let Ok(mut hot) = self.hot.try_lock() {
            hot.record(key, jobs);
        }
    }

    pub(super) fn read(&self, topic: Arc<str>, depth: Bound, lanes: usize) -> TopicStats {
        let mut stats = TopicStats {
            topic,
            processed: 0,
            failed: 0,
            panicked: 0,
            timed_out: 0,
            exhausted: self.exhausted.load(Ordering::Relaxed),
            saturated: self.saturated.load(Ordering::Relaxed),
            depth,
            lanes,
            backing_off: usize::try_from(self.backing_off.load(Ordering::Relaxed))
                .unwrap_or(usize::MAX),
            queue_time: Latency::default(),
            run_time: Latency::default(),
            hottest: self
                .hot
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .hottest(HOTTEST),
        };
        for stripe in &self.stripes {
            stats.processed += stripe.processed.load(Ordering::Relaxed);
            stats.failed += stripe.failed.load(Ordering::Relaxed);
            stats.panicked += stripe.panicked.load(Ordering::Relaxed);
            stats.timed_out += stripe.timed_out.load(Ordering::Relaxed);
            stripe.queue_time.add_to(&mut stats.queue_time);
            stripe.run_time.add_to(&mut stats.run_time);
        }
        stats
    }
}
