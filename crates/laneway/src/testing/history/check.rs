//! The judge: one pass over the records in their order, then a look at what was never finished.

use foldhash::HashMap;

use super::event::{Attempt, Event, MessageId, Outcome, Record};
use super::index::Index;
use super::rules::{Once, Rules};
use super::verdict::{Kind, TOLD, Verdict, Violation};

/// Records shown before and after the one at fault.
const CONTEXT: usize = 5;

pub(super) fn judge(rules: &Rules, records: &[Record]) -> Verdict {
    let mut judge = Judge::new(rules, records);
    for (at, record) in records.iter().enumerate() {
        judge.take(at, &record.event);
    }
    judge.look_back();
    judge.verdict
}

/// Where and by whom a try was ended.
#[derive(Debug, Clone, Copy)]
struct End {
    at: usize,
    owner: u64,
    outcome: Outcome,
}

/// How far a message has come.
#[derive(Debug, Clone, Default)]
struct Progress {
    starts: u32,
    /// Handlers that run it now.
    running: u32,
    /// The last try that failed or was abandoned.
    setback: Option<End>,
    /// The last end that was meant to be the last.
    finished: Option<End>,
    settled: bool,
    outstanding: bool,
}

#[derive(Debug, Default)]
struct KeyState {
    /// Messages that come to their end, by sequence.
    in_order: Vec<usize>,
    /// All of `in_order` before this one are finished.
    unfinished_from: usize,
    /// Finished ones that run again, rightly, and are not finished again yet.
    reopened: Vec<usize>,
    /// The highest sequence started since the last crash of an owner of this key.
    highest: Option<Highest>,
    epoch: u64,
    outstanding: usize,
}

#[derive(Debug, Clone, Copy)]
struct Highest {
    seq: u64,
    owner: u64,
    at: usize,
}

#[derive(Debug)]
struct Running {
    message: usize,
    owner: u64,
}

struct Judge<'a> {
    rules: &'a Rules,
    records: &'a [Record],
    index: Index,
    progress: Vec<Progress>,
    keys: Vec<KeyState>,
    /// What runs now, by lane.
    lanes: HashMap<u64, Vec<Running>>,
    /// Where each owner crashed last.
    crashes: HashMap<u64, usize>,
    running: usize,
    outstanding: usize,
    verdict: Verdict,
}

impl<'a> Judge<'a> {
    fn new(rules: &'a Rules, records: &'a [Record]) -> Self {
        let index = Index::new(records);
        // What never ends is lost, once, and not overtaken by all that follow it. Only where more may
        // come is it too early to say so.
        let by_key = index
            .by_key(|facts| facts.submitted && (facts.finishes || facts.starts && !rules.drained));
        let mut verdict = Verdict::default();
        verdict.totals.records = records.len() as u64;
        verdict.totals.messages = index.messages.len() as u64;
        verdict.totals.keys = index.keys as u64;
        Self {
            rules,
            records,
            progress: vec![Progress::default(); index.messages.len()],
            keys: by_key
                .into_iter()
                .map(|in_order| KeyState {
                    in_order,
                    ..KeyState::default()
                })
                .collect(),
            index,
            lanes: HashMap::default(),
            crashes: HashMap::default(),
            running: 0,
            outstanding: 0,
            verdict,
        }
    }

    fn take(&mut self, at: usize, event: &Event) {
        if let Event::Crashed { owner } = event {
            return self.crash(at, *owner);
        }
        let Some(id) = self.index.message_of[at] else {
            return;
        };
        match event {
            Event::Acked(_) => self.ack(at, id),
            Event::Started(message, attempt) => self.start(at, id, message, *attempt),
            Event::Finished {
                message,
                owner,
                outcome,
            } => {
                let end = End {
                    at,
                    owner: *owner,
                    outcome: *outcome,
                };
                self.finish(id, message, end);
            }
            Event::Settled(_) => self.settle(at, id),
            // What was submitted or refused is known from the index.
            Event::Submitted(_) | Event::Refused(_) | Event::Crashed { .. } => {}
        }
    }

    fn ack(&mut self, at: usize, id: usize) {
        // What is lost takes no place for ever.
        let lost = self.rules.drained && !self.index.messages[id].finishes;
        let progress = &mut self.progress[id];
        if lost || progress.finished.is_some() || progress.outstanding {
            return;
        }
        progress.outstanding = true;
        self.outstanding += 1;
        let peak = &mut self.verdict.totals.peak_outstanding;
        *peak = (*peak).max(self.outstanding as u64);
        // Told when the bound is crossed, not for every message beyond it.
        if let Some(bound) = self.rules.max_outstanding
            && self.outstanding == bound + 1
        {
            self.report(Kind::BoundExceeded, at, id, || {
                format!("was acked while {bound} were outstanding, which is the bound")
            });
        }
        let key = &mut self.keys[self.index.messages[id].key];
        key.outstanding += 1;
        if let Some(bound) = self.rules.max_outstanding_per_key
            && key.outstanding == bound + 1
        {
            self.report(Kind::BoundExceeded, at, id, || {
                format!("was acked while {bound} of its key were outstanding, which is the bound")
            });
        }
    }

