//! How often a worker has restarted, and what that costs the lanes that panic on it.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::options::RestartLimit;

/// When a worker restarted. Pure: time is an argument.
#[derive(Debug)]
pub(super) struct Restarts {
    limit: RestartLimit,
    recent: VecDeque<Instant>,
    pauses: u32,
}

const MINUTE: Duration = Duration::from_mins(1);

impl Restarts {
    pub(super) fn new(limit: RestartLimit) -> Self {
        Self {
            limit,
            recent: VecDeque::new(),
            pauses: 0,
        }
    }

    /// Notes a restart; answers how long the lane that caused it has to wait, if there are too many.
    pub(super) fn record(&mut self, now: Instant) -> Option<Duration> {
        while self
            .recent
            .front()
            .is_some_and(|then| now.duration_since(*then) > MINUTE)
        {
            self.recent.pop_front();
        }
        self.recent.push_back(now);
        if self.recent.len() <= self.limit.per_minute {
            self.pauses = 0;
            return None;
        }
        // More are not needed to know that it is too often.
        self.recent.pop_front();
        let pause = self
            .limit
            .first_pause
            .saturating_mul(1 << self.pauses.min(16))
            .min(self.limit.longest_pause);
        self.pauses += 1;
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restarts() -> Restarts {
        Restarts::new(RestartLimit {
            per_minute: 3,
            first_pause: Duration::from_millis(10),
            longest_pause: Duration::from_millis(35),
        })
    }

    #[test]
    fn the_fourth_restart_in_a_minute_rests_and_rests_grow_to_the_longest() {
        let mut restarts = restarts();
        let now = Instant::now();
        let pauses: Vec<_> = (0..7)
            .map(|_| restarts.record(now).map(|p| p.as_millis()))
            .collect();
        assert_eq!(
            pauses,
            [None, None, None, Some(10), Some(20), Some(35), Some(35)]
        );
    }

    #[test]
    fn a_quiet_minute_forgives() {
        let mut restarts = restarts();
        let now = Instant::now();
        for _ in 0..5 {
            restarts.record(now);
        }
        assert_eq!(restarts.record(now + MINUTE * 2), None);
    }
}
