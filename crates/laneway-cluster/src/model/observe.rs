use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use laneway_delay::{MessageId, Timestamp};

use super::scenario::Scenario;
use super::world::{World, counted};
use crate::apply::{Applied, Memory, Shard, Table};
use crate::owner::{Order, Reply, Ticket, Verdict};
use crate::record::{Answer, Change, Instance, Record, Refusal, Reign, Row, State};

pub(super) const START_AFTER_YES: &str = "a start after a yes to withdraw";
pub(super) const YES_AFTER_START: &str = "a yes to withdraw after a start whose outcome is unknown";
pub(super) const EARLY: &str = "a start before the due time that an extend was granted";
pub(super) const START_WITHOUT_BEGUN: &str = "a start without a begun attempt that counts";
pub(super) const YES_WITHOUT_ROW: &str = "a yes without its row";
pub(super) const TWO_ANSWERS: &str = "two answers to one key";
pub(super) const NOT_FOUND: &str = "not found although accepted";
pub(super) const OTHER_ACCEPTED: &str = "accepted, but what is there is another message";
pub(super) const SAME_REFUSED: &str = "the same request refused as another one";
pub(super) const SETTLED_WITHOUT_ROW: &str = "settled in the intake without a row";
pub(super) const TWO_ENDINGS: &str = "two endings";
pub(super) const UNDONE: &str = "a change that was undone";
pub(super) const REVIVED: &str = "revived";
pub(super) const DOUBLE_OWNER: &str = "double owner";

/// What is seen from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Seen {
    /// The first thing that must never be seen.
    pub(super) wrong: Option<&'static str>,
    /// Messages whose withdraw was granted.
    pub(super) withdrawn: BTreeSet<MessageId>,
    /// The answer that each command got.
    pub(super) answers: BTreeMap<Ticket, Answer>,
    /// Whether the message was there when a command was sent.
    pub(super) known_when_asked: BTreeMap<Ticket, bool>,
    /// Submits whose client was told that they are accepted.
    pub(super) answered_202: BTreeSet<usize>,
    /// The due time that an extend was granted.
    pub(super) extended: BTreeMap<MessageId, Timestamp>,
    /// Withdraws and extends that count.
    pub(super) granted: BTreeSet<(MessageId, Option<Timestamp>)>,
    /// Attempts that were started, and are not known to have failed.
    pub(super) started: BTreeSet<(MessageId, u32)>,
    /// Attempts that count as begun, and for which moment.
    pub(super) begun: BTreeMap<(MessageId, u32, Instance), Timestamp>,
    /// Messages that were accepted.
    pub(super) accepted: BTreeSet<MessageId>,
    /// Which reign had which epoch.
    pub(super) reigns: BTreeMap<u64, Reign>,
    /// The newest epoch of which a record counted.
    pub(super) epoch: u64,
    /// Where an `open` counted.
    pub(super) opens: Vec<u64>,
}

impl Seen {
    fn fail(&mut self, wrong: &'static str) {
        self.wrong.get_or_insert(wrong);
    }
}

impl World {
    pub(super) fn observe_start(&mut self, id: &MessageId, attempt: u32, worker: Instance) {
        if self.seen.withdrawn.contains(id) {
            self.seen.fail(START_AFTER_YES);
        }
        match self.seen.begun.get(&(id.clone(), attempt, worker)) {
            None => self.seen.fail(START_WITHOUT_BEGUN),
            Some(at) => {
                let at = *at + super::world::settings().begin_ahead;
                if self.seen.extended.get(id).is_some_and(|due| at < *due) {
                    self.seen.fail(EARLY);
                }
            }
        }
        self.seen.started.insert((id.clone(), attempt));
    }

    pub(super) fn observe_reply(&mut self, scenario: &Scenario, ticket: Ticket, reply: &Reply) {
        match reply {
            Reply::Verdict(verdict) => self.observe_verdict(ticket, *verdict),
            Reply::NotOwner | Reply::Found(Some(_)) => {}
            Reply::Found(None) => self.observe_not_found(scenario, ticket),
            Reply::Command(answer) => self.observe_answer(scenario, ticket, answer),
        }
    }

