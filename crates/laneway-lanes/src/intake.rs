//! The way in: a topic's queue, and the handle that jobs are submitted by.
//!
//! Backpressure is here: [`Intake::submit`] waits while a lane, the topic or the engine is full. Nothing is dropped.

use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::cache_padded::CachePadded;
use super::capacity::{Bound, Gate};
use super::clock::after;
use super::close::{Abandoned, CloseReport, Drain};
use super::events::{Event, Full};
use super::halt::Halt;
use super::job::{Held, Job, Queued};
use super::options::{LaneBy, TopicOptions};
use super::ready::TopicId;
use super::shards::{LaneId, Pushed, Refused, Shards};
use super::stats::TopicCounters;
use super::worker_pool::{Room, Runner, WorkerPool};
use super::yielding::yield_to_others;
use crate::fnv::fnv1a_32;

/// Lanes of jobs without a key are numbered from here on, away from the fixed lanes of
/// [`LaneBy::Hash`].
const KEYLESS: u64 = 1 << 63;

/// A loop of submits lets others run after so many.
const YIELD_EVERY: u64 = 4096;

/// Who waits for room, or for quiet, looks again after this long, notice or not: a submitter that
/// found the topic's window free and the engine full held a place in the window for a moment, and
/// nobody is told when it lets go.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Locks for the lanes of a topic: enough that two cores seldom meet.
const SHARDS: usize = 256;

/// The queue of one topic. [`TopicLanes`](super::turn::TopicLanes) adds the handler.
pub(super) struct Queue<J> {
    pub(super) id: TopicId,
    pub(super) name: Arc<str>,
    pub(super) options: TopicOptions,
    pub(super) pool: Arc<WorkerPool>,
    pub(super) shards: Shards<Queued<J>>,
    /// Room that only this topic has.
    own: Gate,
    /// Its part of what the pool shares.
    window: Gate,
    pub(super) room: Room,
    pub(super) counters: TopicCounters,
    /// Written by every submit, so away from what workers read.
    coming: CachePadded<Coming>,
    hasher: foldhash::quality::RandomState,
    last_saturated: AtomicU64,
    refusing: AtomicBool,
    pub(super) halt: Halt,
    abandoned: Mutex<Abandoned>,
}

/// What is counted when jobs come.
struct Coming {
    keyless: AtomicU64,
    submits: AtomicU64,
}

/// Room that is given back.
#[derive(Debug, Default)]
pub(super) struct Freed {
    own: Option<Bound>,
    shared: Option<Bound>,
}

impl Freed {
    pub(super) fn add<J>(&mut self, queued: &Queued<J>) {
        let freed = if queued.room.is_shared() {
            &mut self.shared
        } else {
            &mut self.own
        };
        let freed = freed.get_or_insert(Bound::new(0, 0));
        freed.messages += 1;
        freed.bytes += queued.room.bytes();
    }
}

impl<J: Job> Queue<J> {
    pub(super) fn new(
        id: TopicId,
        name: Arc<str>,
        options: TopicOptions,
        reserve: Bound,
        pool: Arc<WorkerPool>,
    ) -> Self {
        let window = options.window.unwrap_or(Bound::MAX);
        let own = Bound::new(
            reserve.messages.min(window.messages),
            reserve.bytes.min(window.bytes),
        );
        let shards = match options.lane_by {
            LaneBy::Key => SHARDS,
            LaneBy::Hash(lanes) => SHARDS.min(lanes.get() as usize),
        };
        Self {
            id,
            name,
            shards: Shards::new(shards, options.lane_bound),
            own: Gate::new(own),
            window: Gate::new(Bound::new(
                window.messages - own.messages,
                window.bytes - own.bytes,
            )),
            options,
            pool,
            room: Room::default(),
            counters: TopicCounters::new(),
            coming: CachePadded(Coming {
                keyless: AtomicU64::new(KEYLESS),
                submits: AtomicU64::new(0),
            }),
            hasher: foldhash::quality::RandomState::default(),
            last_saturated: AtomicU64::new(0),
            refusing: AtomicBool::new(false),
            halt: Halt::default(),
            abandoned: Mutex::default(),
        }
    }

    fn lane_of(&self, job: &J) -> LaneId {
        match (job.key(), self.options.lane_by) {
            (None, _) => LaneId(self.coming.0.keyless.fetch_add(1, Ordering::Relaxed)),
            (Some(key), LaneBy::Key) => LaneId(self.hasher.hash_one(key)),
            (Some(key), LaneBy::Hash(lanes)) => {
                let hash = fnv1a_32(key.as_bytes());
                // The same, and cheaper: a division takes longer than the hash of a short key.
                let lane = if lanes.is_power_of_two() {
                    hash & (lanes.get() - 1)
                } else {
                    hash % lanes
                };
                LaneId(u64::from(lane))
            }
        }
    }

