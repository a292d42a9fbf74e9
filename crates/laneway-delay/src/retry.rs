//! How long to wait after a failure, and when to give up.

use std::time::Duration;

/// The waits between the attempts of one message, in order.
///
/// A schedule of five waits allows six attempts: the first one when the message is due, and one
/// after each wait. An empty schedule allows one attempt.
///
/// ```
/// use std::time::Duration;
/// use laneway_delay::Schedule;
///
/// let schedule = Schedule::default();
/// assert_eq!(schedule.wait_after(1), Some(Duration::from_secs(1)));
/// assert_eq!(schedule.wait_after(5), Some(Duration::from_secs(3_000)));
/// assert_eq!(schedule.wait_after(6), None);
///
/// let once = Schedule::new([]);
/// assert_eq!(once.wait_after(1), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    waits: Vec<Duration>,
}

impl Schedule {
    /// A schedule from its waits.
    #[must_use]
    pub fn new(waits: impl IntoIterator<Item = Duration>) -> Self {
        Self {
            waits: waits.into_iter().collect(),
        }
    }

    /// How long to wait after the `failures`-th failure (counted from 1), or `None` when all
    /// attempts are used up.
    #[must_use]
    pub fn wait_after(&self, failures: u32) -> Option<Duration> {
        let index = usize::try_from(failures.checked_sub(1)?).ok()?;
        self.waits.get(index).copied()
    }

    /// The waits, in order.
    #[must_use]
    pub fn waits(&self) -> &[Duration] {
        &self.waits
    }
}

impl Default for Schedule {
    /// 1 s, 10 s, 60 s, 300 s, 3000 s: six attempts over a little less than an hour.
    fn default() -> Self {
        Self::new([1, 10, 60, 300, 3_000].map(Duration::from_secs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_documented_one() {
        let waits: Vec<u64> = (1..)
            .map_while(|failures| Schedule::default().wait_after(failures))
            .map(|wait| wait.as_secs())
            .collect();
        assert_eq!(waits, [1, 10, 60, 300, 3_000]);
    }

    #[test]
    fn before_the_first_failure_there_is_nothing_to_wait_for() {
        assert_eq!(Schedule::default().wait_after(0), None);
        assert_eq!(Schedule::default().wait_after(u32::MAX), None);
    }
}
