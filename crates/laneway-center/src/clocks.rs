//! How the clocks of a center and its workers differ.
//!
//! No promise rests on a clock. But a message must not be early because one clock is wrong: attempts begin by the earlier
//! of the own clock and the lower median of all, and due times are computed from the later of the own clock and the upper median.
//! A worker waits for the moment of an attempt by its own clock, so that one which is wrong is told the moment in its time.

use std::collections::VecDeque;
use std::time::Duration;

/// How many measurements of one clock are kept.
const KEPT: usize = 8;

/// Above this a difference is told.
pub(crate) const ALARM: Duration = Duration::from_millis(100);

/// The clock of one worker, as measured by pings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// (round trip, how far it is ahead), both in milliseconds.
    samples: VecDeque<(u64, i64)>,
}

impl Measured {
    /// A pong said `theirs`; the ping was sent at `sent`, the pong came at `came`, by the own clock.
    pub(crate) fn add(&mut self, sent: u64, came: u64, theirs: u64) {
        let trip = came.saturating_sub(sent);
        let middle = i128::from(sent) + i128::from(trip / 2);
        let ahead = i64::try_from(i128::from(theirs) - middle).unwrap_or(0);
        self.samples.push_back((trip, ahead));
        if self.samples.len() > KEPT {
            self.samples.pop_front();
        }
    }

    /// How far it is ahead, in milliseconds: by the fastest round trip, which is the most exact one.
    pub(crate) fn ahead(&self) -> Option<i64> {
        let best = self.samples.iter().min_by_key(|(trip, _)| *trip);
        best.map(|(_, ahead)| *ahead)
    }

    /// How far it can be ahead at most, by the same round trip: the pong was perhaps written as soon as the ping was sent.
    pub(crate) fn ahead_at_most(&self) -> Option<i64> {
        let best = self.samples.iter().min_by_key(|(trip, _)| *trip)?;
        let half = i64::try_from(best.0 / 2).unwrap_or(i64::MAX);
        // And one, because clocks are read in whole milliseconds.
        Some(best.1.saturating_add(half).saturating_add(1))
    }
}

/// What to add to the own clock, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Corrections {
    /// For beginning attempts: never above 0.
    pub(crate) begin: i64,
    /// For computing due times: never below 0.
    pub(crate) due: i64,
}

impl Corrections {
    /// From how far the clocks of workers are ahead.
    pub(crate) fn of(workers: impl Iterator<Item = i64>) -> Self {
        let mut all: Vec<i64> = workers.chain([0]).collect();
        all.sort_unstable();
        let lower = all[(all.len() - 1) / 2];
        let upper = all[all.len() / 2];
        Self {
            begin: lower.min(0),
            due: upper.max(0),
        }
    }
}

impl Corrections {
    /// What to add to the moment by which an attempt begins, so that a worker which is at most so far ahead starts it then and not
    /// before. Nothing where clocks are right: measurements are less exact than those.
    pub(crate) fn for_worker(self, ahead: i64) -> i64 {
        let shift = ahead.saturating_sub(self.begin);
        if u128::from(shift.unsigned_abs()) > ALARM.as_millis() {
            shift
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_told_the_moment_in_its_time() {
        let with = |begin, ahead| Corrections { begin, due: 0 }.for_worker(ahead);
        assert_eq!(with(0, 60), 0);
        assert_eq!(with(0, 3_600_000), 3_600_000);
        assert_eq!(with(0, -3_600_000), -3_600_000);
        // The center is ahead of all workers, and begins by their clocks.
        assert_eq!(with(-3_600_000, -3_600_000), 0);
    }

    #[test]
    fn the_fastest_round_trip_decides() {
        let mut measured = Measured::default();
        assert_eq!(measured.ahead(), None);
        measured.add(1_000, 1_400, 1_500);
        assert_eq!(measured.ahead(), Some(300));
        measured.add(2_000, 2_003, 2_051);
        assert_eq!(measured.ahead(), Some(50));
        // 51 if the pong was written at once, and less than 52 with what is behind the milliseconds.
        assert_eq!(measured.ahead_at_most(), Some(52));
        measured.add(u64::MAX, 0, 0);
        for _ in 0..20 {
            measured.add(0, 100, 0);
        }
        assert_eq!(measured.ahead(), Some(-50));
    }

    #[test]
    fn one_wrong_clock_makes_nothing_early_and_nothing_due_too_soon() {
        let of = |clocks: &[i64]| {
            let corrections = Corrections::of(clocks.iter().copied());
            (corrections.begin, corrections.due)
        };
        assert_eq!(of(&[]), (0, 0));
        // One other clock: the earlier one of two begins.
        assert_eq!(of(&[-400]), (-400, 0));
        assert_eq!(of(&[400]), (0, 400));
        // Two others: the one in the middle.
        assert_eq!(of(&[-400, 10]), (0, 0));
        assert_eq!(of(&[-400, -300]), (-300, 0));
        assert_eq!(of(&[4_000, 300]), (0, 300));
    }
}
