//! Whether to wait for company before a commit.
//!
//! Publishers that were just answered often come back at once. A writer that goes on with what is
//! there when it finishes takes only the quickest of them along; the others wait for the sync after
//! that, and the publishers fall into two halves that take turns for ever. Waiting for those who were
//! just answered, for less time than a sync takes, brings them together and doubles what is written
//! per sync. Nobody waits for company who has had none: a single publisher is never held up.

use std::time::Duration;

/// However slow the disk is, company is not worth more.
const LONGEST: Duration = Duration::from_millis(2);

/// Commits without a wait after one that was in vain.
const DISCOURAGED: u32 = 16;

#[derive(Debug, Default)]
pub(super) struct Pace {
    /// How many the last commit answered.
    answered: usize,
    /// How long the last sync took.
    sync: Duration,
    /// How many more commits do not wait.
    discouraged: u32,
}

/// A wait for company.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    /// For so many entries in the queue.
    pub(super) entries: usize,
    /// For so long.
    pub(super) time: Duration,
}

impl Pace {
    /// Notes a commit.
    pub(super) fn committed(&mut self, answered: usize, sync: Duration) {
        self.answered = answered;
        self.sync = sync;
    }

    /// What to wait for when so many entries are there already.
    pub(super) fn wait(&mut self, waiting: usize) -> Option<Wait> {
        if self.discouraged > 0 {
            self.discouraged -= 1;
            return None;
        }
        let wait = Wait {
            entries: waiting + self.answered,
            time: (self.sync / 2).min(LONGEST),
        };
        (self.answered > 0 && wait.entries > 1).then_some(wait)
    }

    /// Notes how many came.
    pub(super) fn waited(&mut self, wait: Wait, came: usize) {
        if came < wait.entries - wait.entries / 4 {
            self.discouraged = DISCOURAGED;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNC: Duration = Duration::from_millis(1);

    #[test]
    fn one_publisher_never_waits() {
        let mut pace = Pace::default();
        assert_eq!(pace.wait(0), None);
        for _ in 0..5 {
            pace.committed(1, SYNC);
            assert_eq!(pace.wait(0), None);
        }
    }

    #[test]
    fn those_who_were_answered_are_waited_for() {
        let mut pace = Pace::default();
        pace.committed(100, SYNC);
        let wait = pace.wait(50).unwrap();
        assert_eq!(wait.entries, 150);
        assert_eq!(wait.time, SYNC / 2);
        pace.committed(100, Duration::from_secs(9));
        assert_eq!(pace.wait(0).unwrap().time, LONGEST);
    }

    #[test]
    fn who_waits_in_vain_stops_for_a_while() {
        let mut pace = Pace::default();
        pace.committed(4, SYNC);
        let wait = pace.wait(0).unwrap();
        pace.waited(wait, 3);
        assert!(pace.wait(0).is_some(), "three of four is well worth it");
        pace.waited(wait, 1);
        for _ in 0..DISCOURAGED {
            assert_eq!(pace.wait(0), None);
        }
        assert!(pace.wait(0).is_some());
    }
}
