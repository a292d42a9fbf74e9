//! An engine over a log, stepped by a seed: publishes, starts, finishes, settles, crashes.

use std::collections::{HashSet, VecDeque};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::super::event::{Attempt, Event, MessageId, Outcome, Record};
use super::{OUTSTANDING, WORKERS};

const KEYS: usize = 5;
const STEPS: usize = 400;
const ATTEMPTS: u32 = 3;

/// What is simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// The engine in memory: bounded, refuses when full, never crashes.
    Memory,
    /// A durable log whose owners crash and are followed by others.
    Log,
    /// A plain topic: settled first, never retried, lost in a crash.
    Plain,
}

/// What can go wrong, once in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bug {
    DropsMessage,
    DropsUnacked,
    LosesLast,
    NewestFirst,
    RetriesNext,
    RetriesAtTheEnd,
    GivesUpSilently,
    TwoOfOneKey,
    RunsTwice,
    Invents,
    RunsRefused,
    MixesKeysUp,
    OneWorkerTooMany,
    TakesTooMuch,
    AcksBeforeDurable,
    SettlesUnfinished,
    SkipsUnfinishedAfterCrash,
    OvertakesAfterCrash,
    ReplaysOutOfOrder,
    ReplaysSettled,
    OldOwnerStarts,
    OldOwnerGoesOn,
}

#[derive(Debug, Clone, Copy)]
struct Job {
    seq: u64,
    attempt: u32,
}

impl Job {
    fn first(seq: u64) -> Self {
        Self { seq, attempt: 1 }
    }
}

#[derive(Debug, Clone, Copy)]
struct Running {
    key: usize,
    job: Job,
    owner: u64,
}

#[derive(Debug, Default)]
struct Lane {
    submitted: u64,
    /// What survives a crash, in order.
    stored: Vec<u64>,
    /// How many of `stored` are settled: survives too.
    settled: usize,
    /// Finished, in the memory of the owner.
    finished: HashSet<u64>,
    queue: VecDeque<Job>,
    /// The epoch of the last start.
    epoch: u64,
}

pub(super) struct Simulation {
    mode: Mode,
    bug: Option<Bug>,
    /// Whether the bug has struck. From then on nothing crashes, so that it can't be undone.
    pub(super) planted: bool,
    pub(super) records: Vec<Record>,
    rng: SmallRng,
    lanes: Vec<Lane>,
    running: Vec<Running>,
    /// Owner and epoch at once: each owner has the epoch of its number.
    owner: u64,
}

impl Simulation {
    pub(super) fn run(mode: Mode, bug: Option<Bug>, seed: u64) -> Self {
        let mut simulation = Self {
            mode,
            bug,
            planted: false,
            records: Vec::new(),
            rng: SmallRng::seed_from_u64(seed),
            lanes: (0..KEYS).map(|_| Lane::default()).collect(),
            running: Vec::new(),
            owner: 1,
        };
        for _ in 0..STEPS {
            simulation.step();
        }
        simulation.lose_last();
        simulation.drain();
        simulation
    }

    fn step(&mut self) {
        let key = self.rng.random_range(0..KEYS);
        match self.rng.random_range(0..100) {
            0..25 => self.publish(key),
            25..60 => self.start(key),
            60..80 => self.finish(),
            80..88 => self.settle(key),
            88..90 => self.crash(),
            _ => self.misbehave(key),
        }
    }

    fn drain(&mut self) {
        while self.lanes.iter().any(|lane| !lane.queue.is_empty()) || !self.running.is_empty() {
            let key = self.rng.random_range(0..KEYS);
            self.start(key);
            self.finish();
        }
        (0..KEYS).for_each(|key| self.settle(key));
    }

    fn record(&mut self, event: Event) {
        let at = self.records.len() as u64;
        self.records.push(Record { at, event });
    }

    fn id(key: usize, seq: u64) -> MessageId {
        MessageId::new(format!("key-{key}"), seq)
    }

    /// Whether the bug strikes here and now. Ask last, when all else fits.
    fn strikes(&mut self, bug: Bug) -> bool {
        let now = self.bug == Some(bug) && !self.planted && self.rng.random_bool(0.3);
        self.planted |= now;
        now
    }

