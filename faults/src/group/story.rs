//! The history, as it is to be judged.
//!
//! A partition changes hands here, and the epoch says so. What an owner did and did not commit may run
//! again when the next one has begun, and an owner that was replaced may still be at work: users refuse
//! what it does by its epoch, so it does not count here, either. What must not happen is that it
//! *starts* anything, and that is left to the judge.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use laneway::testing::history::{Attempt, Event, MessageId, Record, Rules};

use crate::verdict::Verdict;

/// Handled by one owner, and by the next one again. In the verdict.
pub(super) const RUN_AGAIN: &str = "run again by the next owner";

/// What keys of plain messages begin with.
pub(super) const PLAIN: &str = "plain-";

type Key = Arc<str>;

/// All that happened, in its order.
pub(super) struct Story(Vec<Record>);

impl Story {
    pub(super) fn new(mut records: Vec<Record>) -> Self {
        records.sort_by_key(|record| record.at);
        Self(records)
    }

    /// Judges it: nothing acknowledged is lost, and order holds, whoever handles.
    pub(super) fn judge(&self) -> Verdict {
        Self::judge_events(self.0.iter(), &Rules::at_least_once())
    }

    /// Judges the events as [`judge`](Self::judge) does, and of plain messages that none runs twice. If it ended before
    /// everything was handled, what is left may be.
    pub(super) fn judge_life(&self, is_drained: bool) -> Verdict {
        let is_plain =
            |record: &&Record| key_of(&record.event).is_some_and(|key| key.starts_with(PLAIN));
        let mut rules = Rules::at_least_once();
        if !is_drained {
            rules = rules.undrained();
        }
        let events = self.0.iter().filter(|record| !is_plain(record));
        let plain = self.0.iter().filter(is_plain).cloned();
        let plain = Verdict::from(&Rules::at_most_once().check(plain));
        Self::judge_events(events, &rules).and("plain", plain)
    }

    fn judge_events<'a>(records: impl Iterator<Item = &'a Record>, rules: &Rules) -> Verdict {
        let mut reader = Reader::default();
        for record in records {
            reader.read(record);
        }
        Verdict::from(&rules.check(reader.records))
            .renamed("crashes", "changes of owner, by key")
            .renamed("duplicates after a crash", RUN_AGAIN)
            .count("ended after the next owner began", reader.late)
            .count("admitted before it froze, begun after", reader.admitted)
    }

    /// How long after a moment something was handled that was published after it.
    pub(super) fn resumed_after(&self, at: u64) -> Option<Duration> {
        let mut published = HashSet::new();
        let mut later = self.0.iter().filter(|record| record.at >= at);
        later.find_map(|record| match &record.event {
            Event::Submitted(message) => {
                published.insert(message);
                None
            }
            Event::Started(message, _) if published.contains(message) => Some(since(record.at, at)),
            _ => None,
        })
    }

    /// How long after a moment the last of the keys that a process had was started by another one.
    /// None if none was.
    pub(super) fn taken_over(&self, process: u64, at: u64, until: u64) -> Option<Duration> {
        let mut owners: HashMap<&Key, (u64, u64)> = HashMap::new();
        let mut last = None;
        for (record, message, attempt) in self.starts().filter(|(record, ..)| record.at < until) {
            let before = owners.insert(&message.key, (attempt.owner, attempt.epoch));
            let is_taken = before
                .is_some_and(|(owner, epoch)| owner == process && attempt.epoch > epoch)
                && attempt.owner != process;
            if record.at >= at && is_taken {
                last = Some(since(record.at, at));
            }
        }
        last
    }

    /// How many events a process has run that another one had done before.
    pub(super) fn run_again_by(&self, process: u64) -> u64 {
        let mut done = HashSet::new();
        let mut again = 0;
        for record in &self.0 {
            match &record.event {
                Event::Started(message, attempt) if attempt.owner == process => {
                    again += u64::from(done.contains(message));
                }
                Event::Finished {
                    message,
                    owner,
                    outcome,
                } if *owner != process && outcome.is_final() => {
                    done.insert(message);
                }
                _ => {}
            }
        }
        again
    }

    /// The longest time without a start of a handler in the half minute after a moment.
    pub(super) fn longest_pause(&self, at: u64) -> Option<Duration> {
        let until = at.saturating_add(30_000_000_000);
        let starts = self.starts().map(|(record, ..)| record.at);
        let mut last = at;
        starts
            .filter(|start| (at..until).contains(start))
            .map(|start| since(start, std::mem::replace(&mut last, start)))
            .max()
    }

    fn starts(&self) -> impl Iterator<Item = (&Record, &MessageId, &Attempt)> {
        self.0.iter().filter_map(|record| match &record.event {
            Event::Started(message, attempt) => Some((record, message, attempt)),
            _ => None,
        })
    }
}