    fn start(&mut self, at: usize, id: usize, message: &MessageId, attempt: Attempt) {
        self.verdict.totals.runs += 1;
        let facts = &self.index.messages[id];
        let refused_for_good = facts.refused && self.rules.once == Once::Exactly;
        if !facts.submitted {
            self.report(Kind::Phantom, at, id, || {
                "ran but was never submitted".into()
            });
        } else if refused_for_good {
            self.report(Kind::Phantom, at, id, || {
                "ran although its submitter was told that it was refused".into()
            });
        } else {
            self.judge_repetition(at, id);
            if self.rules.once != Once::AtMost {
                self.judge_order(at, id, attempt);
            }
        }
        self.progress[id].starts += 1;
        self.enter_lane(at, id, message, attempt.owner);
    }

    /// May it run at all, if it has run before?
    fn judge_repetition(&mut self, at: usize, id: usize) {
        let progress = &self.progress[id];
        let seq = self.index.messages[id].seq;
        let key = self.index.messages[id].key;
        if self.rules.once == Once::AtMost {
            if progress.starts > 0 {
                self.report(Kind::Duplicate, at, id, || {
                    "ran a second time where nothing may run twice".into()
                });
            }
            return;
        }
        let Some(finished) = progress.finished else {
            return;
        };
        if progress.settled {
            self.report(Kind::RunAfterSettled, at, id, || {
                "ran after it was settled".into()
            });
        } else if self.rules.once == Once::AtLeast
            && self.crashed_since(finished.owner, finished.at)
        {
            // A further try at what came again already is a retry, and judged as one.
            if self.keys[key].reopened.contains(&id) {
                return;
            }
            self.verdict.totals.forgiven_duplicates += 1;
            self.keys[key].reopened.push(id);
            if let Some(highest) = self.keys[key].highest
                && highest.seq > seq
                && !self.crashed_since(highest.owner, highest.at)
            {
                self.report(Kind::OutOfOrder, at, id, || {
                    format!("came again after a crash, behind sequence {}", highest.seq)
                });
            }
        } else {
            self.report(Kind::Duplicate, at, id, || {
                format!(
                    "ran again after it was {}, with no crash in between",
                    finished.outcome
                )
            });
        }
    }

    /// Is it its turn?
    fn judge_order(&mut self, at: usize, id: usize, attempt: Attempt) {
        let seq = self.index.messages[id].seq;
        let key = self.index.messages[id].key;
        if let Some(earlier) = self.earliest_unfinished(key)
            && self.index.messages[earlier].seq < seq
            // Two at a time is told as an overlap.
            && self.progress[earlier].running == 0
        {
            let before = self.index.messages[earlier].seq;
            match self.progress[earlier].setback {
                Some(end) if !self.crashed_since(end.owner, end.at) => {
                    self.report(Kind::RetriedOutOfOrder, at, id, || {
                        format!("started while sequence {before} waited for its retry")
                    });
                }
                _ => self.report(Kind::OutOfOrder, at, id, || {
                    format!("started before sequence {before} was finished")
                }),
            }
        }
        let state = &self.keys[key];
        if attempt.epoch < state.epoch {
            let epoch = state.epoch;
            self.report(Kind::StaleOwner, at, id, || {
                format!(
                    "started in epoch {} after epoch {epoch} had begun",
                    attempt.epoch
                )
            });
        }
        let fresh = Highest {
            seq,
            owner: attempt.owner,
            at,
        };
        let highest = match self.keys[key].highest {
            Some(old) if old.seq > seq && !self.crashed_since(old.owner, old.at) => old,
            _ => fresh,
        };
        let state = &mut self.keys[key];
        state.highest = Some(highest);
        state.epoch = state.epoch.max(attempt.epoch);
    }

    fn earliest_unfinished(&mut self, key: usize) -> Option<usize> {
        let state = &mut self.keys[key];
        while let Some(id) = state.in_order.get(state.unfinished_from)
            && self.progress[*id].finished.is_some()
        {
            state.unfinished_from += 1;
        }
        let messages = &self.index.messages;
        let first = state.in_order.get(state.unfinished_from);
        state
            .reopened
            .iter()
            .chain(first)
            .copied()
            .min_by_key(|id| messages[*id].seq)
    }

    fn enter_lane(&mut self, at: usize, id: usize, message: &MessageId, owner: u64) {
        let lane = self.lane(id, message);
        let neighbours = self.lanes.entry(lane).or_default();
        let neighbour = neighbours.last().map(|running| running.message);
        neighbours.push(Running { message: id, owner });
        if let Some(neighbour) = neighbour
            && self.rules.once != Once::AtMost
        {
            let other = &self.index.messages[neighbour];
            let same_key = other.key == self.index.messages[id].key;
            let seq = other.seq;
            self.report(Kind::Overlap, at, id, || {
                let whose = if same_key { "its key" } else { "its lane" };
                format!("started while sequence {seq} of {whose} was running")
            });
        }
        self.progress[id].running += 1;
        self.running += 1;
        let peak = &mut self.verdict.totals.peak_running;
        *peak = (*peak).max(self.running as u64);
        if let Some(bound) = self.rules.max_running
            && self.running == bound + 1
        {
            self.report(Kind::BoundExceeded, at, id, || {
                format!("started while {bound} were running, which is the bound")
            });
        }
    }

