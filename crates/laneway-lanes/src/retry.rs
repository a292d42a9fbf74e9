//! What happens to a failure: how often it is tried again, and after how long.

use std::time::Duration;

use rand::RngExt;

/// How often a failed job is tried, and how long its lane waits in between.
///
/// The wait grows by a factor from `first` to `longest`, and jitter spreads it so that many keys
/// which failed together (a database that went away) do not come back together.
///
/// ```
/// use std::time::Duration;
/// use laneway_lanes::retry::RetryPolicy;
///
/// let policy = RetryPolicy::default();
/// assert_eq!(policy.attempts(), 5);
/// assert_eq!(policy.base_delay(1), Some(Duration::from_millis(100)));
/// assert_eq!(policy.base_delay(2), Some(Duration::from_millis(200)));
/// // After the fifth attempt nothing follows: the job is exhausted.
/// assert_eq!(policy.base_delay(5), None);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    attempts: u32,
    first: Duration,
    longest: Duration,
    factor: f64,
    jitter: f64,
}

/// A [`RetryPolicy`] that cannot be meant.
#[derive(Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum RetryPolicyError {
    /// A job is always tried once.
    #[error("attempts is 0: give at least 1 (1 means that a failure is final)")]
    NoAttempts,
    /// The waits must not shrink.
    #[error(
        "longest ({longest:?}) is shorter than first ({first:?}): give a longest of at least first"
    )]
    LongestBelowFirst {
        /// The wait after the first failure.
        first: Duration,
        /// The upper end of the waits.
        longest: Duration,
    },
    /// A factor below one would shrink the waits, and one that is not a number would panic later.
    #[error("factor is {0}: give a number from 1 to 100")]
    Factor(f64),
    /// Jitter is a share of the wait.
    #[error(
        "jitter is {0}: give a share from 0 (none) to 1 (anything between nothing and the full wait)"
    )]
    Jitter(f64),
}

impl Default for RetryPolicy {
    /// Five attempts; the waits between them are 100, 200, 400 and 800 ms, with a fifth of jitter. With
    /// more attempts they would double up to 10 s.
    fn default() -> Self {
        Self {
            attempts: 5,
            first: Duration::from_millis(100),
            longest: Duration::from_secs(10),
            factor: 2.0,
            jitter: 0.2,
        }
    }
}

impl RetryPolicy {
    /// One attempt: a failure is final.
    #[must_use]
    pub fn none() -> Self {
        Self {
            attempts: 1,
            ..Self::default()
        }
    }

    /// `attempts` tries in all, waiting `first` after the first failure and never more than `longest`.
    ///
    /// # Errors
    /// When `attempts` is 0, or `longest` is shorter than `first`.
    pub fn exponential(
        attempts: u32,
        first: Duration,
        longest: Duration,
    ) -> Result<Self, RetryPolicyError> {
        if attempts == 0 {
            return Err(RetryPolicyError::NoAttempts);
        }
        if longest < first {
            return Err(RetryPolicyError::LongestBelowFirst { first, longest });
        }
        Ok(Self {
            attempts,
            first,
            longest,
            ..Self::default()
        })
    }

    /// How much longer each wait is than the one before it.
    ///
    /// # Errors
    /// When `factor` is not a number from 1 to 100.
    pub fn with_factor(mut self, factor: f64) -> Result<Self, RetryPolicyError> {
        if !(1.0..=100.0).contains(&factor) {
            return Err(RetryPolicyError::Factor(factor));
        }
        self.factor = factor;
        Ok(self)
    }

    /// The share of each wait that is left to chance.
    ///
    /// # Errors
    /// When `jitter` is not a number from 0 to 1.
    pub fn with_jitter(mut self, jitter: f64) -> Result<Self, RetryPolicyError> {
        if !(0.0..=1.0).contains(&jitter) {
            return Err(RetryPolicyError::Jitter(jitter));
        }
        self.jitter = jitter;
        Ok(self)
    }

    /// How often a job is tried in all.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The wait after the `failed`-th failure (counted from 1) before jitter, or `None` when the
    /// attempts are used up.
    #[must_use]
    pub fn base_delay(&self, failed: u32) -> Option<Duration> {
        (failed < self.attempts).then(|| self.backoff(failed))
    }

    /// The same with jitter: never longer than [`base_delay`](Self::base_delay).
    #[must_use]
    pub fn delay(&self, failed: u32) -> Option<Duration> {
        self.base_delay(failed).map(|base| self.jittered(base))
    }

    /// The wait after the `failed`-th failure of something that must not be given up, such as
    /// writing a dead letter: the same waits, without an end.
    #[must_use]
    pub fn unending_delay(&self, failed: u32) -> Duration {
        self.jittered(self.backoff(failed))
    }

    fn backoff(&self, failed: u32) -> Duration {
        let exponent = i32::try_from(failed.saturating_sub(1)).unwrap_or(i32::MAX);
        // Never infinite: nothing times that would not be a number.
        let growth = self.factor.powi(exponent).min(f64::MAX);
        let seconds = self.first.as_secs_f64() * growth;
        if seconds >= self.longest.as_secs_f64() {
            self.longest
        } else {
            Duration::from_secs_f64(seconds)
        }
    }

    fn jittered(&self, base: Duration) -> Duration {
        if self.jitter == 0.0 {
            return base;
        }
        base.mul_f64(1.0 - self.jitter * rand::rng().random::<f64>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_longest_and_end_with_the_attempts() {
        let policy =
            RetryPolicy::exponential(6, Duration::from_millis(10), Duration::from_millis(50))
                .unwrap();
        let waits: Vec<_> = (1..=6)
            .map(|n| policy.base_delay(n).map(|d| d.as_millis()))
            .collect();
        assert_eq!(
            waits,
            [Some(10), Some(20), Some(40), Some(50), Some(50), None]
        );
    }

    #[test]
    fn jitter_only_shortens() {
        let policy = RetryPolicy::default().with_jitter(1.0).unwrap();
        for _ in 0..1000 {
            assert!(policy.delay(3).unwrap() <= policy.base_delay(3).unwrap());
        }
    }

    #[test]
    fn unending_waits_stay_at_the_longest() {
        let policy = RetryPolicy::default().with_jitter(0.0).unwrap();
        assert_eq!(policy.unending_delay(u32::MAX), Duration::from_secs(10));
    }

    #[test]
    fn no_wait_stays_no_wait_however_often_it_fails() {
        let policy =
            RetryPolicy::exponential(u32::MAX, Duration::ZERO, Duration::from_secs(1)).unwrap();
        assert_eq!(policy.base_delay(5000), Some(Duration::ZERO));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let second = Duration::from_secs(1);
        assert_eq!(
            RetryPolicy::exponential(0, second, second),
            Err(RetryPolicyError::NoAttempts)
        );
        assert!(RetryPolicy::exponential(1, second, second / 2).is_err());
        assert!(RetryPolicy::default().with_factor(f64::NAN).is_err());
        assert!(RetryPolicy::default().with_jitter(1.5).is_err());
    }
}
