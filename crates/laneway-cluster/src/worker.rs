//! What a worker may start: the fence against owners of the past. Pure; the wheel and the callbacks are around it.
//!
//! A worker starts what an owner gave it the go for. It answers owners of the highest epoch it has heard of, and refuses
//! every other one. When an owner asks what became of an attempt, the worker says how it ended, or that it runs, or
//! *disclaims* it: it has not started it, and never will.

use std::collections::{BTreeMap, BTreeSet};

use laneway_delay::MessageId;

use crate::owner::{Go, Outcome};
use crate::record::Instance;
use crate::rules::{Rule, Rules};

/// The most attempts without an answer that are remembered behind their outcome. Beyond that nothing is disclaimed that is
/// not known.
const MOST_UNKNOWN: usize = 16_384;

/// The attempts of one shard in one process of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attempts {
    instance: Instance,
    rules: Rules,
    /// The highest epoch that was answered.
    epoch: u64,
    known: BTreeMap<(MessageId, u32), Attempt>,
    /// What was disclaimed to the owner of this epoch, whose go may still be on its way.
    disclaimed: BTreeSet<(MessageId, u32)>,
    /// What was started and had no answer, and is logged as that: the log still doubts it, so a later owner may ask.
    unknown: BTreeSet<(MessageId, u32)>,
    /// There were too many of these.
    has_forgotten: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Attempt {
    /// It waits for its moment, with the go of this epoch.
    Held(u64),
    /// It was started.
    Runs,
    /// It ended, and no owner has said that this is in the log.
    Ended(Outcome),
}

/// What a worker says about an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The owner that asks is one of the past.
    Refused,
    /// It was not started, and will not be.
    Disclaimed,
    /// It runs. Its outcome will be told.
    Runs,
    /// It ended.
    Ended(Outcome),
}

impl Attempts {
    /// A worker that has just started.
    #[must_use]
    pub fn new(instance: Instance) -> Self {
        Self::with_rules(instance, Rules::default())
    }

    pub(crate) fn with_rules(instance: Instance, rules: Rules) -> Self {
        Self {
            instance,
            rules,
            epoch: 0,
            known: BTreeMap::new(),
            disclaimed: BTreeSet::new(),
            unknown: BTreeSet::new(),
            has_forgotten: false,
        }
    }

    /// Which process it is.
    #[must_use]
    pub const fn instance(&self) -> Instance {
        self.instance
    }

    /// Takes an attempt to start it at its moment. `false`: refused.
    pub fn go(&mut self, go: &Go) -> bool {
        let key = (go.id.clone(), go.attempt);
        let is_for_us = go.worker == self.instance;
        if !is_for_us || !self.hear(go.epoch) {
            return false;
        }
        // The owner of this very epoch gave it, and asked before it arrived.
        if go.epoch == self.epoch && self.disclaimed.contains(&key) {
            return false;
        }
        self.known.entry(key).or_insert(Attempt::Held(go.epoch));
        true
    }

    /// Starts an attempt at its moment. The epoch of its go, which a receiver is told; `None`: it must not be started.
    pub fn start(&mut self, id: &MessageId, attempt: u32) -> Option<u64> {
        let held = self.known.get_mut(&(id.clone(), attempt))?;
        let Attempt::Held(epoch) = *held else {
            return None;
        };
        *held = Attempt::Runs;
        Some(epoch)
    }

    /// An attempt that was started has ended.
    pub fn ended(&mut self, id: &MessageId, attempt: u32, outcome: Outcome) {
        if let Some(runs @ Attempt::Runs) = self.known.get_mut(&(id.clone(), attempt)) {
            *runs = Attempt::Ended(outcome);
        }
    }

    /// The outcome of an attempt is in the log: it can be forgotten.
    pub fn logged(&mut self, id: &MessageId, attempt: u32) {
        let key = (id.clone(), attempt);
        let Some(Attempt::Ended(outcome)) = self.known.get(&key) else {
            return;
        };
        let is_unknown = *outcome == Outcome::Unknown;
        self.known.remove(&key);
        if is_unknown {
            if self.unknown.len() >= MOST_UNKNOWN {
                self.unknown.clear();
                self.has_forgotten = true;
            }
            self.unknown.insert(key);
        }
    }

    /// The owner of `epoch` asks about an attempt that the log says was begun with this worker.
    pub fn ask(&mut self, epoch: u64, id: &MessageId, attempt: u32) -> Status {
        if !self.hear(epoch) {
            return Status::Refused;
        }
        let key = (id.clone(), attempt);
        match self.known.get(&key) {
            Some(Attempt::Runs) => Status::Runs,
            Some(Attempt::Ended(outcome)) => Status::Ended(outcome.clone()),
            None if self.has_forgotten || self.unknown.contains(&key) => {
                Status::Ended(Outcome::Unknown)
            }
            Some(Attempt::Held(_)) | None => {
                self.known.remove(&key);
                self.disclaimed.insert(key);
                Status::Disclaimed
            }
        }
    }

