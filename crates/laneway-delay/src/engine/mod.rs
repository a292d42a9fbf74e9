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
//! | `front` | both of them, as the engine and the store share them |
//! | `flight` | one batch on its way: claim, deliver, settle |
//! | `options` | how it works |

mod flight;
mod front;
mod horizon;
mod options;
mod routes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;

use self::front::{Flight, Front};
use self::horizon::Horizon;
pub use self::options::Options;
use self::routes::{Bounds, Routes, Stretch, Turn};
use crate::clock::Clock;
use crate::store::{Place, Route, Store};
use crate::{Sinks, Timestamp};

/// How many messages may be claimed and not yet settled.
const MOST_UNSETTLED: usize = 65_536;

/// How many messages are read at a time, so that the first ones do not wait for the last ones.
const READ_AT_ONCE: usize = 4_096;

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
    front: Arc<Front>,
    unsettled: Arc<Semaphore>,
    is_closed: AtomicBool,
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
            per_host: options.per_host,
            callbacks: options.callbacks,
            queued: options.near,
        });
        let front = Arc::new(Front::new(clock.clone(), horizon, routes));
        store.attach(front.clone());
        let core = Arc::new(Self {
            store,
            clock,
            sinks,
            options,
            front,
            unsettled: Arc::new(Semaphore::new(MOST_UNSETTLED)),
            is_closed: AtomicBool::new(false),
        });
        tokio::spawn(core.clone().run());
        tokio::spawn(core.clone().forget());
        core
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Nothing new sets off; waits for what is on its way. Answers whether all of it ended in time.
    pub(crate) async fn stop(&self, deadline: Duration) -> bool {
        self.is_closed.store(true, Ordering::SeqCst);
        self.front.bell.notify_one();
        let all = u32::try_from(MOST_UNSETTLED).unwrap_or(u32::MAX);
        let ended = self.unsettled.acquire_many(all);
        let ended = tokio::time::timeout(deadline, ended).await;
        let is_done = ended.is_ok();
        drop(ended);
        // Whatever waits to set off stays where it is.
        self.unsettled.close();
        is_done
    }

    async fn run(self: Arc<Self>) {
        while !self.is_closed() {
            let (turns, next) = self.look();
            for (turn, flight) in turns {
                self.set_off(turn, flight);
            }
            let sleep = async {
                match next {
                    Some(next) => self.clock.sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.front.bell.notified() => {}
                () = sleep => {}
            }
        }
    }

    /// What to do now, and when to look again.
    fn look(self: &Arc<Self>) -> (Vec<(Turn, Flight)>, Option<Timestamp>) {
        let now = self.clock.now();
        let mut front = self.front.lock();
        while let Some(waiting) = front.horizon.pop_due(now) {
            front.routes.push(waiting);
        }
        let mut turns = Vec::new();
        while let Some(turn) = front.routes.next(now) {
            // IMPORTANT: before the lock is let go, so that nobody is unknown for a moment.
            let flight = match &turn {
                Turn::Deliver(_, batch) => front.set_off(batch),
                Turn::Read(..) => Flight::default(),
            };
            turns.push((turn, flight));
        }
        let half = self.options.horizon / 2;
        let cursor = front.horizon.cursor();
        let mut next = [front.horizon.next_wake(), front.routes.next_wake()]
            .into_iter()
            .flatten()
            .min();
        if front.horizon.can_read() && front.horizon.len() <= self.options.near / 2 {
            if cursor.at <= now + half {
                let from = front.horizon.begin_reading();
                let limit = front.horizon.room().min(READ_AT_ONCE);
                tokio::spawn(self.clone().read_ahead(from, limit));
            } else {
                let ms = cursor.at.as_millis().saturating_sub(millis(half));
                let read_at = Timestamp::from_millis(ms);
                next = Some(next.map_or(read_at, |next| next.min(read_at)));
            }
        }
        front.sleeps_until = next;
        (turns, next)
    }

    /// Reads the next part of the line.
    async fn read_ahead(self: Arc<Self>, from: Place, limit: usize) {
        let until = Place::at(self.clock.now() + self.options.horizon);
        match self.store.scan(from, until, limit).await {
            Ok(found) => {
                let end = match found.last() {
                    Some(last) if found.len() == limit => last.place.next(),
                    _ => until,
                };
                self.front
                    .change(|front| front.horizon.end_reading(&found, end));
            }
            Err(error) => {
                if self.is_closed() {
                    return;
                }
                tracing::error!(%error, "the messages that come next cannot be read");
                tokio::time::sleep(READ_AGAIN).await;
                self.front
                    .change(|front| front.horizon.end_reading(&[], from));
            }
        }
    }

    /// Reads those of a route that did not fit into its queue.
    async fn read_for(self: Arc<Self>, route: Route, stretch: Stretch) {
        let until = stretch.last.next();
        let most = (self.options.near / 16).max(1);
        let (mut found, mut next) = (Vec::new(), Some(stretch.first));
        while let Some(from) = next
            && found.len() < most
        {
            match self.store.scan(from, until, READ_AT_ONCE).await {
                Ok(part) => {
                    let is_all = part.len() < READ_AT_ONCE;
                    let last = part.last().map(|last| last.place.next());
                    next = last.filter(|_| !is_all);
                    found.extend(part.into_iter().filter(|waiting| waiting.route == route));
                }
                Err(error) => {
                    if self.is_closed() {
                        return;
                    }
                    tracing::error!(%error, "messages that are due cannot be read");
                    tokio::time::sleep(READ_AGAIN).await;
                    break;
                }
            }
        }
        let last = stretch.last;
        let rest = next.map(|first| Stretch { first, last });
        self.front
            .change(|front| front.routes.found(route, found, rest));
    }

    fn set_off(self: &Arc<Self>, turn: Turn, flight: Flight) {
        match turn {
            Turn::Read(route, stretch) => {
                tokio::spawn(self.clone().read_for(route, stretch));
            }
            Turn::Deliver(route, batch) if route.is_bus() => {
                tokio::spawn(self.clone().fly_to_bus(flight, route, batch));
            }
            Turn::Deliver(route, batch) => {
                tokio::spawn(self.clone().fly_to_host(flight, route, batch));
            }
        }
    }

    /// Forgets what is too old, again and again.
    async fn forget(self: Arc<Self>) {
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
