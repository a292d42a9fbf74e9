//! A pool: the workers that share one ready queue, and what they share besides.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use tokio::sync::Notify;

use super::backoff::Backoff;
use super::capacity::Gate;
use super::clock::Clock;
use super::close::Closing;
use super::events::Teller;
use super::options::{Options, Scope};
use super::ready::{Next, Ready, TopicId, WorkerId};
use super::shards::LaneId;
use super::stats::{TopicStats, WorkerStats};
use super::sync;
use super::worker_slot::WorkerSlot;

/// What a worker needs of a topic, whatever the type of its jobs.
pub(super) trait Runner: Send + Sync {
    /// Runs turns, the first of them on `lane`, until another topic is next.
    fn run<'a>(
        &'a self,
        slot: &'a WorkerSlot,
        lane: LaneId,
    ) -> Pin<Box<dyn Future<Output = RunEnd> + Send + 'a>>;

    /// A lane that backs off is due.
    fn resume(&self, lane: LaneId);

    fn stats(&self) -> TopicStats;

    fn closing(&self) -> &dyn Closing;
}

/// How [`Runner::run`] ended.
#[derive(Debug)]
pub(super) enum RunEnd {
    /// The worker goes on with this.
    Next(Next),
    /// The worker has put everything back, and lets other tasks run before it asks for more.
    Yields,
    /// A handler panicked: the worker starts afresh.
    Panicked,
}

pub(super) struct WorkerPool {
    pub(super) slots: Box<[WorkerSlot]>,
    ready: Mutex<Ready>,
    topics: RwLock<Vec<Option<Arc<dyn Runner>>>>,
    pub(super) shared: Gate,
    /// Submitters that wait for room in `shared`.
    pub(super) room: Room,
    pub(super) backoff: Backoff,
    pub(super) clock: Clock,
    pub(super) teller: Teller,
    stopping: AtomicBool,
    of_one_topic: bool,
}

/// Where submitters wait for room.
///
/// A waiter counts itself first and then looks for room; a releaser makes room first and then looks
/// for waiters. Both are sequentially consistent, so at least one of them sees the other.
#[derive(Debug, Default)]
pub(super) struct Room {
    pub(super) freed: Notify,
    waiting: AtomicUsize,
}

impl Room {
    pub(super) fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Waiting(self)
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Answers whether a worker waited.
    pub(super) fn announce(&self) -> bool {
        let awaited = self.is_awaited();
        if awaited {
            self.freed.notify_waiters();
        }
        awaited
    }
}

/// Counts a waiter for as long as it waits.
pub(super) struct Waiting<'a>(&'a Room);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl WorkerPool {
    pub(super) fn new(options: &Options, clock: Clock, teller: Teller) -> Self {
        Self {
            slots: (0..options.workers)
                .map(|id| WorkerSlot::new(WorkerId(id), options.restarts))
                .collect(),
            ready: Mutex::new(Ready::new(options.workers)),
            topics: RwLock::default(),
            shared: Gate::new(options.shared()),
            room: Room::default(),
            backoff: Backoff::default(),
            clock,
            teller,
            stopping: AtomicBool::new(false),
            of_one_topic: options.scope == Scope::PerTopic,
        }
    }

