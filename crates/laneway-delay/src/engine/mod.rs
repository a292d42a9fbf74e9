//! The engine: it brings what is due to whom it is for.
//!
//! ```text
//! store ──scan──► horizon (wheel) ──due──► routes (a queue per destination) ──turn──► claim
//!   ▲                 ▲ admit                                                           │
//!   └── submit, extend┘                        settle ◄── deliver | publish ◄───────────┘
//! ```
//!
//! | file | what it is |
//! |---|---|
//! | `horizon` | which messages wait in memory, and which only in the store; pure |
//! | `routes` | who is due and goes where; pure |
//! | `postponed` | who is due and not to be tried now; pure |
//! | `scheduler` | all of them, as the engine and the store share them |
//! | `batch` | one batch on its way: claim, deliver, settle |
//! | `failed` | what follows from a failure, and who is told |
//! | `options` | how it works |

mod batch;
mod failed;
mod horizon;
mod options;
mod postponed;
mod routes;
mod scheduler;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;

use self::failed::Told;
use self::horizon::Horizon;
pub use self::options::{Options, Steps};
use self::postponed::Postponed;
use self::routes::{Bounds, Routes, Turn};
use self::scheduler::Scheduler;
use crate::clock::Clock;
use crate::store::{DueIndex, DueKey, Scheduled, Store};
use crate::supervise::{Panics, catch, supervise};
use crate::{Error, Sinks, Timestamp};

/// How long the engine waits before it looks again when all it can do is to replace attempts that end: it
/// replaces many of them together then.
const REPLACE_EVERY: Duration = Duration::from_millis(1);

/// How long to wait before a store that failed to read is asked again.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// How often old things are forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(10);

/// What all parts of the engine share.
pub(crate) struct Core {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) sinks: Sinks,
    pub(crate) options: Options,
    scheduler: Arc<Scheduler>,
    /// Of messages that go to hosts.
    called: Arc<Semaphore>,
    /// Of messages that go to the bus.
    published: Arc<Semaphore>,
    is_closed: AtomicBool,
    /// How many messages became dead letters.
    pub(crate) deaths: AtomicU64,
    /// Which of the engine's own tasks panicked.
    pub(crate) panics: Panics,
    told: Told,
}

/// What there is to do.
struct Work {
    turns: Vec<Turn>,
    /// When to look again.
    next: Option<Timestamp>,
    /// There is more to do at once.
    is_cut_short: bool,
    /// Hosts wait for attempts of others to end.
    is_saturated: bool,
}

impl Core {
    pub(crate) fn start(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        sinks: Sinks,
        options: Options,
    ) -> Arc<Self> {
        let horizon = Horizon::new(clock.now(), store.floor(), options.near);
        let routes = Routes::new(Bounds {
            batch: options.batch,
            publishing: options.steps.unsettled / 2,
            per_host: options.per_host,
            callbacks: options.callbacks,
            waiting: options.waiting_callbacks,
            queued: options.near,
            batch_bytes: options.steps.batch_bytes,
            bus_bytes: options.bus_bytes,
            callback_bytes: options.callback_bytes,
        });
        let postponed = Postponed::new(options.near);
        let unsettled = options.steps.unsettled;
        let scheduler = Arc::new(Scheduler::new(clock.clone(), horizon, routes, postponed));
        store.attach(scheduler.clone());
        let core = Arc::new(Self {
            store,
            clock,
            sinks,
            options,
            scheduler,
            called: Arc::new(Semaphore::new(unsettled)),
            published: Arc::new(Semaphore::new(unsettled)),
            is_closed: AtomicBool::new(false),
            deaths: AtomicU64::new(0),
            panics: Panics::default(),
            told: Told::default(),
        });
        let running = core.clone();
        tokio::spawn(async move {
            let mut has_panicked = false;
            let start = || {
                if std::mem::replace(&mut has_panicked, true) {
                    running.read_all_again();
                }
                running.run()
            };
            supervise(&running.panics, "the scheduler", start).await;
        });
        let forgetting = core.clone();
        tokio::spawn(async move {
            supervise(&forgetting.panics, "forgetting", || forgetting.forget()).await;
        });
        core
    }

