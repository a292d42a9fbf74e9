//! Whether to wait for company before a commit.
//!
//! Publishers that were just answered often come back at once. A writer that goes on with what is
//! there when it finishes takes only the quickest of them along; the others wait for the sync after
//! that, and the publishers fall into two halves that take turns for ever. Waiting for those who were
//! just answered, for less time than a sync takes, brings them together and doubles what is written
//! per sync. `Pace` asks for no wait where the last commit answered one request: a single publisher is never held up.

use std::time::Duration;

/// However slow the disk is, company is not worth more.
const LONGEST: Duration = Duration::from_millis(2);

/// Callers that are answered alone, or nearly, are watched for: more would only take the cores from each other.
const A_FEW: usize = 2;

/// A quick publisher is back by then.
const SOON: Duration = Duration::from_micros(100);

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
    /// How many more commits are not followed by a watch.
    unwatched: u32,
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

    /// For how long to watch for those who were just answered before going to sleep.
    pub(super) fn watch(&mut self) -> Option<Duration> {
        if self.unwatched > 0 {
            self.unwatched -= 1;
            return None;
        }
        (1..=A_FEW)
            .contains(&self.answered)
            .then(|| (self.sync / 2).min(SOON))
    }

    /// Notes whether a request came.
    pub(super) fn watched(&mut self, came: bool) {
        if !came {
            self.unwatched = DISCOURAGED;
        }
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
    fn a_few_are_watched_for_until_it_is_in_vain() {
        let mut pace = Pace::default();
        assert_eq!(pace.watch(), None);
        pace.committed(1, SYNC);
        assert_eq!(pace.watch(), Some(SOON));
        pace.watched(true);
        pace.committed(2, Duration::from_micros(60));
        assert_eq!(pace.watch(), Some(Duration::from_micros(30)));
        pace.watched(false);
        for _ in 0..DISCOURAGED {
            assert_eq!(pace.watch(), None);
        }
        assert!(pace.watch().is_some());
        pace.committed(100, SYNC);
        assert_eq!(pace.watch(), None);
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