    fn lane(&self, id: usize, message: &MessageId) -> u64 {
        match &self.rules.lane_of {
            Some(lane_of) => lane_of(&message.key),
            None => self.index.messages[id].key as u64,
        }
    }

    fn finish(&mut self, id: usize, message: &MessageId, end: End) {
        let lane = self.lane(id, message);
        if let Some(neighbours) = self.lanes.get_mut(&lane)
            && let Some(place) = neighbours
                .iter()
                .position(|running| running.message == id && running.owner == end.owner)
        {
            neighbours.swap_remove(place);
            self.progress[id].running -= 1;
            self.running -= 1;
        }
        let totals = &mut self.verdict.totals;
        match end.outcome {
            Outcome::Failed | Outcome::Abandoned => totals.failed += 1,
            Outcome::DeadLettered => totals.dead_lettered += 1,
            Outcome::Parked => totals.parked += 1,
            Outcome::Done => {}
        }
        let progress = &mut self.progress[id];
        if !end.outcome.is_final() {
            progress.setback = Some(end);
            return;
        }
        progress.finished = Some(end);
        let key = &mut self.keys[self.index.messages[id].key];
        key.reopened.retain(|reopened| *reopened != id);
        if std::mem::take(&mut progress.outstanding) {
            self.outstanding -= 1;
            key.outstanding -= 1;
        }
    }

    fn settle(&mut self, at: usize, id: usize) {
        let progress = &mut self.progress[id];
        progress.settled = true;
        // Where nothing may run twice, settling comes first.
        if progress.finished.is_none() && self.rules.once != Once::AtMost {
            self.report(Kind::SettledEarly, at, id, || {
                "was settled before it was finished".into()
            });
        }
    }

    fn crash(&mut self, at: usize, owner: u64) {
        self.verdict.totals.crashes += 1;
        self.crashes.insert(owner, at);
        for running in self.lanes.values_mut() {
            running.retain(|run| {
                let gone = run.owner == owner;
                if gone {
                    self.progress[run.message].running -= 1;
                    self.running -= 1;
                }
                !gone
            });
        }
        // Nothing to keep for lanes at rest, and the next crash has less to look at.
        self.lanes.retain(|_, running| !running.is_empty());
    }

    fn crashed_since(&self, owner: u64, at: usize) -> bool {
        self.crashes.get(&owner).is_some_and(|crash| *crash > at)
    }

    /// What is missing is only known at the end.
    fn look_back(&mut self) {
        for id in 0..self.progress.len() {
            let facts = &self.index.messages[id];
            if !facts.submitted || self.progress[id].finished.is_some() {
                continue;
            }
            self.verdict.totals.unfinished += 1;
            if self.rules.once == Once::AtMost {
                continue;
            }
            let at = facts.last_record;
            let begun = facts.starts;
            let how = if begun {
                "ran but was never finished"
            } else {
                "never ran"
            };
            let owed = begun || self.rules.once == Once::Exactly && !facts.refused;
            if !self.rules.drained {
                let overtaken_by = self.keys[facts.key]
                    .highest
                    .filter(|highest| highest.seq > facts.seq);
                // What has begun was judged when the later one started.
                if let Some(later) = overtaken_by
                    && facts.acked
                    && !begun
                {
                    self.report(Kind::OutOfOrder, at, id, || {
                        format!("was acked and never ran, but sequence {} did", later.seq)
                    });
                }
            } else if facts.acked {
                self.report(Kind::AckedLost, at, id, || format!("was acked and {how}"));
            } else if owed {
                self.report(Kind::NeverFinished, at, id, || {
                    format!("was submitted and {how}")
                });
            }
        }
    }

    /// Counts a violation, and tells it in full if it is one of the first of its kind.
    fn report(&mut self, kind: Kind, at: usize, id: usize, what: impl FnOnce() -> String) {
        let count = &mut self.verdict.counts[kind as usize];
        *count += 1;
        if *count > TOLD {
            return;
        }
        let Some(message) = self.records[at].event.message().cloned() else {
            return;
        };
        self.verdict.violations.push(Violation {
            kind,
            message,
            what: what(),
            context: self.context(at, self.index.messages[id].key),
        });
    }

    /// The records of a key, and the crashes, around one of them.
    fn context(&self, at: usize, key: usize) -> Vec<String> {
        let told = |other: &usize| {
            self.index.message_of[*other].is_none_or(|id| self.index.messages[id].key == key)
        };
        let mut shown: Vec<_> = (0..at).rev().filter(told).take(CONTEXT).collect();
        shown.reverse();
        shown.push(at);
        shown.extend((at + 1..self.records.len()).filter(told).take(CONTEXT));
        shown
            .into_iter()
            .map(|other| {
                let mark = if other == at { '>' } else { ' ' };
                format!("{mark} {}", self.records[other])
            })
            .collect()
    }
}