    fn observe_answer(&mut self, scenario: &Scenario, ticket: Ticket, answer: &Answer) {
        let asked = &scenario.commands[usize::try_from(ticket).unwrap()];
        let before = self.seen.answers.insert(ticket, answer.clone());
        if asked.key.is_some() && before.is_some_and(|before| before != *answer) {
            self.seen.fail(TWO_ANSWERS);
        }
        // Commands of one key are all the same, or refused.
        let refused = Answer::Refused(Refusal::OtherCommand);
        let decided = |(other, answer): (&Ticket, &Answer)| {
            let other = &scenario.commands[usize::try_from(*other).unwrap()];
            let (key, id) = (other.key.map(|key| key.0), &other.id);
            key.is_some()
                && (key, id) == (asked.key.map(|key| key.0), &asked.id)
                && *answer != refused
        };
        let deciding: BTreeSet<_> = self
            .seen
            .answers
            .iter()
            .filter(|entry| decided(*entry))
            .filter_map(|(other, _)| scenario.commands[usize::try_from(*other).unwrap()].key)
            .map(|(_, digest)| digest.0)
            .collect();
        if deciding.len() > 1 {
            self.seen.fail(TWO_ANSWERS);
        }
        match answer {
            Answer::Done { due } => {
                // The row may have been forgotten since.
                let is_there = match asked.order {
                    Some(Order::Withdraw) => {
                        let rows = self.seen.granted.iter();
                        let mut own = rows.filter(|(id, due)| *id == asked.id && due.is_none());
                        own.next().is_some()
                    }
                    Some(Order::ExtendBy(_) | Order::ExtendTo(_)) => {
                        self.seen.granted.contains(&(asked.id.clone(), Some(*due)))
                    }
                    _ => true,
                };
                if !is_there {
                    self.seen.fail(YES_WITHOUT_ROW);
                }
                match asked.order {
                    Some(Order::Withdraw) => {
                        let id = &asked.id;
                        if self.seen.started.iter().any(|(started, _)| started == id) {
                            self.seen.fail(YES_AFTER_START);
                        }
                        self.seen.withdrawn.insert(id.clone());
                    }
                    Some(Order::ExtendBy(_) | Order::ExtendTo(_)) => {
                        self.seen.extended.insert(asked.id.clone(), *due);
                    }
                    _ => {}
                }
            }
            Answer::Refused(Refusal::Unknown) => self.observe_not_found(scenario, ticket),
            Answer::Refused(_) => {}
        }
    }

    fn observe_not_found(&mut self, scenario: &Scenario, ticket: Ticket) {
        let asked = &scenario.commands[usize::try_from(ticket).unwrap()];
        let was_there = self.seen.known_when_asked.get(&ticket) == Some(&true);
        let row = self.truth.table().get(&asked.id);
        let is_there = row.is_some_and(|row| row.image.state != State::Absent);
        if was_there && is_there && !self.seen.answers_noted(scenario, ticket) {
            self.seen.fail(NOT_FOUND);
        }
    }

    fn observe_verdict(&mut self, ticket: Ticket, verdict: Verdict) {
        let offset = usize::try_from(ticket - 1000).unwrap();
        let taken = &self.intake[offset];
        let row = self.truth.table().get(&taken.submit.id);
        match verdict {
            Verdict::Accepted | Verdict::Duplicate => {
                self.seen.answered_202.insert(offset);
                let is_same = row.is_some_and(|row| row.image.digest == taken.submit.digest);
                if !is_same {
                    self.seen.fail(OTHER_ACCEPTED);
                }
            }
            Verdict::Conflict => {
                let accepted = self.intake.iter().filter(|other| {
                    row.as_ref()
                        .is_some_and(|row| row.image.digest == other.submit.digest)
                });
                if accepted
                    .into_iter()
                    .any(|other| other.request == taken.request)
                {
                    self.seen.fail(SAME_REFUSED);
                }
            }
            Verdict::TooOld => {}
        }
    }

