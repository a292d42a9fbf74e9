//! The engine's clock: nanoseconds since it started, in one word. And points in time to come.

use std::time::{Duration, Instant};

/// So long from now. Waits that are longer than clocks can count (`Duration::MAX` for "no limit")
/// end in thirty years.
pub(super) fn after(wait: Duration) -> tokio::time::Instant {
    const YEARS: Duration = Duration::from_hours(30 * 365 * 24);
    let now = tokio::time::Instant::now();
    now.checked_add(wait).unwrap_or_else(|| now + YEARS)
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    /// Never 0, so that 0 can mean "not running".
    pub(super) fn now(self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos())
            .unwrap_or(u64::MAX)
            .max(1)
    }

    pub(super) fn since(self, then: u64) -> Duration {
        Duration::from_nanos(self.now().saturating_sub(then))
    }
}
