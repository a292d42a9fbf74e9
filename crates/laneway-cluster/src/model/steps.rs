use laneway_delay::MessageId;

use super::scenario::Scenario;
use super::world::{World, instance, worker_of};
use crate::apply::{Kept, Table};
use crate::owner::{Outcome, Request, Standing};
use crate::record::Instance;
use crate::rules::Rule;
use crate::worker::Status;

/// Something that happens. Numbers are those of centers, workers, and places in sets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// A center reads to the end and announces itself.
    Announce(usize),
    /// An append lands.
    Land(usize),
    /// An append lands, and will land again.
    LandTwice(usize),
    /// A center reads the next record.
    Read(usize),
    /// An owner takes a record of the intake.
    Take(usize, usize),
    /// A client sends a command to a center.
    Ask(usize, usize),
    /// An owner begins an attempt with a worker.
    Begin(usize, MessageId, usize),
    /// A go arrives.
    Arrive(usize),
    /// A worker starts an attempt.
    Start(usize, MessageId, u32),
    /// An attempt ends.
    End(usize, MessageId, u32, usize),
    /// A worker tells a center how an attempt ended.
    Report(usize, MessageId, u32, usize),
    /// An owner asks a worker about an attempt.
    Inquire(usize, MessageId, u32),
    /// A center hears that appends have no answer.
    Unknown(usize),
    /// A center crashes, and comes back.
    CrashCenter(usize),
    /// A worker crashes, and comes back as another instance.
    CrashWorker(usize),
    /// An owner goes one step further in trimming.
    Trim(usize),
    /// An owner forgets a message.
    Forget(usize, MessageId),
    /// Thirteen hours pass.
    Pass,
    /// The view of a center loses all its rows.
    Damage(usize),
    /// A center reads to the end.
    Catch(usize),
}

impl World {
    /// What can happen next.
    pub(super) fn steps(&self, scenario: &Scenario, into: &mut Vec<Step>) {
        // A recorded run goes on until the checker sees it, too.
        if self.seen.wrong.is_some() && !scenario.is_recorded {
            return;
        }
        if self.log.len() < scenario.log {
            for place in 0..self.flight.len() {
                into.push(Step::Land(place));
                if self.used.twice < scenario.twice {
                    into.push(Step::LandTwice(place));
                }
            }
        }
        for center in 0..2 {
            self.center_steps(scenario, center, into);
        }
        into.extend((0..self.gos.len()).map(Step::Arrive));
        for worker in 0..2 {
            self.worker_steps(scenario, worker, into);
        }
        if self.used.passed < scenario.passes {
            into.push(Step::Pass);
        }
    }

    fn center_steps(&self, scenario: &Scenario, center: usize, into: &mut Vec<Step>) {
        let node = &self.centers[center];
        if node.owner.standing() != Standing::Following {
            if node.shard.head().next < self.log.len() as u64 {
                into.push(Step::Read(center));
            }
            if self.used.crashes < scenario.crashes {
                into.push(Step::CrashCenter(center));
            }
            if self.used.resends < scenario.resends {
                into.push(Step::Unknown(center));
            }
        } else if self.used.announced < scenario.epochs {
            into.push(Step::Announce(center));
            // A view goes wrong while it is a copy: an owner's own view is checked when it is opened, not later.
            if scenario.damage && !node.is_damaged && center == 1 {
                into.push(Step::Damage(center));
            }
        }
        if self.owns(center).is_none() {
            return;
        }
        for (offset, taken) in self.intake.iter().enumerate() {
            if !taken.is_done || self.used.retaken < scenario.retakes {
                into.push(Step::Take(center, offset));
            }
        }
        for number in 0..scenario.commands.len() {
            let sent = self.used.sent.get(&number).copied().unwrap_or(0);
            if sent < scenario.sends {
                into.push(Step::Ask(center, number));
            }
        }
        if self.used.opened < scenario.opens || node.shard.head().open.is_some_and(|o| !o.is_closed)
        {
            into.push(Step::Trim(center));
        }
        for (id, row) in node.shard.table().iter() {
            self.row_steps(scenario, center, id, row, into);
        }
    }

    fn row_steps(
        &self,
        scenario: &Scenario,
        center: usize,
        id: &MessageId,
        row: &Kept,
        into: &mut Vec<Step>,
    ) {
        if self.used.begun < scenario.attempts {
            into.extend(
                (0..scenario.workers).map(|worker| Step::Begin(center, id.clone(), worker)),
            );
        }
        if scenario.forgets && row.image.state.ended().is_some() {
            into.push(Step::Forget(center, id.clone()));
        }
        if self.used.asked < scenario.asks {
            for (attempt, doubt) in &row.image.doubts {
                if self.asked(scenario, doubt.worker).is_some() {
                    into.push(Step::Inquire(center, id.clone(), *attempt));
                }
            }
        }
    }