    /// Reads everything that waits once more: a panic may have lost something that was on its way from the
    /// horizon to the routes. What is known already is known twice then, and is claimed once.
    fn read_all_again(&self) {
        let floor = self.store.floor().min(self.scheduler.floor());
        self.scheduler
            .change(|scheduler| scheduler.horizon.rewind(floor));
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Nothing new sets off; waits for what is on its way. Answers whether all of it ended in time.
    pub(crate) async fn stop(&self, deadline: Duration) -> bool {
        self.is_closed.store(true, Ordering::SeqCst);
        self.scheduler.wake.notify_one();
        let all = u32::try_from(self.options.steps.unsettled).unwrap_or(u32::MAX);
        let ended = async {
            let called = self.called.acquire_many(all).await;
            let published = self.published.acquire_many(all).await;
            drop((called, published));
        };
        let is_done = tokio::time::timeout(deadline, ended).await.is_ok();
        // Whatever waits to set off stays where it is.
        self.called.close();
        self.published.close();
        is_done
    }

    async fn run(self: &Arc<Self>) {
        while !self.is_closed() {
            let work = self.poll();
            self.start_turns(work.turns);
            if work.is_cut_short {
                tokio::task::yield_now().await;
                continue;
            }
            if work.is_saturated {
                tokio::time::sleep(REPLACE_EVERY).await;
            }
            let sleep = async {
                match work.next {
                    Some(next) => self.clock.sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.scheduler.wake.notified() => {}
                () = sleep => {}
            }
        }
    }

    /// What to do now, and when to look again.
    fn poll(self: &Arc<Self>) -> Work {
        let now = self.clock.now();
        let mut guard = self.scheduler.lock();
        let scheduler = &mut *guard;
        let mut taken = 0;
        while taken < self.options.steps.take
            && let Some(waiting) = scheduler.horizon.pop_due(now)
        {
            scheduler.routes.push(waiting);
            taken += 1;
        }
        while taken < self.options.steps.take
            && let Some(waiting) = scheduler.postponed.pop(now)
        {
            scheduler.routes.push_again(waiting);
            taken += 1;
        }
        // They are in the scheduler until all is done that could panic: they count as running already.
        while let Some(turn) = scheduler.routes.next(now) {
            scheduler.turns.push(turn);
        }
        let half = self.options.horizon / 2;
        let cursor = scheduler.horizon.cursor();
        let wakes = [
            scheduler.horizon.next_wake(),
            scheduler.postponed.next_wake(),
            scheduler.routes.next_wake(),
        ];
        let mut next = wakes.into_iter().flatten().min();
        if scheduler.horizon.can_read() && scheduler.horizon.len() <= self.options.near / 2 {
            if cursor.at <= now + half {
                let from = scheduler.horizon.begin_reading();
                let limit = scheduler.horizon.room().min(self.options.steps.read);
                tokio::spawn(self.clone().read_ahead(from, limit));
            } else {
                let ms = cursor.at.as_millis().saturating_sub(millis(half));
                let read_at = Timestamp::from_millis(ms);
                next = Some(next.map_or(read_at, |next| next.min(read_at)));
            }
        }
        scheduler.sleeps_until = next;
        Work {
            turns: std::mem::take(&mut scheduler.turns),
            next,
            is_cut_short: taken == self.options.steps.take,
            is_saturated: scheduler.routes.is_saturated(),
        }
    }

    /// Scans the store. A panic is an error like any other.
    async fn scan(
        &self,
        from: DueKey,
        until: DueKey,
        limit: usize,
    ) -> Result<Vec<Scheduled>, Error> {
        let scanning = catch(async { self.store.scan(from, until, limit).await });
        scanning.await.unwrap_or_else(|panic| {
            self.panics.note("reading what comes next", &panic);
            Err(Error::Failed("reading broke off: it panicked".to_owned()))
        })
    }

    /// Reads the next part of the due index.
    ///
    /// IMPORTANT: however it ends, it tells the horizon so: nothing else would be read any more.
    async fn read_ahead(self: Arc<Self>, from: DueKey, limit: usize) {
        let until = DueKey::at(self.clock.now() + self.options.horizon);
        match self.scan(from, until, limit).await {
            Ok(found) => {
                let end = match found.last() {
                    Some(last) if found.len() == limit => last.due_key.next(),
                    _ => until,
                };
                self.scheduler
                    .change(|scheduler| scheduler.horizon.end_reading(&found, end));
            }
            Err(error) => {
                if self.is_closed() {
                    return;
                }
                tracing::error!(%error, "the messages that come next cannot be read");
                tokio::time::sleep(READ_AGAIN).await;
                self.scheduler
                    .change(|scheduler| scheduler.horizon.end_reading(&[], from));
            }
        }
    }

    /// Reads those that did not fit into their queues.
    async fn read_again(self: Arc<Self>, from: DueKey) {
        let (until, limit) = (DueKey::at(Timestamp::MAX), self.options.steps.read);
        match self.scan(from, until, limit).await {
            Ok(found) => {
                let end = match found.last() {
                    Some(last) if found.len() == limit => last.due_key.next(),
                    _ => until,
                };
                self.scheduler
                    .change(|scheduler| scheduler.routes.found(&found, end));
            }
            Err(error) => {
                if self.is_closed() {
                    return;
                }
                tracing::error!(%error, "messages that are due cannot be read");
                tokio::time::sleep(READ_AGAIN).await;
                self.scheduler
                    .change(|scheduler| scheduler.routes.found(&[], from));
            }
        }
    }

    fn start_turns(self: &Arc<Self>, turns: Vec<Turn>) {
        let mut to_hosts = Vec::new();
        for turn in turns {
            match turn {
                Turn::Read(from) => {
                    tokio::spawn(self.clone().read_again(from));
                }
                Turn::Deliver(route, batch) if route.is_bus() => {
                    tokio::spawn(self.clone().publish_batch(route, batch));
                }
                Turn::Deliver(_, batch) => to_hosts.extend(batch),
            }
        }
        // In the order in which they are stored.
        to_hosts.sort_unstable_by_key(|waiting: &Scheduled| waiting.due_key);
        for some in to_hosts.chunks(self.options.steps.claim) {
            tokio::spawn(self.clone().deliver_callbacks(some.to_vec()));
        }
    }

    /// Forgets what is too old, again and again.
    async fn forget(&self) {
        let before = |now: Timestamp, age| {
            Timestamp::from_millis(now.as_millis().saturating_sub(millis(age)))
        };
        while !self.is_closed() {
            let now = self.clock.now();
            let keys_before = before(now, self.options.keep_keys);
            let ended_before = before(now, self.options.keep_ended);
            match self.store.forget(keys_before, ended_before).await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "old messages cannot be forgotten"),
            }
            tokio::time::sleep(FORGET_EVERY).await;
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