fn key_of(event: &Event) -> Option<&Key> {
    match event {
        Event::Submitted(message)
        | Event::Acked(message)
        | Event::Refused(message)
        | Event::Settled(message)
        | Event::Started(message, _)
        | Event::Finished { message, .. } => Some(&message.key),
        _ => None,
    }
}

fn since(at: u64, before: u64) -> Duration {
    Duration::from_nanos(at.saturating_sub(before))
}

/// Makes of what processes did what owners did: an owner is a process for as long as it has a key, and
/// it is gone when the next one begins.
#[derive(Default)]
struct Reader {
    records: Vec<Record>,
    newest: HashMap<Key, u64>,
    /// The number of an owner, by key and epoch.
    owners: HashMap<(Key, u64), u64>,
    /// The epochs of what processes run.
    running: HashMap<(u64, MessageId), u64>,
    /// Processes that were frozen, and have started nothing since.
    woken: HashSet<u64>,
    late: u64,
    admitted: u64,
}

impl Reader {
    fn read(&mut self, record: &Record) {
        let mut record = record.clone();
        match &mut record.event {
            Event::Crashed { owner } => {
                self.woken.insert(*owner);
                return;
            }
            Event::Started(message, attempt) => {
                let first_since = self.woken.remove(&attempt.owner);
                let newest = self.newest.get(&message.key).copied();
                if newest.is_some_and(|newest| attempt.epoch < newest) && first_since {
                    // It has one thread, which was past all checks when it was stopped.
                    self.admitted += 1;
                    return;
                }
                let place = (attempt.owner, message.clone());
                self.running.insert(place, attempt.epoch);
                if newest.is_none_or(|newest| attempt.epoch > newest) {
                    self.newest.insert(message.key.clone(), attempt.epoch);
                    if let Some(newest) = newest {
                        let owner = self.owner(&message.key, newest);
                        self.records.push(Record {
                            at: record.at,
                            event: Event::Crashed { owner },
                        });
                    }
                }
                attempt.owner = self.owner(&message.key, attempt.epoch);
            }
            Event::Finished { message, owner, .. } => {
                let Some(epoch) = self.running.remove(&(*owner, message.clone())) else {
                    return;
                };
                if self
                    .newest
                    .get(&message.key)
                    .is_some_and(|newest| epoch < *newest)
                {
                    self.late += 1;
                    return;
                }
                *owner = self.owner(&message.key, epoch);
            }
            _ => {}
        }
        self.records.push(record);
    }

    fn owner(&mut self, key: &Key, epoch: u64) -> u64 {
        let next = self.owners.len() as u64 + 1;
        *self.owners.entry((key.clone(), epoch)).or_insert(next)
    }
}

#[cfg(test)]
mod tests {
    use laneway::testing::history::{History, Outcome};

    use super::*;

    fn attempt(owner: u64, epoch: u64) -> Attempt {
        Attempt {
            number: 1,
            owner,
            epoch,
        }
    }

