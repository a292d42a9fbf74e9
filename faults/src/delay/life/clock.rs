//! A clock that is set at will, and taken with the same care as the real one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use laneway_delay::clock::{Clock, Steady};
use laneway_delay::{BoxFuture, Timestamp};

/// Clones are the same clock.
#[derive(Clone)]
pub(super) struct SimClock(Arc<Mutex<Clocks>>);

struct Clocks {
    /// What the wall clock shows.
    wall: i64,
    /// What has really passed.
    counter: Duration,
    steady: Steady,
}

impl SimClock {
    pub(super) fn new(wall: u64) -> Self {
        let steady = Steady::new(Timestamp::from_millis(wall), Duration::ZERO);
        Self(Arc::new(Mutex::new(Clocks {
            wall: i64::try_from(wall).unwrap_or(i64::MAX),
            counter: Duration::ZERO,
            steady,
        })))
    }

    fn clocks(&self) -> MutexGuard<'_, Clocks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time passes.
    pub(super) fn pass(&self, millis: u64) {
        let mut clocks = self.clocks();
        clocks.counter += Duration::from_millis(millis);
        clocks.wall += i64::try_from(millis).unwrap_or(i64::MAX);
    }

    /// The process is started anew. It knows of the clock what was kept.
    pub(super) fn restart(&self) {
        let mut clocks = self.clocks();
        clocks.steady = clocks.steady.restarted();
    }

    /// Somebody sets the wall clock, ahead or back.
    pub(super) fn step(&self, millis: i64) {
        let mut clocks = self.clocks();
        clocks.wall = clocks.wall.saturating_add(millis).max(0);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        let mut clocks = self.clocks();
        let (wall, counter) = (clocks.wall.unsigned_abs(), clocks.counter);
        clocks.steady.observe(Timestamp::from_millis(wall), counter)
    }

    fn rely(&self, until: Timestamp) {
        self.clocks().steady.rely(until);
    }

    fn distrusted(&self) -> Option<Duration> {
        self.clocks().steady.ahead()
    }

    fn sleep_until(&self, _: Timestamp) -> BoxFuture<'_, ()> {
        // Nobody tells when it is set: who waits looks again.
        Box::pin(tokio::time::sleep(Duration::from_millis(1)))
    }
}
