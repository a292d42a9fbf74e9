use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use laneway_delay::{MessageId, Timestamp};

use super::observe::Seen;
use super::record::Recorded;
use super::scenario::Scenario;
use crate::apply::{Applied, Identity, Memory, Shard, rebuild_with};
use crate::owner::{Decision, Go, Settings, ShardOwner, Standing, Submit};
use crate::record::{Instance, Reign};
use crate::worker::Attempts;

pub(super) const HOUR: Duration = Duration::from_hours(1);

pub(super) fn identity() -> Identity {
    Identity {
        cluster: "model".to_owned(),
        topic: "log".to_owned(),
        shard: 0,
        shards: 1,
    }
}

pub(super) fn settings() -> Settings {
    Settings {
        keep_offsets: 0,
        in_flight: 2,
        ..Settings::default()
    }
}

/// When a run begins.
pub(super) fn start() -> Timestamp {
    Timestamp::from_millis(0) + Duration::from_hours(240)
}

pub(super) fn instance(worker: usize, life: u8) -> Instance {
    let mut bytes = [0; 16];
    bytes[0] = u8::try_from(worker).unwrap() + 1;
    bytes[1] = life;
    Instance(bytes)
}

/// Which worker is the process that has an attempt, or its successor.
pub(super) fn worker_of(instance: Instance) -> usize {
    usize::from(instance.0[0] - 1)
}

/// The state of everything.
#[derive(Clone, Debug)]
pub(super) struct World {
    /// All records, also those that were trimmed.
    pub(super) log: Arc<Vec<Bytes>>,
    /// The offset of the first record that is left.
    pub(super) trimmed: u64,
    /// What the whole log means.
    pub(super) truth: Arc<Shard<Memory>>,
    /// Appends that may land, once or twice or never.
    pub(super) flight: BTreeSet<(usize, Bytes)>,
    pub(super) centers: [Center; 2],
    pub(super) workers: [Worker; 2],
    /// Gos on their way.
    pub(super) gos: BTreeSet<Go>,
    pub(super) intake: Vec<Taken>,
    pub(super) now: Timestamp,
    pub(super) used: Used,
    pub(super) seen: Seen,
    /// What the checker is given. Not part of the state: two ways to one state differ in it.
    pub(super) record: Option<Box<Recorded>>,
}

#[derive(Clone, Debug)]
pub(super) struct Center {
    pub(super) shard: Arc<Shard<Memory>>,
    pub(super) owner: ShardOwner,
    /// Its view has lost a row.
    pub(super) is_damaged: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Worker {
    pub(super) attempts: Attempts,
    pub(super) life: u8,
}

/// A record of the intake.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Taken {
    pub(super) submit: Submit,
    /// Which request it was, as the client wrote it.
    pub(super) request: u8,
    /// The client waits for the verdict.
    pub(super) waits: bool,
    pub(super) is_done: bool,
}

/// How much of its bounds a run has used up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Used {
    pub(super) announced: u8,
    pub(super) crashes: u8,
    pub(super) resends: u8,
    pub(super) twice: u8,
    pub(super) begun: u8,
    pub(super) asked: u8,
    pub(super) passed: u8,
    pub(super) opened: u8,
    pub(super) retaken: u8,
    pub(super) sent: BTreeMap<usize, u8>,
}

impl PartialEq for Center {
    fn eq(&self, other: &Self) -> bool {
        self.shard.head() == other.shard.head()
            && self.owner == other.owner
            && self.is_damaged == other.is_damaged
    }
}

impl Hash for Center {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // What was read decides all the rest of a shard.
        let head = self.shard.head();
        (head.next, head.chain, head.digest, self.is_damaged).hash(state);
        self.owner.hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.truth.head() == other.truth.head()
            && self.trimmed == other.trimmed
            && self.flight == other.flight
            && self.centers == other.centers
            && self.workers == other.workers
            && self.gos == other.gos
            && self.intake == other.intake
            && self.now == other.now
            && self.used == other.used
            && self.seen == other.seen
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let head = self.truth.head();
        (head.next, head.chain, head.digest, self.trimmed, self.now).hash(state);
        self.flight.hash(state);
        self.centers.hash(state);
        self.workers.hash(state);
        self.gos.hash(state);
        self.intake.hash(state);
        self.used.hash(state);
        self.seen.hash(state);
    }
}