    fn publish(&mut self, key: usize) {
        let lane = &mut self.lanes[key];
        lane.submitted += 1;
        let seq = lane.submitted;
        self.record(Event::Submitted(Self::id(key, seq)));
        let outstanding = self
            .lanes
            .iter()
            .map(|lane| lane.queue.len())
            .sum::<usize>()
            + self.running.len();
        let full = self.mode == Mode::Memory && outstanding >= OUTSTANDING;
        if full && !self.strikes(Bug::TakesTooMuch) {
            self.record(Event::Refused(Self::id(key, seq)));
            if self.strikes(Bug::RunsRefused) {
                self.lanes[key].queue.push_back(Job::first(seq));
            }
            return;
        }
        if self.strikes(Bug::DropsUnacked) {
            return;
        }
        if !self.strikes(Bug::DropsMessage) {
            self.lanes[key].stored.push(seq);
            self.lanes[key].queue.push_back(Job::first(seq));
        }
        // A publisher that died here has no ack, and its message may run all the same.
        if self.mode != Mode::Log || self.rng.random_bool(0.95) {
            self.record(Event::Acked(Self::id(key, seq)));
        }
        let queue = &self.lanes[key].queue;
        if queue.len() > 1 && queue[0].attempt == 1 && self.strikes(Bug::NewestFirst) {
            let newest = self.lanes[key].queue.pop_back().expect("two are queued");
            self.lanes[key].queue.push_front(newest);
        }
    }

    fn idle(&self, key: usize) -> bool {
        self.running.iter().all(|run| run.key != key)
    }

    fn start(&mut self, key: usize) {
        // Plain messages have no order to keep.
        let free = self.mode == Mode::Plain || self.idle(key);
        if free
            && self.running.len() < WORKERS
            && let Some(job) = self.lanes[key].queue.pop_front()
        {
            self.begin(key, job, self.owner);
        }
    }

    fn begin(&mut self, key: usize, job: Job, owner: u64) {
        if self.mode == Mode::Plain {
            self.record(Event::Settled(Self::id(key, job.seq)));
        }
        let attempt = Attempt {
            number: job.attempt,
            owner,
            epoch: owner,
        };
        self.record(Event::Started(Self::id(key, job.seq), attempt));
        self.lanes[key].epoch = owner;
        self.running.push(Running { key, job, owner });
    }

    fn finish(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let which = self.rng.random_range(0..self.running.len());
        let run = self.running[which];
        self.running.swap_remove(which);
        let Running { key, job, owner } = run;
        let message = Self::id(key, job.seq);
        let end = |outcome| Event::Finished {
            message: message.clone(),
            owner,
            outcome,
        };
        if self.rng.random_bool(0.75) || self.must_succeed() {
            self.record(end(Outcome::Done));
            self.lanes[key].finished.insert(job.seq);
            if self.strikes(Bug::RunsTwice) {
                self.begin(key, job, owner);
            }
            return;
        }
        let broken = if self.rng.random_bool(0.2) {
            Outcome::Abandoned
        } else {
            Outcome::Failed
        };
        self.record(end(broken));
        if self.mode == Mode::Plain {
            if self.strikes(Bug::RetriesNext) {
                self.lanes[key].queue.push_front(job);
            }
            return;
        }
        if job.attempt < ATTEMPTS {
            self.retry(key, job);
        } else if !self.owed(key, job.seq) || !self.strikes(Bug::GivesUpSilently) {
            let last = if self.rng.random_bool(0.5) {
                Outcome::DeadLettered
            } else {
                Outcome::Parked
            };
            self.record(end(last));
            self.lanes[key].finished.insert(job.seq);
        }
    }

    /// Failures after these bugs would add wrongs of other kinds.
    fn must_succeed(&self) -> bool {
        let alone = [Bug::RunsTwice, Bug::TwoOfOneKey, Bug::OldOwnerGoesOn];
        self.planted && self.bug.is_some_and(|bug| alone.contains(&bug))
    }

    fn retry(&mut self, key: usize, job: Job) {
        let again = Job {
            attempt: job.attempt + 1,
            ..job
        };
        let waiting = !self.lanes[key].queue.is_empty();
        if waiting && self.strikes(Bug::RetriesNext) {
            self.lanes[key].queue.insert(1, again);
        } else if waiting && self.strikes(Bug::RetriesAtTheEnd) {
            self.lanes[key].queue.push_back(again);
        } else {
            self.lanes[key].queue.push_front(again);
        }
    }

    fn settle(&mut self, key: usize) {
        if self.mode != Mode::Log {
            return;
        }
        let lane = &mut self.lanes[key];
        while let Some(seq) = lane.stored.get(lane.settled)
            && lane.finished.contains(seq)
        {
            let event = Event::Settled(Self::id(key, *seq));
            lane.settled += 1;
            let at = self.records.len() as u64;
            self.records.push(Record { at, event });
        }
    }

    /// All that the owner had in memory is gone; the next one goes on from what was settled.
    fn crash(&mut self) {
        if self.mode == Mode::Memory || self.planted {
            return;
        }
        if self.mode == Mode::Log && self.go_on_after_takeover() {
            return;
        }
        let cut_short = std::mem::take(&mut self.running);
        self.record(Event::Crashed { owner: self.owner });
        self.owner += 1;
        for key in 0..KEYS {
            let lane = &mut self.lanes[key];
            lane.queue.clear();
            if self.mode == Mode::Plain {
                continue;
            }
            let finished = std::mem::take(&mut lane.finished);
            lane.queue.extend(
                lane.stored[lane.settled..]
                    .iter()
                    .map(|seq| Job::first(*seq)),
            );
            let was_running = cut_short.iter().any(|run| run.key == key);
            self.recover_badly(key, &finished, was_running);
        }
    }

