//! What time it is.
//!
//! Due times are moments of the wall clock, and a wall clock can be set. [`Steady`] decides what to
//! believe; [`SystemClock`] asks it, and has what it knows kept by a thread of its own (`keeper`, `kept`). [`RuntimeClock`] runs with tokio's clock, which tests can pause,
//! and [`ManualClock`] only when it is told to.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `steady` | what to believe of a wall clock that can be set: pure |
//! | `kept`, `keeper` | what is known of the clock, in a file; the thread that writes it |
//! | `manual` | a clock for tests |

mod keeper;
mod kept;
mod manual;
mod steady;

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use self::keeper::Keeper;
use self::kept::Kept;
pub use manual::ManualClock;
pub use steady::{DISTRUST, Steady};

use crate::{BoxFuture, Timestamp};

/// What time it is, and how to wait.
pub trait Clock: Send + Sync + 'static {
    /// The moment that it is, by this clock.
    fn now(&self) -> Timestamp;

    /// The first moment that is certainly not before now: what delays are counted from. A clock that is cut off to
    /// whole milliseconds would make them shorter.
    fn now_or_later(&self) -> Timestamp {
        self.now()
    }

    /// When a delay ends that begins now. The clock keeps in mind until when it is relied on.
    fn due_after(&self, delay: Duration) -> Timestamp {
        let due = self.now_or_later() + delay;
        self.rely(due);
        due
    }

    /// A delay was counted from the time, and ends then.
    fn rely(&self, until: Timestamp) {
        let _ = until;
    }

    /// Resolves when a restart would find what is known of the clock: before a delay is accepted that was counted from it.
    fn kept(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// By how much the wall clock is ahead of this one, if it was set and is not believed.
    fn distrusted(&self) -> Option<Duration> {
        None
    }

    /// Waits until about then. It may end sooner or later: who waits looks at the clock again.
    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'_, ()>;
}

/// The longest sleep of a clock that may be set meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// The clock of the system, taken with care: see [`Steady`].
#[derive(Debug)]
pub struct SystemClock {
    steady: Mutex<Steady>,
    keeper: Option<Keeper>,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self {
            steady: Mutex::new(believing()),
            keeper: None,
        }
    }
}

impl SystemClock {
    /// Keeps what it knows in this directory, so that a clock that was set ahead is not believed because of a
    /// restart. A step ahead is not believed for this long at most. Until when delays last that were counted before has to be
    /// [told](Clock::rely).
    #[must_use]
    pub fn kept_in(directory: &Path, distrust: Duration) -> Self {
        let kept = Kept::in_directory(directory);
        let steady = match kept.as_ref().and_then(Kept::read) {
            Some(anchor) => Steady::resume(anchor),
            None => believing(),
        };
        Self {
            steady: Mutex::new(steady.distrust(distrust)),
            keeper: kept.and_then(|kept| {
                let started = Keeper::start(kept);
                let failed =
                    |error| tracing::warn!(%error, "what is known of the clock cannot be kept");
                started.map_err(failed).ok()
            }),
        }
    }

    /// Looks at both clocks, and has kept what changes.
    fn look<T>(&self, look: impl FnOnce(&mut Steady, Timestamp, Duration) -> T) -> T {
        let (wall, counter) = read();
        let mut steady = self.steady();
        let seen = look(&mut steady, wall, counter);
        // Under the lock, so that the anchors stay in order; nothing is written here.
        if let Some(keeper) = &self.keeper
            && let Some(anchor) = steady.changed()
        {
            keeper.keep(anchor);
        }
        seen
    }

    fn steady(&self) -> MutexGuard<'_, Steady> {
        self.steady.lock()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        self.look(Steady::observe)
    }

    fn now_or_later(&self) -> Timestamp {
        // A step ahead that is not believed yet may be believed later.
        let wall: Timestamp = SystemTime::now().into();
        self.now().max(wall) + Duration::from_millis(1)
    }

    fn due_after(&self, delay: Duration) -> Timestamp {
        self.look(|steady, wall, counter| steady.due_after(wall, counter, delay))
    }

    fn rely(&self, until: Timestamp) {
        self.steady().rely(until);
    }

    fn kept(&self) -> BoxFuture<'_, ()> {
        // The store answers for a disk that hangs.
        const MOST: Duration = Duration::from_secs(5);
        match &self.keeper {
            Some(keeper) => Box::pin(keeper.wait(MOST)),
            None => Box::pin(std::future::ready(())),
        }
    }

    fn distrusted(&self) -> Option<Duration> {
        self.steady().ahead()
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'_, ()> {
        // "Now" is rounded down; a timer that does not know would be late by what was cut off.
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let cut_off = since_epoch.map_or(0, |since| since.subsec_nanos() % 1_000_000);
        let wait = at.since(self.now()).min(LOOK_AGAIN);
        let wait = wait.saturating_sub(Duration::from_nanos(u64::from(cut_off)));
        Box::pin(tokio::time::sleep(wait))
    }
}

fn believing() -> Steady {
    let (wall, counter) = read();
    Steady::new(wall, counter)
}

/// Both clocks, as of the same moment: a thread that is not run between the two would take that for a step.
fn read() -> (Timestamp, Duration) {
    const CLOSE: Duration = Duration::from_millis(2);
    const TRIES: usize = 5;
    let mut before = since_boot();
    for _ in 1..TRIES {
        let wall = SystemTime::now();
        let after = since_boot();
        if after.saturating_sub(before) <= CLOSE {
            return (wall.into(), before);
        }
        before = after;
    }
    (SystemTime::now().into(), before)
}

/// Time that goes on while the machine sleeps, and that cannot be set.
fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = Duration::from_secs(time.tv_sec.unsigned_abs());
    seconds + Duration::from_nanos(time.tv_nsec.unsigned_abs())
}

/// Begins with the clock of the system and goes on with the runtime's, which cannot be set, and which
/// tests can pause and move.
#[derive(Debug)]
pub struct RuntimeClock {
    began: Instant,
    wall: Timestamp,
}

impl RuntimeClock {
    /// Begins now. Within a tokio runtime.
    #[must_use]
    pub fn start() -> Self {
        Self {
            began: Instant::now(),
            wall: SystemTime::now().into(),
        }
    }
}

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        let elapsed = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        // Rounded down, unlike a delay.
        Timestamp::from_millis(self.wall.as_millis().saturating_add(elapsed))
    }

    fn now_or_later(&self) -> Timestamp {
        self.wall + self.began.elapsed()
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'_, ()> {
        let wake = self.began.checked_add(at.since(self.wall));
        match wake {
            Some(wake) => Box::pin(tokio::time::sleep_until(wake)),
            None => Box::pin(std::future::pending()),
        }
    }
}
