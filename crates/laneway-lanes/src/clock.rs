//! The engine's clock: nanoseconds since it started, in one word. And points in time to come.

use std::time::Duration;

/// So long from now. Waits that are longer than clocks can count (`Duration::MAX` for "no limit")
/// end in thirty years.
#[must_use]
pub fn after(wait: Duration) -> tokio::time::Instant {
    const YEARS: Duration = Duration::from_hours(30 * 365 * 24);
    let now = tokio::time::Instant::now();
    now.checked_add(wait).unwrap_or_else(|| now + YEARS)
}

/// Every job is stamped when it is submitted, started and finished, so reading the clock is a
/// good part of what a short job costs. `quanta` reads the processor's counter where it is reliable
/// and asks the operating system elsewhere; it takes less than half of what `Instant` takes.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    clock: quanta::Clock,
    start: u64,
}

impl Clock {
    pub(super) fn start() -> Self {
        let clock = quanta::Clock::new();
        let start = clock.raw();
        Self { clock, start }
    }

    /// Never 0, so that 0 can mean "not running".
    pub(super) fn now(&self) -> u64 {
        self.clock
            .delta_as_nanos(self.start, self.clock.raw())
            .max(1)
    }

    pub(super) fn since(&self, then: u64) -> Duration {
        Duration::from_nanos(self.now().saturating_sub(then))
    }
}