    /// The worker that answers a question about attempts of an instance.
    fn asked(&self, scenario: &Scenario, asked: Instance) -> Option<usize> {
        let worker = worker_of(asked);
        let is_same = self.workers[worker].attempts.instance() == asked;
        (is_same || !scenario.rules.holds(Rule::OwnDisclaims)).then_some(worker)
    }

    fn worker_steps(&self, scenario: &Scenario, worker: usize, into: &mut Vec<Step>) {
        let node = &self.workers[worker];
        for (id, attempt) in node.attempts.held() {
            into.push(Step::Start(worker, id.clone(), *attempt));
        }
        for (id, attempt) in node.attempts.running() {
            for outcome in 0..scenario.outcomes.len() {
                into.push(Step::End(worker, id.clone(), *attempt, outcome));
            }
        }
        for ((id, attempt), _) in node.attempts.outcomes() {
            for center in 0..2 {
                if self.owns(center).is_some() {
                    into.push(Step::Report(worker, id.clone(), *attempt, center));
                }
            }
        }
        if self.used.crashes < scenario.crashes && worker < scenario.workers {
            into.push(Step::CrashWorker(worker));
        }
    }

    /// Takes a step. `false`: it changed nothing.
    #[expect(clippy::too_many_lines, reason = "one arm for each step")]
    pub(super) fn take(&mut self, scenario: &Scenario, step: &Step) -> bool {
        let now = self.now;
        self.tick();
        match step {
            Step::Announce(center) => self.announce(scenario, *center),
            Step::Land(place) => {
                let Some(flying) = self.flight.iter().nth(*place).cloned() else {
                    return false;
                };
                self.flight.remove(&flying);
                self.land(&flying.1);
            }
            Step::LandTwice(place) => {
                let Some((_, bytes)) = self.flight.iter().nth(*place).cloned() else {
                    return false;
                };
                self.used.twice += 1;
                self.land(&bytes);
            }
            Step::Read(center) => return self.read_on(scenario, *center),
            Step::Take(center, offset) => {
                let taken = &self.intake[*offset];
                self.used.retaken += u8::from(taken.is_done);
                let ticket = taken.waits.then_some(1000 + *offset as u64);
                let request = Request::Intake {
                    offset: *offset as u64,
                    submit: taken.submit.clone(),
                    ticket,
                };
                return self.changes(scenario, *center, request);
            }
            Step::Ask(center, number) => {
                let asked = &scenario.commands[*number];
                *self.used.sent.entry(*number).or_default() += 1;
                let ticket = *number as u64;
                self.record_asked(scenario, *center, ticket);
                let id = asked.id.clone();
                let known = self.truth.table().get(&id).is_some();
                self.seen.known_when_asked.insert(ticket, known);
                let request = match &asked.order {
                    None => Request::LookUp { ticket, id },
                    Some(order) => Request::Command {
                        ticket,
                        id,
                        order: order.clone(),
                        key: asked.key,
                    },
                };
                self.on_owner(scenario, *center, |owner, shard| {
                    owner.request(shard, request, now)
                });
            }
            Step::Begin(center, id, worker) => {
                let instance = instance(*worker, self.workers[*worker].life);
                let before = self.centers[*center].owner.clone();
                let row = self.centers[*center].shard.table().get(id);
                // It is due at any time.
                let now = row.map_or(now, |row| row.image.next.max(now));
                self.used.begun += 1;
                self.on_owner(scenario, *center, |owner, shard| {
                    owner.begin(shard, id, instance, now)
                });
                return self.centers[*center].owner != before;
            }
            Step::Arrive(place) => {
                let go = self.gos.iter().nth(*place).cloned().unwrap();
                self.gos.remove(&go);
                let worker = worker_of(go.worker);
                self.workers[worker].attempts.go(&go);
            }
            Step::Start(worker, id, attempt) => {
                let attempts = &mut self.workers[*worker].attempts;
                let instance = attempts.instance();
                let Some(epoch) = attempts.start(id, *attempt) else {
                    return false;
                };
                self.record_start(id, *attempt, epoch);
                self.observe_start(id, *attempt, instance);
            }
            Step::End(worker, id, attempt, outcome) => {
                let outcome = scenario.outcomes[*outcome].clone();
                if outcome == Outcome::Delivered {
                    self.record_good(id, *attempt);
                }
                if matches!(outcome, Outcome::Failed { .. }) {
                    self.seen.started.remove(&(id.clone(), *attempt));
                }
                self.workers[*worker].attempts.ended(id, *attempt, outcome);
            }
            Step::Report(worker, id, attempt, center) => {
                return self.report(scenario, *worker, id, *attempt, *center);
            }
            Step::Inquire(center, id, attempt) => {
                self.used.asked += 1;
                self.inquire(scenario, *center, id, *attempt);
            }
            Step::Unknown(center) => {
                self.used.resends += 1;
                self.on_owner(scenario, *center, |owner, shard| {
                    owner.append_unknown(shard, now)
                });
            }
            Step::CrashCenter(center) => {
                self.used.crashes += 1;
                self.crash_center(scenario, *center);
            }
            Step::CrashWorker(worker) => {
                self.used.crashes += 1;
                self.crash_worker(scenario, *worker);
            }
            Step::Trim(center) => {
                let before = self.centers[*center].owner.clone();
                let may_open = self.used.opened < scenario.opens;
                let open = self.centers[*center].shard.head().open;
                self.used.opened += u8::from(open.is_none_or(|open| open.is_closed));
                self.on_owner(scenario, *center, |owner, shard| {
                    owner.trim(shard, may_open)
                });
                return self.centers[*center].owner != before;
            }
            Step::Forget(center, id) => {
                let before = self.centers[*center].owner.clone();
                self.on_owner(scenario, *center, |owner, shard| {
                    owner.forget(shard, id, now);
                    Vec::new()
                });
                return self.centers[*center].owner != before;
            }
            Step::Pass => {
                self.used.passed += 1;
                self.now = self.now + super::world::HOUR * 13;
            }
            Step::Damage(center) => self.damage(*center),
            Step::Catch(center) => while self.read(scenario, *center) {},
        }
        true
    }

