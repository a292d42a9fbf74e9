//! What time it is.
//!
//! Due times are moments of the wall clock, and a wall clock can be set. [`Steady`] decides what to
//! believe; [`SystemClock`] asks it. [`RuntimeClock`] runs with tokio's clock, which tests can pause,
//! and [`ManualClock`] only when it is told to.

mod manual;
mod steady;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

pub use manual::ManualClock;
pub use steady::Steady;

use crate::{BoxFuture, Timestamp};

/// What time it is, and how to wait.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Timestamp;

    /// Waits until about then. It may end sooner or later: who waits looks at the clock again.
    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'_, ()>;
}

/// The longest sleep of a clock that may be set meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// The clock of the system, taken with care: see [`Steady`].
#[derive(Debug)]
pub struct SystemClock {
    steady: Mutex<Steady>,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self {
            steady: Mutex::new(Steady::new(SystemTime::now().into(), since_boot())),
        }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let mut steady = self.steady.lock().unwrap_or_else(PoisonError::into_inner);
        steady.observe(SystemTime::now().into(), since_boot())
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

/// Time that goes on while the machine sleeps, and that nobody can set.
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

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'_, ()> {
        let wake = self.began.checked_add(at.since(self.wall));
        match wake {
            Some(wake) => Box::pin(tokio::time::sleep_until(wake)),
            None => Box::pin(std::future::pending()),
        }
    }
}
