//! Rate limits: so many per second, with a burst.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// So many per second, and so many at once after a pause.
///
/// ```
/// use laneway::RateLimit;
///
/// let limit = RateLimit::per_second(500).burst(50);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    per_second: u32,
    burst: u32,
}

impl RateLimit {
    /// `rate` per second (0 means 1), a tenth of a second's worth at once.
    #[must_use]
    pub fn per_second(rate: u32) -> Self {
        let per_second = rate.max(1);
        Self {
            per_second,
            burst: (per_second / 10).max(1),
        }
    }

    /// So many at once; 0 means 1.
    #[must_use]
    pub fn burst(mut self, burst: u32) -> Self {
        self.burst = burst.max(1);
        self
    }
}

/// Hands out turns. One number says it all: when the next turn would be due if everybody kept to
/// the rate; up to `burst` turns may be taken before that.
#[derive(Debug)]
pub(super) struct Limiter {
    interval: Duration,
    slack: Duration,
    next: Mutex<Instant>,
}

impl Limiter {
    pub(super) fn new(limit: RateLimit) -> Self {
        let interval = Duration::from_secs(1) / limit.per_second;
        let slack = interval * (limit.burst - 1);
        let now = Instant::now();
        Self {
            interval,
            slack,
            // The time before is unused.
            next: Mutex::new(now.checked_sub(slack).unwrap_or(now)),
        }
    }

    /// Waits for a turn. A caller that gives up has used it.
    pub(super) async fn turn(&self) {
        if let Some(at) = self.reserve(1, Instant::now(), None) {
            sleep_until(at).await;
        }
    }

    /// Waits for `count` turns, unless that would take longer than `limit`: then it uses none, and
    /// answers so at once. A caller that gives up has used them.
    pub(super) async fn turns_within(&self, count: u32, limit: Duration) -> bool {
        if count == 0 {
            return true;
        }
        let now = Instant::now();
        let Some(at) = self.reserve(count, now, now.checked_add(limit)) else {
            return false;
        };
        sleep_until(at).await;
        true
    }

    /// Waits for a turn, and takes all that can be had then, up to `most`. Answers how many.
    pub(super) async fn some_turns(&self, most: usize) -> usize {
        self.turn().await;
        1 + self.take_due(most.saturating_sub(1), Instant::now())
    }

    /// Takes the turns that are due, up to `most`.
    fn take_due(&self, most: usize, now: Instant) -> usize {
        let mut next = self.next.lock();
        let earliest = now.checked_sub(self.slack).unwrap_or(now);
        *next = (*next).max(earliest);
        let mut taken = 0;
        while taken < most && *next <= now {
            *next += self.interval;
            taken += 1;
        }
        taken
    }

    /// When the turns may be taken, unless that is later than `until`.
    fn reserve(&self, count: u32, now: Instant, until: Option<Instant>) -> Option<Instant> {
        let mut next = self.next.lock();
        // Unused time counts up to the burst.
        let earliest = now.checked_sub(self.slack).unwrap_or(now);
        let due = (*next).max(earliest);
        let last = due + self.interval * count.saturating_sub(1);
        if until.is_some_and(|until| last > until) {
            return None;
        }
        *next = due + self.interval * count;
        Some(last.max(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let limiter = Limiter::new(RateLimit::per_second(100).burst(10));
        let started = Instant::now();
        for _ in 0..10 {
            limiter.turn().await;
        }
        assert_eq!(started.elapsed(), Duration::ZERO);
        for _ in 0..100 {
            limiter.turn().await;
        }
        let millis = started.elapsed().as_millis();
        assert!((990..=1010).contains(&millis), "{millis}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_saves_no_more_than_the_burst() {
        let limiter = Limiter::new(RateLimit::per_second(10).burst(2));
        tokio::time::advance(Duration::from_secs(100)).await;
        let started = Instant::now();
        for _ in 0..4 {
            limiter.turn().await;
        }
        assert_eq!(started.elapsed().as_millis(), 200);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_due_can_be_taken_together() {
        let limiter = Limiter::new(RateLimit::per_second(10).burst(4));
        let started = Instant::now();
        assert_eq!(limiter.some_turns(3).await, 3);
        assert_eq!(limiter.some_turns(100).await, 1, "the rest of the burst");
        assert_eq!(started.elapsed(), Duration::ZERO);
        assert_eq!(limiter.some_turns(100).await, 1);
        assert_eq!(started.elapsed().as_millis(), 100);
        tokio::time::advance(Duration::from_millis(250)).await;
        assert_eq!(limiter.some_turns(100).await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn turns_that_would_come_too_late_are_refused_at_once_and_not_used() {
        let limiter = Limiter::new(RateLimit::per_second(10).burst(1));
        let started = Instant::now();
        let within = async |count, millis| {
            let limit = Duration::from_millis(millis);
            limiter.turns_within(count, limit).await
        };
        assert!(!within(11, 999).await);
        assert_eq!(started.elapsed(), Duration::ZERO);
        assert!(within(11, 1000).await);
        assert_eq!(started.elapsed().as_millis(), 1000);
        assert!(!within(u32::MAX, 1000).await);
        assert!(within(0, 0).await, "nothing needs no turn, and uses none");
        assert_eq!(started.elapsed().as_millis(), 1000);
        assert!(within(1, 100).await);
        assert_eq!(started.elapsed().as_millis(), 1100);
    }
}