impl World {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let rules = scenario.rules;
        let shard = Arc::new(Shard::with_rules(identity(), Memory::default(), rules));
        let mut owner = ShardOwner::with_rules(settings(), rules);
        owner.assign();
        let center = Center {
            shard: shard.clone(),
            owner,
            is_damaged: false,
        };
        let worker = |number| Worker {
            attempts: Attempts::with_rules(instance(number, 0), rules),
            life: 0,
        };
        Self {
            log: Arc::new(Vec::new()),
            trimmed: 0,
            truth: shard,
            flight: BTreeSet::new(),
            centers: [center.clone(), center],
            workers: [worker(0), worker(1)],
            gos: BTreeSet::new(),
            intake: Vec::new(),
            now: start(),
            used: Used::default(),
            seen: Seen::default(),
            record: None,
        }
    }

    pub(super) fn owns(&self, center: usize) -> Option<u64> {
        match self.centers[center].owner.standing() {
            Standing::Owning { epoch, .. } => Some(epoch),
            _ => None,
        }
    }

    /// Runs something on the owner's rules of a center, sends what it queued, and does what it decided.
    pub(super) fn on_owner(
        &mut self,
        scenario: &Scenario,
        center: usize,
        run: impl FnOnce(&mut ShardOwner, &Shard<Memory>) -> Vec<Decision>,
    ) {
        let shard = self.centers[center].shard.clone();
        let owner = &mut self.centers[center].owner;
        let mut decisions = run(owner, &shard);
        decisions.extend(owner.flush(&shard));
        self.perform(scenario, center, decisions);
    }

    fn perform(&mut self, scenario: &Scenario, center: usize, decisions: Vec<Decision>) {
        for decision in decisions {
            match decision {
                Decision::Append(bytes) => {
                    self.flight.insert((center, bytes));
                }
                Decision::Go(go) => {
                    self.gos.insert(go);
                }
                Decision::Reply { ticket, reply } => {
                    self.record_reply(scenario, center, ticket, &reply);
                    self.observe_reply(scenario, ticket, &reply);
                }
                Decision::IntakeDone { offset } => {
                    self.intake[usize::try_from(offset).unwrap()].is_done = true;
                    self.observe_intake_done(offset);
                }
                Decision::IntakeDead { offset } => {
                    let offset = usize::try_from(offset).unwrap();
                    self.intake[offset].is_done = true;
                    let id = self.intake[offset].submit.id.clone();
                    self.record_dead_letter(&id);
                }
                Decision::Logged {
                    worker,
                    id,
                    attempt,
                } => {
                    for node in &mut self.workers {
                        if node.attempts.instance() == worker {
                            node.attempts.logged(&id, attempt);
                        }
                    }
                }
                Decision::Trim { before } => self.trimmed = self.trimmed.max(before),
                Decision::AnnounceAgain | Decision::Verify => {}
            }
        }
    }

    pub(super) fn announce(&mut self, scenario: &Scenario, center: usize) {
        while self.read(scenario, center) {}
        // A view is checked when it is opened, and what it ends with before an announcement.
        let is_good = self.centers[center].shard.is_consistent();
        if !is_good && scenario.rules.holds(crate::rules::Rule::Chains) {
            self.rebuild_view(scenario, center);
        }
        self.used.announced += 1;
        let mut reign = [0; 16];
        reign[0] = self.used.announced;
        let last = self.log.last().cloned();
        self.on_owner(scenario, center, |owner, shard| {
            let verified = shard.verify(last.as_ref()).expect("the end of the log");
            owner.announce(shard, verified, Reign(reign))
        });
    }

    /// An append lands at the end of the log.
    pub(super) fn land(&mut self, bytes: &Bytes) {
        let offset = self.log.len() as u64;
        let before = self.truth.clone();
        let truth = Arc::make_mut(&mut self.truth);
        let applied = truth.apply(offset, bytes).expect("no unknown records");
        Arc::make_mut(&mut self.log).push(bytes.clone());
        self.record_landed(offset, bytes);
        self.observe_landed(&before, bytes, &applied);
    }

    /// A center reads the next record. `false`: there is none.
    pub(super) fn read(&mut self, scenario: &Scenario, center: usize) -> bool {
        let next = self.centers[center].shard.head().next;
        let Some(bytes) = self.log.get(usize::try_from(next).unwrap()).cloned() else {
            return false;
        };
        let shard = Arc::make_mut(&mut self.centers[center].shard);
        let Ok(applied) = shard.apply(next, &bytes) else {
            return false;
        };
        if !scenario.rules.holds(crate::rules::Rule::NoClock) && center == 1 {
            forget_by_clock(shard);
        }
        let now = self.now;
        self.on_owner(scenario, center, |owner, shard| {
            owner.read(shard, &bytes, &applied, now)
        });
        true
    }

    /// A center that has lost its memory: its view is as it was.
    pub(super) fn crash_center(&mut self, scenario: &Scenario, center: usize) {
        let mut owner = ShardOwner::with_rules(settings(), scenario.rules);
        owner.assign();
        self.centers[center].owner = owner;
    }

    /// A view that is set aside, and built again from what is left of the log.
    pub(super) fn rebuild_view(&mut self, scenario: &Scenario, center: usize) {
        let records = self.left(self.trimmed);
        let is_whole = self.trimmed == 0;
        let shard = rebuild_with(
            scenario.rules,
            &identity(),
            is_whole,
            &records,
            Memory::default,
        );
        let center = &mut self.centers[center];
        center.shard = Arc::new(shard.expect("a log that can be read"));
        center.is_damaged = false;
    }

    pub(super) fn crash_worker(&mut self, scenario: &Scenario, worker: usize) {
        let node = &mut self.workers[worker];
        node.life += 1;
        let instance = instance(worker, node.life);
        node.attempts = Attempts::with_rules(instance, scenario.rules);
    }

    /// The records that are left.
    pub(super) fn left(&self, from: u64) -> Vec<(u64, Bytes)> {
        let numbered = self.log.iter().enumerate();
        let numbered = numbered.map(|(offset, bytes)| (offset as u64, bytes.clone()));
        numbered.filter(|(offset, _)| *offset >= from).collect()
    }
}

/// What a copy would do whose clock is a day ahead, and that forgets by it.
fn forget_by_clock(shard: &mut Shard<Memory>) {
    use crate::apply::Table;
    let ended = |(_, row): &(&MessageId, &crate::apply::Kept)| row.image.state.ended().is_some();
    let ids: Vec<_> = shard
        .table()
        .iter()
        .filter(ended)
        .map(|(id, _)| id.clone())
        .collect();
    for id in ids {
        shard.table_mut().remove(&id);
    }
}

/// Whether a fact counted in which all rows counted.
pub(super) fn counted(applied: &Applied) -> Option<&[bool]> {
    match applied {
        Applied::Fact { counted } => Some(counted),
        _ => None,
    }
}