    /// The largest job that can ever be taken.
    fn largest(&self) -> usize {
        let shared = self
            .window
            .bound()
            .bytes
            .min(self.pool.shared.bound().bytes);
        shared.max(self.own.bound().bytes)
    }

    fn take_room(&self, bytes: usize) -> Result<bool, Full> {
        if self.own.try_take(bytes) {
            return Ok(false);
        }
        let shared = &self.pool.shared;
        let no_more = if shared.bound().messages == 0 {
            Full::Topic
        } else {
            Full::Engine
        };
        if self.options.window.is_none() {
            if !shared.try_take(bytes) {
                return Err(no_more);
            }
            // The window only counts then. It goes last, so that nothing is counted that is not there.
            let counted = self.window.try_take(bytes);
            debug_assert!(counted, "it is as large as anything can be");
            return Ok(true);
        }
        if !self.window.try_take(bytes) {
            return Err(Full::Topic);
        }
        if !shared.try_take(bytes) {
            self.window.give_back(Bound::new(1, bytes));
            return Err(no_more);
        }
        Ok(true)
    }

    /// Gives room back and tells those who wait for what is shared. Answers whether a submitter did.
    pub(super) fn give_back_room(&self, freed: &Freed) -> bool {
        if let Some(own) = freed.own {
            self.own.give_back(own);
        }
        freed.shared.is_some_and(|shared| {
            self.window.give_back(shared);
            self.pool.shared.give_back(shared);
            self.pool.room.announce()
        })
    }

    pub(super) fn depth(&self) -> Bound {
        let (own, shared) = (self.own.in_use(), self.window.in_use());
        Bound::new(own.messages + shared.messages, own.bytes + shared.bytes)
    }

    pub(super) fn refuse(&self) {
        self.refusing.store(true, Ordering::SeqCst);
        self.room.freed.notify_waiters();
        self.pool.room.freed.notify_waiters();
    }

    fn try_submit(&self, job: J) -> Result<(), SubmitError<J>> {
        if self.refusing.load(Ordering::SeqCst) {
            return Err(SubmitError::new(job, Refusal::Closed));
        }
        let lane = self.lane_of(&job);
        let queued = Queued {
            room: Held::own(job.bytes()),
            job,
            submitted: self.pool.clock.now(),
            failures: None,
        };
        let pushed = self.shards.push(lane, queued, |queued| {
            if self.take_room(queued.room.bytes())? {
                queued.room = queued.room.shared();
            }
            Ok(())
        });
        match pushed {
            Ok(Pushed::MakeReady) => {
                self.pool.push(self.id, lane);
                Ok(())
            }
            Ok(Pushed::Queued) => Ok(()),
            Err((queued, refused)) => {
                let (bytes, largest) = (queued.room.bytes(), self.largest());
                let reason = match refused {
                    Refused::Closed => Refusal::Closed,
                    _ if bytes > largest => Refusal::TooLarge { bytes, largest },
                    Refused::LaneFull => Refusal::QueueFull(Full::Lane),
                    Refused::NoRoom(full) => Refusal::QueueFull(full),
                };
                Err(SubmitError::new(queued.job, reason))
            }
        }
    }

    fn submits_until_yield(&self) -> u64 {
        // A lost count does not matter, so no read-modify-write.
        let submits = &self.coming.0.submits;
        let count = submits.load(Ordering::Relaxed) + 1;
        submits.store(count, Ordering::Relaxed);
        count % YIELD_EVERY
    }

    /// Waits for room until `deadline`, or for ever.
    async fn submit_until(&self, job: J, deadline: Option<Instant>) -> Result<(), SubmitError<J>> {
        // A loop of submits that never waits would keep its thread; yielding now and then lets a
        // worker run on the same thread, while what was submitted is still in its cache.
        if self.submits_until_yield() == 0 {
            yield_to_others().await;
        }
        let mut job = match self.try_submit(job) {
            Err(SubmitError {
                job,
                reason: Refusal::QueueFull(full),
            }) => {
                self.tell_saturated(full);
                job
            }
            answer => return answer,
        };
        let _here = self.room.wait();
        let _there = self.pool.room.wait();
        loop {
            // Registered before the next look, so that room made in between is not missed.
            let here = self.room.freed.notified();
            let there = self.pool.room.freed.notified();
            tokio::pin!(here, there);
            here.as_mut().enable();
            there.as_mut().enable();
            match self.try_submit(job) {
                Err(SubmitError {
                    job: again,
                    reason: Refusal::QueueFull(_),
                }) => job = again,
                answer => return answer,
            }
            tokio::select! {
                () = here => {}
                () = there => {}
                () = sleep(LOOK_AGAIN) => {}
                // One last look: notices are spared while a lane is nearly full.
                () = until(deadline) => return self.try_submit(job),
            }
        }
    }

