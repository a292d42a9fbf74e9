use std::time::Duration;

use crate::Timestamp;

/// Tells what to take for the time, from a wall clock that may be set and a counter that cannot be.
///
/// - The time is never ahead of the wall clock. When that is set back, the time goes back with it.
/// - A wall clock that is set ahead is not believed at once: the time goes on by the counter until the
///   step has held for as long as it was wide. So what was due within the next hour is not early when
///   the clock is set ahead by an hour, and a clock that was put right is followed in the end.
///
/// Pure: both clocks come in as arguments.
///
/// ```
/// use std::time::Duration;
/// use laneway_delay::{Timestamp, clock::Steady};
///
/// let at = |seconds: u64| Timestamp::from_millis(seconds * 1000);
/// let since = Duration::from_secs;
/// let mut steady = Steady::new(at(1_000), since(0));
/// assert_eq!(steady.observe(at(1_010), since(10)), at(1_010));
/// // Set ahead by an hour: the next second is one second later.
/// assert_eq!(steady.observe(at(4_611), since(11)), at(1_011));
/// // Set back: nothing is due before its time by the wall clock.
/// assert_eq!(steady.observe(at(900), since(12)), at(900));
/// ```
#[derive(Clone, Debug)]
pub struct Steady {
    /// A moment of the wall clock that was believed, and the counter then.
    wall: Timestamp,
    counter: Duration,
    /// Since when the wall clock is ahead, by the counter.
    ahead_since: Option<Duration>,
}

/// The clocks are read one after the other, and one of them in whole milliseconds. Less than this is
/// no step.
const TOLERANCE: Duration = Duration::from_millis(20);

impl Steady {
    /// Believes the wall clock as it is.
    #[must_use]
    pub fn new(wall: Timestamp, counter: Duration) -> Self {
        Self {
            wall,
            counter,
            ahead_since: None,
        }
    }

    /// What to take for the time.
    pub fn observe(&mut self, wall: Timestamp, counter: Duration) -> Timestamp {
        let elapsed = counter.saturating_sub(self.counter);
        let elapsed = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let expected = Timestamp::from_millis(self.wall.as_millis().saturating_add(elapsed));
        let ahead = wall.since(expected);
        if ahead <= TOLERANCE {
            if self.ahead_since.take().is_some() {
                tracing::info!("the wall clock is no longer ahead");
            }
            return wall;
        }
        let since = *self.ahead_since.get_or_insert_with(|| {
            let ahead_ms = u64::try_from(ahead.as_millis()).unwrap_or(u64::MAX);
            tracing::warn!(
                ahead_ms,
                "the wall clock was set ahead; it is believed when that has held for as long"
            );
            counter
        });
        if counter.saturating_sub(since) >= ahead {
            *self = Self::new(wall, counter);
            return wall;
        }
        expected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn since(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn it_follows_a_clock_that_nobody_sets() {
        let mut steady = Steady::new(at(HOUR), since(5));
        for millis in 0..1000 {
            assert_eq!(
                steady.observe(at(HOUR + millis), since(5 + millis)),
                at(HOUR + millis)
            );
        }
    }

    #[test]
    fn a_step_ahead_is_believed_after_as_long_as_it_is_wide() {
        let mut steady = Steady::new(at(0), since(0));
        assert_eq!(steady.observe(at(HOUR), since(0)), at(0));
        assert_eq!(
            steady.observe(at(2 * HOUR - 1), since(HOUR - 1)),
            at(HOUR - 1)
        );
        assert_eq!(steady.observe(at(2 * HOUR), since(HOUR)), at(2 * HOUR));
        assert_eq!(
            steady.observe(at(2 * HOUR + 7), since(HOUR + 7)),
            at(2 * HOUR + 7)
        );
    }

    #[test]
    fn a_step_ahead_and_back_leaves_nothing_behind() {
        let mut steady = Steady::new(at(0), since(0));
        assert_eq!(steady.observe(at(HOUR + 10), since(10)), at(10));
        assert_eq!(steady.observe(at(20), since(20)), at(20));
        // Another step is another one.
        assert_eq!(steady.observe(at(2 * HOUR), since(HOUR)), at(HOUR));
    }

    #[test]
    fn a_step_back_is_followed_and_so_is_the_way_forward_again() {
        let mut steady = Steady::new(at(2 * HOUR), since(0));
        assert_eq!(steady.observe(at(HOUR), since(10)), at(HOUR));
        assert_eq!(steady.observe(at(HOUR + 10), since(20)), at(HOUR + 10));
        assert_eq!(
            steady.observe(at(2 * HOUR + 30), since(30)),
            at(2 * HOUR + 30)
        );
    }

    #[test]
    fn it_is_never_ahead_of_the_wall_clock() {
        let mut steady = Steady::new(at(HOUR), since(0));
        let walls = [HOUR, 0, 3 * HOUR, HOUR + 5, HOUR + 4, 10 * HOUR];
        for (wall, counter) in walls.into_iter().zip((0..).step_by(100)) {
            assert!(steady.observe(at(wall), since(counter)) <= at(wall));
        }
    }
}