    fn published() -> History {
        let history = History::new();
        for seq in 1..=3 {
            history.submitted("a", seq);
            history.acked("a", seq);
        }
        history
    }

    fn passes(history: &History) -> bool {
        Story::new(history.records()).judge().passes()
    }

    #[test]
    fn the_next_owner_may_run_again_what_the_last_one_did() {
        let history = published();
        history.started("a", 1, attempt(1, 1)).finish(Outcome::Done);
        let late = history.started("a", 2, attempt(1, 1));
        for seq in 1..=2 {
            history
                .started("a", seq, attempt(2, 2))
                .finish(Outcome::Done);
        }
        late.finish(Outcome::Done);
        history.started("a", 3, attempt(2, 2)).finish(Outcome::Done);
        assert!(passes(&history));
    }

    #[test]
    fn an_owner_may_not_run_again_what_it_did() {
        let history = published();
        for seq in [1, 1, 2, 3] {
            history
                .started("a", seq, attempt(1, 1))
                .finish(Outcome::Done);
        }
        assert!(!passes(&history));
    }

    #[test]
    fn the_next_owner_may_not_overtake_what_the_last_one_left() {
        let history = published();
        let left = history.started("a", 1, attempt(1, 1));
        history.started("a", 2, attempt(2, 2)).finish(Outcome::Done);
        left.finish(Outcome::Done);
        for seq in [1, 3] {
            history
                .started("a", seq, attempt(2, 2))
                .finish(Outcome::Done);
        }
        assert!(!passes(&history));
    }

    #[test]
    fn one_that_was_frozen_starts_what_it_had_admitted_and_no_more() {
        for (stale, is_fine) in [(1, true), (2, false)] {
            let history = published();
            history.started("a", 1, attempt(1, 1)).finish(Outcome::Done);
            for seq in 1..=3 {
                history
                    .started("a", seq, attempt(2, 2))
                    .finish(Outcome::Done);
            }
            // It wakes up.
            history.crashed(1);
            for seq in 2..2 + stale {
                history
                    .started("a", seq, attempt(1, 1))
                    .finish(Outcome::Done);
            }
            assert_eq!(passes(&history), is_fine, "{stale}");
        }
    }

    #[test]
    fn plain_messages_may_be_lost_and_not_run_twice() {
        for (runs, is_fine) in [(0, true), (1, true), (2, false)] {
            let history = History::new();
            history.submitted("plain-0", 1);
            for owner in 0..runs {
                let run = history.started("plain-0", 1, attempt(owner, owner));
                run.finish(Outcome::Done);
            }
            let verdict = Story::new(history.records()).judge_life(true);
            assert_eq!(verdict.passes(), is_fine, "{runs}");
        }
    }

    #[test]
    fn what_is_run_again_is_counted() {
        let history = published();
        for (owner, seq) in [(1, 1), (1, 2), (2, 2), (2, 3)] {
            let run = history.started("a", seq, attempt(owner, owner));
            run.finish(Outcome::Done);
        }
        let story = Story::new(history.records());
        assert_eq!([1, 2].map(|owner| story.run_again_by(owner)), [0, 1]);
    }

    #[test]
    fn what_is_taken_over_is_seen() {
        let history = published();
        history.started("a", 1, attempt(1, 1)).finish(Outcome::Done);
        let story = Story::new(history.records());
        assert!(story.taken_over(1, 0, u64::MAX).is_none());
        assert!(story.resumed_after(0).is_some() && story.resumed_after(u64::MAX).is_none());
        history.started("a", 2, attempt(2, 2)).finish(Outcome::Done);
        let story = Story::new(history.records());
        assert!(story.taken_over(1, 0, u64::MAX).is_some());
        assert!(story.taken_over(1, u64::MAX, u64::MAX).is_none());
        assert!(story.taken_over(2, 0, u64::MAX).is_none());
    }
}