    pub(super) fn note_abandoned(&self, key: Option<&str>) {
        self.abandoned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .add(key);
    }

    pub(super) fn take_abandoned(&self) -> Abandoned {
        let mut abandoned = self
            .abandoned
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *abandoned)
    }

    fn tell_saturated(&self, full: Full) {
        self.counters.saturated.fetch_add(1, Ordering::Relaxed);
        let now = self.pool.clock.now();
        let last = self.last_saturated.load(Ordering::Relaxed);
        let a_second = 1_000_000_000;
        if (last == 0 || now.saturating_sub(last) > a_second)
            && self
                .last_saturated
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            self.pool.teller.tell(|| Event::Saturated {
                topic: self.name.clone(),
                full,
            });
        }
    }

    /// Resolves when the topic holds nothing.
    pub(super) async fn quiet(&self) {
        let _waiting = self.room.wait();
        loop {
            let freed = self.room.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if self.depth().messages == 0 {
                return;
            }
            // Late is as good as told: what follows is another look.
            let _ = timeout(LOOK_AGAIN, freed).await;
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Submits jobs to one topic of an engine. Cheap to clone.
pub struct Intake<J: Job> {
    pub(super) queue: Arc<Queue<J>>,
    pub(super) runner: Arc<dyn Runner>,
    pub(super) submit_timeout: Duration,
}

impl<J: Job> Clone for Intake<J> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            runner: self.runner.clone(),
            submit_timeout: self.submit_timeout,
        }
    }
}

impl<J: Job> fmt::Debug for Intake<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Intake")
            .field("topic", &self.queue.name)
            .field("depth", &self.queue.depth())
            .finish_non_exhaustive()
    }
}

impl<J: Job> Intake<J> {
    /// The name of the topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.queue.name
    }

    /// What is queued and running.
    #[must_use]
    pub fn depth(&self) -> Bound {
        self.queue.depth()
    }

    /// Submits a job; waits for as long as there is no room (backpressure).
    ///
    /// # Errors
    /// With the job, when the topic is closed or the job is larger than the bounds. If the returned
    /// future is dropped, the job was not taken.
    pub async fn submit(&self, job: J) -> Result<(), SubmitError<J>> {
        self.queue.submit_until(job, None).await
    }

    /// Submits a job if there is room.
    ///
    /// # Errors
    /// With the job, also when there is no room.
    pub fn try_submit(&self, job: J) -> Result<(), SubmitError<J>> {
        self.queue.try_submit(job)
    }

    /// Submits a job; waits for room for as long as the options say (200 ms by default).
    ///
    /// # Errors
    /// With the job, also when there was no room in time.
    pub async fn submit_timeout(&self, job: J) -> Result<(), SubmitError<J>> {
        self.submit_within(job, self.submit_timeout).await
    }

    /// Submits a job; waits for room for as long as `wait`.
    ///
    /// # Errors
    /// With the job, also when there was no room in time.
    pub async fn submit_within(&self, job: J, wait: Duration) -> Result<(), SubmitError<J>> {
        self.queue.submit_until(job, Some(after(wait))).await
    }

    /// Resolves when nothing of this topic is queued, backing off or running.
    pub async fn quiet(&self) {
        self.queue.quiet().await;
    }

    /// Tells those who listen to the engine.
    #[doc(hidden)]
    pub fn tell(&self, event: impl FnOnce() -> Event) {
        self.queue.pool.teller.tell(event);
    }

    /// Closes this topic alone; the others of the engine go on.
    pub async fn close(&self, drain: Drain, deadline: Duration) -> CloseReport {
        CloseReport {
            left: super::close::close_topic(&self.queue.pool, &self.runner, drain, deadline)
                .await
                .into_iter()
                .collect(),
        }
    }
}

/// A job that was not taken, and why.
pub struct SubmitError<J> {
    /// The job.
    pub job: J,
    /// Why it was not taken.
    pub reason: Refusal,
}

/// Why a job was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no room, and there was none for as long as the caller was willing to wait.
    #[error("queue full ({0:?}): submit more slowly, or raise the bound")]
    QueueFull(Full),
    /// The topic or the engine is closed.
    #[error("the topic is closed")]
    Closed,
    /// There would not be room if everything else were gone.
    #[error("the job is {bytes} bytes, the bounds leave room for {largest}: raise total or window")]
    TooLarge {
        /// The size of the job.
        bytes: usize,
        /// The largest that can be taken.
        largest: usize,
    },
}

impl<J> SubmitError<J> {
    fn new(job: J, reason: Refusal) -> Self {
        Self { job, reason }
    }
}

impl<J> fmt::Debug for SubmitError<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SubmitError").field(&self.reason).finish()
    }
}

impl<J> fmt::Display for SubmitError<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl<J> std::error::Error for SubmitError<J> {}
