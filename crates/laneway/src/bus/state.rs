//! How a subscription is doing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

/// How a subscription is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// It reads, handles and commits.
    Running,
    /// The broker fails it, and it tries again.
    Failing(String),
    /// It stopped by itself.
    Stopped(String),
    /// It was closed.
    Closed,
}

impl State {
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Stopped(_) | Self::Closed)
    }
}

/// What can be in trouble, each for itself: one that is well again does not speak for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// Being a member of the group.
    Joining,
    /// Reading a partition.
    Reading(u32),
    /// Reading events of it that had to wait.
    ReadingAgain(u32),
    /// Committing one.
    Committing(u32),
    /// Putting events of it aside.
    PuttingAside(u32),
    /// The task that reads a partition, which panicked.
    Restarting(u32),
    /// The task that commits, which panicked.
    Committer,
}

/// Where the parts of a subscription say how they are doing.
#[derive(Debug)]
pub(super) struct Condition {
    state: watch::Sender<State>,
    troubles: Mutex<BTreeMap<Part, String>>,
    last_commit: Mutex<Option<Instant>>,
    closing: AtomicBool,
}

impl Default for Condition {
    fn default() -> Self {
        Self {
            state: watch::Sender::new(State::Running),
            troubles: Mutex::default(),
            last_commit: Mutex::default(),
            closing: AtomicBool::new(false),
        }
    }
}

impl Condition {
    pub(super) fn stop(&self, reason: String) {
        self.change(State::Stopped(reason));
    }

    pub(super) fn failing(&self, part: Part, reason: String) {
        let mut troubles = self.troubles.lock();
        troubles.insert(part, reason);
        self.show(&troubles);
    }

    pub(super) fn fine(&self, part: Part) {
        let mut troubles = self.troubles.lock();
        if troubles.remove(&part).is_some() {
            self.show(&troubles);
        }
    }

    /// A partition is ours no more, and its troubles are those of another member.
    pub(super) fn forget(&self, partition: u32) {
        self.fine(Part::Reading(partition));
        self.fine(Part::ReadingAgain(partition));
        self.fine(Part::Committing(partition));
        self.fine(Part::PuttingAside(partition));
        self.fine(Part::Restarting(partition));
    }

    fn show(&self, troubles: &BTreeMap<Part, String>) {
        self.change(match troubles.values().next() {
            None => State::Running,
            Some(reason) => State::Failing(reason.clone()),
        });
    }

    /// From now on a handler may be cancelled through no fault of its own.
    pub(super) fn closing(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    pub(super) fn closed(&self) {
        self.change(State::Closed);
    }

    pub(super) fn committed(&self) {
        *self.last_commit.lock() = Some(Instant::now());
    }

    pub(super) fn since_commit(&self) -> Option<Duration> {
        self.last_commit.lock().map(|at| at.elapsed())
    }

    pub(super) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    pub(super) fn watch(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// What is over stays over.
    fn change(&self, next: State) {
        self.state.send_if_modified(|state| {
            let changes = !state.is_over() && *state != next;
            if changes {
                *state = next;
            }
            changes
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fails_for_as_long_as_one_part_does() {
        let condition = Condition::default();
        condition.failing(Part::Reading(1), "disk".into());
        condition.failing(Part::Committing(1), "full".into());
        condition.fine(Part::Reading(2));
        assert_eq!(condition.state(), State::Failing("disk".into()));
        condition.fine(Part::Reading(1));
        assert_eq!(condition.state(), State::Failing("full".into()));
        condition.fine(Part::Committing(1));
        assert_eq!(condition.state(), State::Running);
    }

    #[test]
    fn what_has_stopped_stays_stopped() {
        let condition = Condition::default();
        condition.stop("enough".into());
        condition.failing(Part::Reading(0), "disk".into());
        condition.fine(Part::Reading(0));
        condition.closed();
        assert_eq!(condition.state(), State::Stopped("enough".into()));
    }
}
