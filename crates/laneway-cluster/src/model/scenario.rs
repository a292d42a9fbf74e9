use std::time::Duration;

use bytes::Bytes;
use laneway_delay::{MessageId, Timestamp};

use super::steps::Step;
use super::world::{HOUR, Taken, World, start};
use crate::owner::{Order, Outcome, Submit};
use crate::record::{Key, RequestDigest};
use crate::rules::{Rule, Rules};

/// The bounds of a run, what clients do in it, and where it begins.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a bound of its own")]
pub(super) struct Scenario {
    pub(super) rules: Rules,
    /// Announcements, in all.
    pub(super) epochs: u8,
    /// Records in the log.
    pub(super) log: usize,
    /// Attempts that are begun, in all.
    pub(super) attempts: u8,
    /// Processes that crash, in all.
    pub(super) crashes: u8,
    /// Appends without an answer, after which everything is sent again.
    pub(super) resends: u8,
    /// Appends that land twice.
    pub(super) twice: u8,
    /// Owners that ask workers.
    pub(super) asks: u8,
    /// Times that thirteen hours pass.
    pub(super) passes: u8,
    /// Times that the log is opened.
    pub(super) opens: u8,
    /// Records of the intake that are read again although they are settled.
    pub(super) retakes: u8,
    /// Whether a view loses a row.
    pub(super) damage: bool,
    /// Whether ended messages are forgotten.
    pub(super) forgets: bool,
    /// Which workers are given attempts.
    pub(super) workers: usize,
    /// How often each command is sent.
    pub(super) sends: u8,
    pub(super) commands: Vec<Asked>,
    pub(super) submits: Vec<Submitted>,
    pub(super) outcomes: Vec<Outcome>,
    /// Steps before the run begins.
    pub(super) prelude: Vec<Step>,
    /// Record what the checker is given.
    pub(super) is_recorded: bool,
    /// Look in every state whether it heals; otherwise in one of sixteen.
    pub(super) heals_everywhere: bool,
}

/// A command of a client.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) id: MessageId,
    pub(super) order: Option<Order>,
    pub(super) key: Option<(Key, RequestDigest)>,
}

/// A submit of a client.
#[derive(Clone, Debug)]
pub(super) struct Submitted {
    pub(super) id: MessageId,
    pub(super) request: u8,
    /// The client gave an id or a key.
    pub(super) waits: bool,
    /// When it was computed to be due.
    pub(super) due: Timestamp,
}

pub(super) fn id(number: u8) -> MessageId {
    MessageId::new(format!("m{number}")).unwrap()
}

pub(super) fn failed() -> Outcome {
    Outcome::Failed {
        reason: String::new(),
        after: Duration::ZERO,
        is_final: false,
    }
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            rules: Rules::default(),
            epochs: 2,
            log: 10,
            attempts: 2,
            crashes: 0,
            resends: 0,
            twice: 0,
            asks: 1,
            passes: 0,
            opens: 0,
            retakes: 0,
            damage: false,
            forgets: false,
            workers: 1,
            sends: 1,
            commands: Vec::new(),
            submits: vec![submitted(0)],
            outcomes: vec![Outcome::Delivered],
            prelude: accepted(1),
            is_recorded: false,
            heals_everywhere: false,
        }
    }
}

pub(super) fn submitted(number: u8) -> Submitted {
    Submitted {
        id: id(number),
        request: number,
        waits: false,
        due: start(),
    }
}

pub(super) fn command(number: u8, order: Order) -> Asked {
    Asked {
        id: id(number),
        order: Some(order),
        key: None,
    }
}

/// The first center owns the shard, and has accepted the first `count` submits.
pub(super) fn accepted(count: usize) -> Vec<Step> {
    let mut steps = vec![Step::Announce(0), Step::Land(0), Step::Read(0)];
    for offset in 0..count {
        steps.extend([Step::Take(0, offset), Step::Land(0), Step::Read(0)]);
    }
    steps
}

impl Scenario {
    pub(super) fn without(self, rule: Rule) -> Self {
        let rules = Rules::without(rule);
        Self { rules, ..self }
    }

    pub(super) fn begin(&self) -> World {
        let mut world = World::new(self);
        if self.is_recorded {
            world.record = Some(Box::default());
        }
        for submitted in &self.submits {
            let mut digest = [submitted.request; 32];
            if !self.rules.holds(Rule::DigestAsWritten) {
                digest[..8].copy_from_slice(&submitted.due.as_millis().to_le_bytes());
            }
            world.intake.push(Taken {
                submit: Submit {
                    id: submitted.id.clone(),
                    digest: RequestDigest(digest),
                    due: submitted.due,
                    at: start(),
                    topic: "t".to_owned(),
                    body: Bytes::new(),
                },
                request: submitted.request,
                waits: submitted.waits,
                is_done: false,
            });
            let is_answered = !submitted.waits || !self.rules.holds(Rule::Verdicts);
            if is_answered {
                world.record_accepted(world.intake.len() - 1);
                world.seen.answered_202.insert(world.intake.len() - 1);
            }
        }
        for step in &self.prelude {
            world.take(self, step);
        }
        // The bounds are for what follows.
        world.used = super::world::Used {
            announced: world.used.announced,
            ..Default::default()
        };
        world
    }

    pub(super) const fn later() -> Order {
        Order::ExtendBy(HOUR)
    }
}
