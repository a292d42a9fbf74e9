use laneway_delay::MessageId;

use super::scenario::Scenario;
use super::steps::Step;
use super::world::{World, worker_of};
use crate::apply::{Memory, Shard, Table};
use crate::owner::Standing;

/// Rounds after which a cluster that heals has healed.
const ROUNDS: usize = 24;

impl World {
    /// Lets a cluster without further faults go on, always with the first center, until all is settled.
    ///
    /// Appends under way land first, or are lost. `Err`: what is left to do.
    pub(super) fn heal(&self, scenario: &Scenario, are_lost: bool) -> Result<(), String> {
        self.clone().heal_in_place(scenario, are_lost)
    }

    pub(super) fn heal_in_place(
        &mut self,
        scenario: &Scenario,
        are_lost: bool,
    ) -> Result<(), String> {
        let world = self;
        if are_lost {
            world.flight.clear();
        }
        world.centers[1].owner.revoke();
        world.centers[1].owner.release();
        if world.centers[0].is_damaged {
            world.crash_center(scenario, 0);
            world.rebuild_view(scenario, 0);
        }
        for _ in 0..ROUNDS {
            world.round(scenario);
            if world.seen.wrong.is_some() {
                return Err(format!("{:?} while healing", world.seen.wrong));
            }
            if world.unsettled().is_none() {
                return Ok(());
            }
        }
        Err(world.unsettled().unwrap_or_default())
    }

    /// All that is under way arrives, and is read.
    fn quiesce(&mut self, scenario: &Scenario) {
        while let Some(flying) = self.flight.pop_first() {
            self.land(&flying.1);
            while self.read(scenario, 0) {}
        }
        while self.read(scenario, 0) {}
        while !self.gos.is_empty() {
            self.take(scenario, &Step::Arrive(0));
        }
    }

    fn round(&mut self, scenario: &Scenario) {
        self.quiesce(scenario);
        if self.centers[0].owner.standing() == Standing::Following {
            self.announce(scenario, 0);
        } else {
            self.take(scenario, &Step::Unknown(0));
        }
        self.quiesce(scenario);
        for offset in 0..self.intake.len() {
            if !self.intake[offset].is_done {
                self.take(scenario, &Step::Take(0, offset));
                self.quiesce(scenario);
            }
        }
        self.settle_workers(scenario);
        let ids: Vec<MessageId> = rows(&self.centers[0].shard);
        for id in &ids {
            self.settle_doubts(scenario, id);
        }
        for id in &ids {
            self.take(scenario, &Step::Begin(0, id.clone(), 0));
            self.quiesce(scenario);
        }
        self.settle_workers(scenario);
    }

    /// Attempts are started, end well, and are reported.
    fn settle_workers(&mut self, scenario: &Scenario) {
        for worker in 0..2 {
            let held: Vec<_> = self.workers[worker].attempts.held().cloned().collect();
            for (id, attempt) in held {
                self.take(scenario, &Step::Start(worker, id, attempt));
            }
            let running: Vec<_> = self.workers[worker].attempts.running().cloned().collect();
            for (id, attempt) in running {
                self.take(scenario, &Step::End(worker, id, attempt, 0));
            }
            let ended = self.workers[worker].attempts.outcomes();
            let ended: Vec<_> = ended.map(|(key, _)| key.clone()).collect();
            for (id, attempt) in ended {
                self.report(scenario, worker, &id, attempt, 0);
                self.quiesce(scenario);
            }
        }
    }

    /// Workers that live are asked; what the others had is unknown.
    fn settle_doubts(&mut self, scenario: &Scenario, id: &MessageId) {
        let Some(row) = self.centers[0].shard.table().get(id) else {
            return;
        };
        for (attempt, doubt) in &row.image.doubts {
            let worker = worker_of(doubt.worker);
            if self.workers[worker].attempts.instance() == doubt.worker {
                self.inquire(scenario, 0, id, *attempt);
                self.quiesce(scenario);
            } else {
                let shard = self.centers[0].shard.clone();
                self.centers[0].owner.worker_died(&shard, doubt.worker);
            }
        }
    }

    /// What is not settled.
    fn unsettled(&self) -> Option<String> {
        let truth = &self.truth;
        for (id, row) in truth.table().iter() {
            if let crate::record::State::Replayed { to, .. } = &row.image.state
                && truth.table().get(to).is_none()
            {
                return Some(format!("{id} was replayed as {to}, which is not there"));
            }
            if row.image.state.ended().is_none() && row.image.state != crate::record::State::Absent
            {
                return Some(format!("{id} has not ended: {:?}", row.image));
            }
        }
        if let Some(taken) = self.intake.iter().find(|taken| !taken.is_done) {
            return Some(format!("{} waits in the intake", taken.submit.id));
        }
        for worker in &self.workers {
            if let Some((key, _)) = worker.attempts.outcomes().next() {
                return Some(format!("the outcome of {key:?} is not logged"));
            }
        }
        (!self.centers[0].owner.is_drained()).then(|| "something is under way".to_owned())
    }
}

fn rows(shard: &Shard<Memory>) -> Vec<MessageId> {
    shard.table().iter().map(|(id, _)| id.clone()).collect()
}