    pub(super) fn add_topic<R: Runner + 'static>(
        &self,
        make: impl FnOnce(TopicId) -> Arc<R>,
    ) -> Arc<R> {
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        let id = self.ready().add_topic();
        let runner = make(id);
        if topics.len() <= id.0 {
            topics.resize_with(id.0 + 1, || None);
        }
        topics[id.0] = Some(runner.clone());
        runner
    }

    /// Forgets closed topics whose last turn has ended; one with a handler that cannot be stopped is
    /// kept until it returns. A pool of one topic stops with it.
    pub(super) fn sweep(&self) {
        let (mut gone, mut wake) = (Vec::new(), Vec::new());
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        let mut ready = self.ready();
        for slot in &mut *topics {
            if let Some(id) = slot
                .as_ref()
                .map(|runner| runner.closing())
                .filter(|topic| topic.is_closed())
                .map(Closing::id)
                && ready.running(id) == 0
            {
                self.backoff.forget(id);
                wake.extend(ready.remove_topic(id));
                gone.extend(slot.take());
            }
        }
        drop(ready);
        let nobody_left = topics.iter().all(Option::is_none);
        drop(topics);
        for worker in wake {
            self.wake(Some(worker));
        }
        // Handlers are a user's code, and so is their end: never under a lock.
        drop(gone);
        if self.of_one_topic && nobody_left {
            self.stop();
        }
    }

    /// The figures of its workers; none if it was the pool of a topic that is gone.
    pub(super) fn worker_stats(&self) -> Vec<WorkerStats> {
        let topic = match (self.of_one_topic, self.runners().first()) {
            (false, _) => None,
            (true, Some(only)) => Some(only.closing().name().clone()),
            (true, None) => return Vec::new(),
        };
        self.slots
            .iter()
            .map(|slot| slot.stats(&self.clock, topic.clone()))
            .collect()
    }

    /// Whether it was the pool of a topic that is gone.
    pub(super) fn is_left(&self) -> bool {
        self.of_one_topic && self.runners().is_empty()
    }

    /// The keys that handlers of a topic are at now.
    pub(super) fn keys_running(&self, topic: &str) -> Vec<String> {
        self.slots
            .iter()
            .filter_map(WorkerSlot::running)
            .filter(|(name, _)| &**name == topic)
            .filter_map(|(_, key)| key)
            .collect()
    }

    pub(super) fn runner(&self, id: TopicId) -> Option<Arc<dyn Runner>> {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        topics.get(id.0).cloned().flatten()
    }

    /// The topics that are not over.
    pub(super) fn runners(&self) -> Vec<Arc<dyn Runner>> {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        topics
            .iter()
            .flatten()
            .filter(|runner| !runner.closing().is_over())
            .cloned()
            .collect()
    }

    /// A lane has work: puts it on the queue and wakes a worker if one should come.
    pub(super) fn push(&self, topic: TopicId, lane: LaneId) {
        let wake = self.ready().push(topic, lane);
        self.wake(wake);
    }

    pub(super) fn next(&self, worker: WorkerId, woken: bool) -> Next {
        self.ready().next(worker, woken)
    }

    /// A turn ended, and its worker asks for the next lane: one lock for both.
    pub(super) fn next_after(&self, slot: &WorkerSlot, topic: TopicId) -> Next {
        let mut lanes = slot.stash.lanes();
        let (next, wake) = lanes.refill(&mut self.ready(), slot.id, topic);
        drop(lanes);
        self.wake(wake);
        next
    }

    /// Puts back what a worker has taken ahead: it will not come to it soon.
    pub(super) fn empty_stash(&self, slot: &WorkerSlot) {
        let mut lanes = slot.stash.lanes();
        if lanes.is_empty() {
            return;
        }
        let wake = lanes.put_back(&mut self.ready());
        drop(lanes);
        self.wake(wake);
    }

    /// A turn ended, and its worker is not going to ask.
    pub(super) fn turn_ended(&self, topic: TopicId, again: Option<LaneId>) {
        let wake = self.ready().turn_ended(topic, again);
        self.wake(wake);
    }

    pub(super) fn wake(&self, worker: Option<WorkerId>) {
        if let Some(worker) = worker {
            self.slots[worker.0].wake.notify_one();
        }
    }

    pub(super) fn ready_lanes(&self) -> usize {
        self.ready().queued()
    }

    /// If lanes wait and workers sleep, and no woken one has come since `last`, the one that was
    /// woken does not get a thread (the runtime keeps its latest task for a thread that a handler is
    /// blocking): wakes another one. Answers the count to pass the next time.
    pub(super) fn nudge(&self, last: u64) -> u64 {
        let mut ready = self.ready();
        let arrivals = ready.arrivals();
        if arrivals == last {
            let wake = ready.nudge();
            drop(ready);
            self.wake(wake);
        }
        arrivals
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Workers leave when they find nothing to do.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.backoff.stop();
        for slot in &self.slots {
            slot.wake.notify_one();
        }
    }

    fn ready(&self) -> sync::MutexGuard<'_, Ready> {
        sync::lock(&self.ready)
    }
}
