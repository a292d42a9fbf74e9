//! Any order of submits, extends, withdraws, claims and settlements, against a model that fits on a
//! page. The claims try everything that was ever known of a message: stale places, early times, twice.

use std::collections::HashMap;
use std::time::Duration;

use laneway_delay::store::{Claim, Operation, Outcome, Scheduled};
use laneway_delay::{Error, Extend, Query, Schedule, StateName, Undelivered};

use crate::stage::{Stage, message};

/// A generator that is quick and good enough to choose with.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// What must be true of a message.
struct Expected {
    state: StateName,
    /// When it may fire.
    at: u64,
    due: u64,
    failures: usize,
    in_doubt: bool,
    claim: Option<Claim>,
}

const STATES: [StateName; 5] = [
    StateName::Scheduled,
    StateName::Firing,
    StateName::Delivered,
    StateName::Dead,
    StateName::Withdrawn,
];

const WAITS: [u64; 2] = [3, 5];

struct Case<'a> {
    stage: &'a Stage,
    name: String,
    now: u64,
    messages: HashMap<String, Expected>,
    known: Vec<Scheduled>,
}

impl Case<'_> {
    fn id(&self, dice: &mut Dice) -> String {
        format!("{}-{}", self.name, dice.below(2))
    }

    async fn step(&mut self, dice: &mut Dice) {
        self.now += dice.below(4);
        let id = self.id(dice);
        match dice.below(9) {
            0 => self.submit(id, dice).await,
            1 | 2 => self.extend(id, dice).await,
            3 => self.withdraw(id).await,
            4 | 5 => self.claim(dice).await,
            6 => self.stop(id, dice).await,
            _ => self.settle(id, dice).await,
        }
    }

    async fn submit(&mut self, id: String, dice: &mut Dice) {
        if self.messages.contains_key(&id) {
            return;
        }
        let due = self.now + dice.below(6);
        let mut submission = message(&id, due);
        // Each has a topic of its own, so that lists by topic are checked as well.
        submission.topic.clone_from(&id);
        self.stage.submit(submission, self.now).await.unwrap();
        let expected = Expected {
            state: StateName::Scheduled,
            at: due,
            due,
            failures: 0,
            in_doubt: false,
            claim: None,
        };
        self.messages.insert(id, expected);
    }

    async fn extend(&mut self, id: String, dice: &mut Dice) {
        let by = dice.below(5);
        let asked = Operation::Extend(Extend::By(Duration::from_millis(by)));
        let answer = self.stage.change(&id, asked, self.now).await;
        let Some(expected) = self.messages.get_mut(&id) else {
            return assert!(matches!(answer, Err(Error::NotFound(_))));
        };
        let due = expected.due + by;
        let is_later = due > expected.at.max(self.now);
        let is_certain = expected.state == StateName::Scheduled && !expected.in_doubt;
        let is_possible = is_certain && is_later;
        assert_eq!(answer.is_ok(), is_possible, "{id}: {answer:?}");
        if is_possible {
            (expected.at, expected.due) = (due, due);
        }
    }

    async fn withdraw(&mut self, id: String) {
        let answer = self.stage.change(&id, Operation::Withdraw, self.now).await;
        let Some(expected) = self.messages.get_mut(&id) else {
            return assert!(matches!(answer, Err(Error::NotFound(_))));
        };
        let is_possible = expected.state == StateName::Scheduled && !expected.in_doubt;
        assert_eq!(answer.is_ok(), is_possible, "{id}: {answer:?}");
        if is_possible {
            expected.state = StateName::Withdrawn;
        }
    }

    /// Seldom, since little is left to do then.
    async fn stop(&mut self, id: String, dice: &mut Dice) {
        if dice.below(3) > 0 {
            return;
        }
        let answer = self.stage.change(&id, Operation::Stop, self.now).await;
        let Some(expected) = self.messages.get_mut(&id) else {
            return assert!(matches!(answer, Err(Error::NotFound(_))));
        };
        let runs = expected.state == StateName::Firing;
        let is_possible = runs || expected.state == StateName::Scheduled;
        assert_eq!(answer.is_ok(), is_possible, "{id}: {answer:?}");
        if let Ok(message) = answer {
            expected.state = StateName::Withdrawn;
            expected.in_doubt |= runs;
            assert_eq!(message.record.is_in_doubt(), expected.in_doubt, "{id}");
        }
    }

    /// Claims everything that was ever known, at some time around now.
    async fn claim(&mut self, dice: &mut Dice) {
        let admitted = self.stage.due_index.admitted.lock().unwrap().clone();
        self.known.extend(admitted);
        self.known.dedup();
        let time = self.now.saturating_sub(dice.below(2));
        let claims = self.stage.claim(self.known.clone(), time).await;
        let mut claimed: Vec<_> = Vec::new();
        for claim in claims {
            let id = claim.message.id.to_string();
            // Another case may share the store.
            let Some(expected) = self.messages.get_mut(&id) else {
                self.stage.settle(claim, Outcome::Released, time).await;
                continue;
            };
            assert_eq!(expected.state, StateName::Scheduled, "{id} was claimed");
            assert!(expected.at <= time, "{id} is early");
            expected.state = StateName::Firing;
            expected.claim = Some(claim);
            claimed.push(id);
        }
        let left_out = self
            .messages
            .iter()
            .find(|(_, expected)| expected.state == StateName::Scheduled && expected.at <= time);
        assert!(
            left_out.is_none(),
            "{:?} was left out",
            left_out.map(|(id, _)| id)
        );
    }

    async fn settle(&mut self, id: String, dice: &mut Dice) {
        let Some(expected) = self.messages.get_mut(&id) else {
            return;
        };
        let Some(claim) = expected.claim.take() else {
            return;
        };
        let schedule = Schedule::new(WAITS.map(Duration::from_millis));
        if expected.state == StateName::Withdrawn {
            // It was stopped: whatever the attempt comes to counts no more.
            let outcome = if dice.below(2) == 0 {
                Outcome::Delivered
            } else {
                Outcome::Failed(Undelivered::retry("500"), schedule)
            };
            return self.stage.settle(claim, outcome, self.now).await;
        }
        let outcome = match dice.below(4) {
            0 => {
                expected.state = StateName::Delivered;
                Outcome::Delivered
            }
            1 => {
                expected.state = StateName::Scheduled;
                Outcome::Released
            }
            2 => {
                expected.state = StateName::Dead;
                Outcome::Failed(Undelivered::permanent("410"), schedule)
            }
            _ => {
                match WAITS.get(expected.failures) {
                    Some(wait) => {
                        expected.state = StateName::Scheduled;
                        expected.at = (self.now + wait).max(expected.due);
                    }
                    None => expected.state = StateName::Dead,
                }
                expected.failures += 1;
                let undelivered = if dice.below(2) == 0 {
                    Undelivered::retry("500")
                } else {
                    expected.in_doubt = true;
                    Undelivered::unknown("no answer")
                };
                Outcome::Failed(undelivered, schedule)
            }
        };
        self.stage.settle(claim, outcome, self.now).await;
    }

    async fn check(&self) {
        for (id, expected) in &self.messages {
            let message = self.stage.get(id).await.expect("it is kept");
            assert_eq!(
                StateName::from(message.record.state()),
                expected.state,
                "{id}"
            );
            assert_eq!(message.record.due().as_millis(), expected.due, "{id}");
            if expected.state != StateName::Delivered {
                assert_eq!(message.record.is_in_doubt(), expected.in_doubt, "{id}");
            }
            for state in STATES {
                let query = Query {
                    topic: Some(id.clone()),
                    ..Query::new(state)
                };
                let listed = self.stage.list(query).await;
                let listed: Vec<_> = listed.iter().map(|message| &message.id).collect();
                let here = (state == expected.state).then_some(&message.id);
                assert_eq!(
                    listed,
                    here.into_iter().collect::<Vec<_>>(),
                    "{id}: {state:?}"
                );
            }
        }
    }
}

async fn run(stage: &Stage, seed: u64, steps: usize) {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut case = Case {
        stage,
        name: format!("c{seed}"),
        now: 1000,
        messages: HashMap::new(),
        known: Vec::new(),
    };
    for _ in 0..steps {
        case.step(&mut dice).await;
    }
    case.check().await;
}

#[tokio::test]
async fn a_hundred_thousand_interleavings_in_memory() {
    for seed in 0..100_000 {
        run(&Stage::in_memory(), seed, 24).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_interleavings_on_disk() {
    many_interleavings(&Stage::on_disk().await, 400).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_interleavings_on_disk_with_tiny_sizes() {
    many_interleavings(&Stage::tiny().await, 200).await;
}

/// One after the other on a store: the cases see only their own messages.
async fn many_interleavings(stage: &Stage, cases: u64) {
    for seed in 0..cases {
        run(stage, seed, 24).await;
        stage.due_index.admitted.lock().unwrap().clear();
        // Whatever is left would be claimed by the next one.
        for waiting in stage.waiting().await {
            for claim in stage.claim(vec![waiting], u64::MAX).await {
                stage.settle(claim, Outcome::Delivered, 1).await;
            }
        }
    }
}