    /// A center that waits for its announcement reads until something comes of it: what it reads meanwhile changes nothing.
    fn read_on(&mut self, scenario: &Scenario, center: usize) -> bool {
        let before = self.centers[center].owner.standing();
        if self.owns(center).is_some() {
            return self.read(scenario, center);
        }
        while self.centers[center].owner.standing() == before {
            if !self.read(scenario, center) {
                return false;
            }
        }
        true
    }

    fn changes(&mut self, scenario: &Scenario, center: usize, request: Request) -> bool {
        // The same twice is the same: it is taken once at a time.
        let before = self.centers[center].owner.clone();
        if before.has(&request) {
            return false;
        }
        let now = self.now;
        self.on_owner(scenario, center, |owner, shard| {
            owner.request(shard, request, now)
        });
        self.centers[center].owner != before
    }

    pub(super) fn report(
        &mut self,
        scenario: &Scenario,
        worker: usize,
        id: &MessageId,
        attempt: u32,
        center: usize,
    ) -> bool {
        let attempts = &self.workers[worker].attempts;
        let key = (id.clone(), attempt);
        let outcome: Option<Outcome> = attempts
            .outcomes()
            .find(|(found, _)| **found == key)
            .map(|(_, outcome)| outcome.clone());
        let Some(outcome) = outcome else { return false };
        let request = Request::Outcome {
            worker: attempts.instance(),
            id: id.clone(),
            attempt,
            outcome,
            waits: vec![super::world::HOUR; 5],
        };
        self.changes(scenario, center, request)
    }

    /// An owner asks a worker about an attempt, and logs what it says.
    pub(super) fn inquire(
        &mut self,
        scenario: &Scenario,
        center: usize,
        id: &MessageId,
        attempt: u32,
    ) {
        let Some(epoch) = self.owns(center) else {
            return;
        };
        let row = self.centers[center].shard.table().get(id);
        let doubt = row.and_then(|row| row.image.doubts.get(&attempt).copied());
        let Some(worker) = doubt.and_then(|doubt| self.asked(scenario, doubt.worker)) else {
            return;
        };
        let status = self.workers[worker].attempts.ask(epoch, id, attempt);
        match status {
            Status::Disclaimed => {
                let request = Request::Disclaim {
                    worker: self.workers[worker].attempts.instance(),
                    epoch,
                    id: id.clone(),
                    attempt,
                };
                self.changes(scenario, center, request);
            }
            Status::Ended(_) => {
                self.report(scenario, worker, id, attempt, center);
            }
            Status::Runs | Status::Refused => {}
        }
    }

    fn damage(&mut self, center: usize) {
        let node = &mut self.centers[center];
        node.is_damaged = true;
        let shard = std::sync::Arc::make_mut(&mut node.shard);
        let ids: Vec<_> = shard.table().iter().map(|(id, _)| id.clone()).collect();
        for id in ids {
            shard.table_mut().remove(&id);
        }
    }
}