    fn recover_badly(&mut self, key: usize, finished: &HashSet<u64>, was_running: bool) {
        let lane = &self.lanes[key];
        let first_unfinished = lane
            .queue
            .iter()
            .position(|job| !finished.contains(&job.seq));
        let last = lane.queue.back().map(|job| job.seq);
        if let Some(last) = last
            && !finished.contains(&last)
            && self.owed(key, last)
            && self.strikes(Bug::AcksBeforeDurable)
        {
            self.lanes[key].queue.pop_back();
            self.lanes[key].stored.pop();
        } else if let Some(first) = first_unfinished
            && was_running
            && self.owed(key, self.lanes[key].queue[first].seq)
            && self.strikes(Bug::SkipsUnfinishedAfterCrash)
        {
            self.lanes[key].queue.remove(first);
        } else if first_unfinished == Some(0)
            && self.lanes[key].queue.len() > 1
            && self.strikes(Bug::OvertakesAfterCrash)
            || first_unfinished > Some(0) && self.strikes(Bug::ReplaysOutOfOrder)
        {
            self.lanes[key].queue.swap(0, 1);
        } else if let Some(before) = self.lanes[key].settled.checked_sub(1)
            && self.strikes(Bug::ReplaysSettled)
        {
            let settled = self.lanes[key].stored[before];
            self.lanes[key].queue.push_front(Job::first(settled));
        }
    }

    /// A successor begins while the old owner, who is not dead, still runs a message.
    fn go_on_after_takeover(&mut self) -> bool {
        if self.running.len() != 1 || !self.strikes(Bug::OldOwnerGoesOn) {
            return false;
        }
        (0..KEYS).for_each(|key| self.settle(key));
        self.owner += 1;
        let Running { key, job, .. } = self.running[0];
        self.lanes[key].queue.push_front(Job::first(job.seq));
        self.begin_beside(key);
        true
    }

    fn begin_beside(&mut self, key: usize) {
        if let Some(job) = self.lanes[key].queue.pop_front() {
            self.begin(key, job, self.owner);
        }
    }

    /// Whether losing it breaks a promise: acked, and never finished by any owner.
    fn owed(&self, key: usize, seq: u64) -> bool {
        let message = Self::id(key, seq);
        let has = |wanted: fn(&Event) -> bool| {
            self.records
                .iter()
                .any(|record| record.event.message() == Some(&message) && wanted(&record.event))
        };
        has(|event| matches!(event, Event::Acked(_)))
            && !has(|event| matches!(event, Event::Finished { outcome, .. } if outcome.is_final()))
    }

    /// Bugs that wait for no occasion but the right state.
    fn misbehave(&mut self, key: usize) {
        let queued = !self.lanes[key].queue.is_empty();
        let idle = self.idle(key);
        let room = self.running.len() < WORKERS;
        if queued
            && (!idle && room && self.strikes(Bug::TwoOfOneKey)
                || idle && !room && self.strikes(Bug::OneWorkerTooMany))
        {
            self.begin_beside(key);
        } else if room && idle && self.strikes(Bug::Invents) {
            let never = self.lanes[key].submitted + 1_000_000;
            self.begin(key, Job::first(never), self.owner);
        } else if queued && self.lanes[key].queue[0].attempt == 1 && self.strikes(Bug::MixesKeysUp)
        {
            let job = self.lanes[key].queue.pop_front().expect("one is queued");
            let stranger = Job::first(job.seq + 1_000_000);
            self.lanes[(key + 1) % KEYS].queue.push_back(stranger);
        } else if self.owner > 1
            && idle
            && room
            && queued
            && self.lanes[key].epoch == self.owner
            && self.strikes(Bug::OldOwnerStarts)
        {
            let job = self.lanes[key].queue.pop_front().expect("one is queued");
            self.begin(key, job, self.owner - 1);
        } else if let Some(run) = self.running.iter().find(|run| run.key == key)
            && self.mode == Mode::Log
        {
            let message = Self::id(key, run.job.seq);
            if self.owed(key, message.seq) && self.strikes(Bug::SettlesUnfinished) {
                self.record(Event::Settled(message));
            }
        }
    }

    fn lose_last(&mut self) {
        if let Some(key) = (0..KEYS).find(|key| {
            self.lanes[*key]
                .queue
                .back()
                .is_some_and(|job| job.attempt == 1)
        }) && self.strikes(Bug::LosesLast)
        {
            self.lanes[key].queue.pop_back();
        }
    }
}