    /// Attempts that wait for their moment.
    pub fn held(&self) -> impl Iterator<Item = &(MessageId, u32)> {
        let held = |(_, attempt): &(_, &Attempt)| matches!(attempt, Attempt::Held(_));
        self.known.iter().filter(held).map(|(key, _)| key)
    }

    /// Attempts that run.
    pub fn running(&self) -> impl Iterator<Item = &(MessageId, u32)> {
        let runs = |(_, attempt): &(_, &Attempt)| matches!(attempt, Attempt::Runs);
        self.known.iter().filter(runs).map(|(key, _)| key)
    }

    /// Outcomes that no owner has logged.
    pub fn outcomes(&self) -> impl Iterator<Item = (&(MessageId, u32), &Outcome)> {
        self.known
            .iter()
            .filter_map(|(key, attempt)| match attempt {
                Attempt::Ended(outcome) => Some((key, outcome)),
                _ => None,
            })
    }

    /// Hears from the owner of an epoch. `false`: it is one of the past.
    fn hear(&mut self, epoch: u64) -> bool {
        if epoch < self.epoch {
            return !self.rules.holds(Rule::WorkerEpochs);
        }
        if epoch > self.epoch {
            self.epoch = epoch;
            // What an older owner still sends is refused by its epoch.
            self.disclaimed.clear();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use laneway_delay::Timestamp;

    use super::*;

    const OWN: Instance = Instance([1; 16]);

    fn id() -> MessageId {
        MessageId::new("a").unwrap()
    }

    fn go(epoch: u64, attempt: u32) -> Go {
        Go {
            worker: OWN,
            epoch,
            id: id(),
            attempt,
            not_before: Timestamp::from_millis(0),
        }
    }

    #[test]
    fn what_was_given_is_started_once() {
        let mut worker = Attempts::new(OWN);
        assert_eq!(worker.start(&id(), 1), None);
        assert!(worker.go(&go(4, 1)));
        assert_eq!(worker.start(&id(), 1), Some(4));
        assert_eq!(worker.start(&id(), 1), None);
        // The same go once more starts nothing.
        assert!(worker.go(&go(4, 1)));
        assert_eq!(worker.start(&id(), 1), None);
    }

    #[test]
    fn a_go_for_another_process_or_of_an_epoch_of_the_past_is_refused() {
        let mut worker = Attempts::new(OWN);
        let other = Go {
            worker: Instance([2; 16]),
            ..go(1, 1)
        };
        assert!(!worker.go(&other));
        assert_eq!(worker.ask(5, &id(), 1), Status::Disclaimed);
        assert!(!worker.go(&go(4, 1)));
        assert_eq!(worker.ask(4, &id(), 1), Status::Refused);
    }

    #[test]
    fn what_was_disclaimed_never_starts_not_even_by_a_go_of_the_same_owner() {
        let mut worker = Attempts::new(OWN);
        assert!(worker.go(&go(5, 1)));
        assert_eq!(worker.ask(5, &id(), 1), Status::Disclaimed);
        assert!(!worker.go(&go(5, 1)));
        assert_eq!(worker.start(&id(), 1), None);
        // Another attempt is another matter.
        assert!(worker.go(&go(5, 2)));
    }

    #[test]
    fn an_outcome_is_kept_until_it_is_logged() {
        let mut worker = Attempts::new(OWN);
        worker.go(&go(1, 1));
        worker.start(&id(), 1);
        assert_eq!(worker.ask(1, &id(), 1), Status::Runs);
        worker.logged(&id(), 1);
        worker.ended(&id(), 1, Outcome::Delivered);
        for epoch in 1..4 {
            let ended = Status::Ended(Outcome::Delivered);
            assert_eq!(worker.ask(epoch, &id(), 1), ended);
        }
        worker.logged(&id(), 1);
        assert_eq!(worker.outcomes().count(), 0);
    }

    #[test]
    fn what_had_no_answer_is_never_disclaimed_also_when_that_is_logged() {
        let mut worker = Attempts::new(OWN);
        for attempt in 1..=2 {
            worker.go(&go(1, attempt));
            worker.start(&id(), attempt);
            worker.ended(&id(), attempt, Outcome::Unknown);
            worker.logged(&id(), attempt);
        }
        assert_eq!(worker.outcomes().count(), 0);
        assert_eq!(worker.ask(2, &id(), 2), Status::Ended(Outcome::Unknown));
        assert_eq!(worker.ask(2, &id(), 3), Status::Disclaimed);
    }
}