    pub(super) fn observe_intake_done(&mut self, offset: u64) {
        let offset = usize::try_from(offset).unwrap();
        let taken = &self.intake[offset];
        if !self.seen.accepted.contains(&taken.submit.id) {
            self.seen.fail(SETTLED_WITHOUT_ROW);
            return;
        }
        let row = self.truth.table().get(&taken.submit.id);
        let is_other = row.is_some_and(|row| row.image.digest != taken.submit.digest);
        if self.seen.answered_202.contains(&offset) && is_other {
            self.seen.fail(OTHER_ACCEPTED);
        }
    }

    pub(super) fn observe_landed(
        &mut self,
        before: &Shard<Memory>,
        bytes: &Bytes,
        applied: &Applied,
    ) {
        let Ok(record) = Record::decode(bytes) else {
            return;
        };
        let (epoch, reign) = match &record {
            Record::Owner(owner) => (owner.epoch, owner.reign),
            Record::Fact(fact) => (fact.epoch, fact.reign),
        };
        if matches!(applied, Applied::Void(_)) {
            return;
        }
        let known = *self.seen.reigns.entry(epoch).or_insert(reign);
        if known != reign || epoch < self.seen.epoch {
            self.seen.fail(DOUBLE_OWNER);
        }
        self.seen.epoch = epoch;
        let (Record::Fact(fact), Some(counted)) = (&record, counted(applied)) else {
            return;
        };
        for (row, counts) in fact.rows.iter().zip(counted) {
            match row {
                Row::Message(row) if *counts => self.observe_row(before, &row.id, &row.change),
                Row::Open(_) if *counts => self.seen.opens.push(self.log.len() as u64 - 1),
                _ => {}
            }
        }
    }

    fn observe_row(&mut self, before: &Shard<Memory>, id: &MessageId, change: &Change) {
        match change {
            Change::Accepted { .. } => {
                let is_first = self.seen.accepted.insert(id.clone());
                if !is_first {
                    self.seen.fail(REVIVED);
                }
            }
            Change::Begun {
                attempt,
                worker,
                at,
            } => {
                let key = (id.clone(), *attempt, *worker);
                self.seen.begun.insert(key, *at);
            }
            Change::Withdrawn { .. } => {
                self.seen.granted.insert((id.clone(), None));
            }
            Change::Extended { due, .. } => {
                self.seen.granted.insert((id.clone(), Some(*due)));
            }
            Change::Carried { .. } if before.table().get(id).is_none() => {
                self.seen.fail(REVIVED);
            }
            _ => {}
        }
        // A carried row says what is known already.
        if let (Change::Carried { .. }, Some(old), Some(new)) =
            (change, before.table().get(id), self.truth.table().get(id))
            && old.image != new.image
        {
            self.seen.fail(UNDONE);
        }
        let state =
            |shard: &Shard<Memory>| shard.table().get(id).map(|row| row.image.state.clone());
        let (Some(before), Some(after)) = (state(before), state(&self.truth)) else {
            return;
        };
        let is_same = std::mem::discriminant(&before) == std::mem::discriminant(&after);
        let is_onward = matches!(
            (&before, &after),
            (State::Dead { .. }, State::Replayed { .. }) | (_, State::Purged { .. })
        );
        if before.ended().is_some() && !is_same && !is_onward {
            self.seen.fail(TWO_ENDINGS);
        }
    }
}

impl Seen {
    /// Whether the answer to this key was given before the message was there: then it stays.
    fn answers_noted(&self, scenario: &Scenario, ticket: Ticket) -> bool {
        let key = scenario.commands[usize::try_from(ticket).unwrap()].key;
        let unknown = Answer::Refused(Refusal::Unknown);
        key.is_some() && self.answers.get(&ticket) == Some(&unknown)
    }
}
