//! Rate-limited logging: a failure that repeats is logged now and then.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Lines for the same reason are at least this far apart.
const EVERY: Duration = Duration::from_secs(30);

/// How many reasons are kept apart; with more, all of them are forgotten and may be logged again.
const MOST: usize = 100;

/// Remembers what was logged, for all clients of a bus.
#[derive(Clone, Debug, Default)]
pub(super) struct LogLimiter(Arc<Mutex<HashMap<String, Logged>>>);

#[derive(Debug)]
struct Logged {
    at: Instant,
    /// Lines that were left out since.
    suppressed: u64,
}

impl LogLimiter {
    /// Whether a line for this reason may be logged now. If so, how many others were left out since the last one.
    pub(super) fn allow(&self, reason: &str) -> Option<u64> {
        self.allow_at(reason, Instant::now())
    }

    fn allow_at(&self, reason: &str, now: Instant) -> Option<u64> {
        let mut all = self.0.lock();
        if let Some(logged) = all.get_mut(reason) {
            if now.saturating_duration_since(logged.at) < EVERY {
                logged.suppressed += 1;
                return None;
            }
            logged.at = now;
            return Some(std::mem::take(&mut logged.suppressed));
        }
        if all.len() >= MOST {
            all.clear();
        }
        let logged = Logged {
            at: now,
            suppressed: 0,
        };
        all.insert(reason.to_owned(), logged);
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_that_repeats_is_logged_now_and_then() {
        let limiter = LogLimiter::default();
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        assert_eq!(limiter.allow_at("FAIL", at(0)), Some(0));
        assert_eq!(limiter.allow_at("FAIL", at(1)), None);
        assert_eq!(limiter.allow_at("ERROR", at(1)), Some(0), "another reason");
        assert_eq!(limiter.allow_at("FAIL", at(29)), None);
        assert_eq!(limiter.allow_at("FAIL", at(30)), Some(2));
        assert_eq!(limiter.allow_at("FAIL", at(31)), None);
    }
}
