use std::fmt;
use std::ops::Add;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment, in whole milliseconds since the Unix epoch.
///
/// Due times are stored like this: absolute, so that none ever has to be worked out again from a
/// delay and a moment that was forgotten.
///
/// Arithmetic saturates: a delay of ten thousand centuries is far away, not in the past.
///
/// ```
/// use std::time::Duration;
/// use laneway_delay::Timestamp;
///
/// let noon = Timestamp::from_millis(43_200_000);
/// assert_eq!((noon + Duration::from_secs(1)).as_millis(), 43_201_000);
/// assert_eq!(noon + Duration::MAX, Timestamp::MAX);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The latest moment there is.
    pub const MAX: Self = Self(u64::MAX);

    /// The latest moment that a message may be due at: the end of the year 9998, so that it can be written as a date
    /// everywhere, and there is room behind it.
    pub const LAST_DUE: Self = Self(253_370_764_799_999);

    /// A moment from its distance to the Unix epoch.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// The distance to the Unix epoch.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The first whole millisecond that is not before this moment: for due times, which must not be early by a
    /// fraction of one.
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use laneway_delay::Timestamp;
    ///
    /// let moment = UNIX_EPOCH + Duration::from_micros(1_001);
    /// assert_eq!(Timestamp::not_before(moment), Timestamp::from_millis(2));
    /// ```
    #[must_use]
    pub fn not_before(moment: SystemTime) -> Self {
        Self(0) + moment.duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    /// How long after `earlier` this is; zero if it is not after it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use laneway_delay::Timestamp;
    ///
    /// let (early, late) = (Timestamp::from_millis(10), Timestamp::from_millis(25));
    /// assert_eq!(late.since(early), Duration::from_millis(15));
    /// assert_eq!(early.since(late), Duration::ZERO);
    /// ```
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    /// Parts of a millisecond are rounded up: waiting a little too long is late by less than a
    /// tick, waiting a little too short would be early.
    fn add(self, delay: Duration) -> Self {
        let millis = u64::try_from(delay.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(millis))
    }
}

impl From<SystemTime> for Timestamp {
    /// Rounded down to whole milliseconds, so that "now" is never ahead of the clock. A moment
    /// before the epoch counts as the epoch.
    fn from(time: SystemTime) -> Self {
        let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_rounds_up_so_that_nothing_is_early() {
        let start = Timestamp::from_millis(100);
        assert_eq!(start + Duration::from_nanos(1), Timestamp::from_millis(101));
        assert_eq!(
            start + Duration::from_millis(1),
            Timestamp::from_millis(101)
        );
        assert_eq!(start + Duration::ZERO, start);
    }

    #[test]
    fn the_clock_rounds_down_so_that_nothing_is_early() {
        let time = UNIX_EPOCH + Duration::from_micros(1_999);
        assert_eq!(Timestamp::from(time), Timestamp::from_millis(1));
    }

    #[test]
    fn a_clock_before_the_epoch_counts_as_the_epoch() {
        let time = UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(Timestamp::from(time), Timestamp::from_millis(0));
    }
}
