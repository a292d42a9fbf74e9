use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use laneway_delay::{MessageId, Timestamp};

use super::scenario::Scenario;
use super::world::{HOUR, World, identity, start};
use crate::checker::{Allowed, History, LogEntry, Said, Start, SubmitTold, What};
use crate::owner::{Order, Reply, Ticket, Verdict};
use crate::record::Verb;

/// What receivers, clients and a reader of the log have seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Recorded {
    ticks: u64,
    log: Vec<LogEntry>,
    starts: Vec<Start>,
    said: Vec<Said>,
    asked: BTreeMap<Ticket, Timestamp>,
    /// Questions without an answer.
    unanswered: Vec<(Ticket, Said)>,
    /// What waited in the intake for too long.
    dead_letters: BTreeSet<MessageId>,
}

impl Recorded {
    /// Ten seconds for each step, long after everything is due.
    fn now(&self) -> Timestamp {
        start() + HOUR * 2_000 + std::time::Duration::from_secs(10 * self.ticks)
    }
}

impl World {
    pub(super) fn tick(&mut self) {
        if let Some(record) = &mut self.record {
            record.ticks += 1;
        }
    }

    pub(super) fn record_landed(&mut self, offset: u64, bytes: &Bytes) {
        if let Some(record) = &mut self.record {
            let (at, bytes) = (record.now(), bytes.clone());
            record.log.push(LogEntry { offset, at, bytes });
        }
    }

    pub(super) fn record_start(&mut self, id: &MessageId, attempt: u32, epoch: u64) {
        if let Some(record) = &mut self.record {
            let at = record.now();
            record.starts.push(Start {
                id: id.clone(),
                attempt,
                epoch,
                at,
                is_good: false,
            });
        }
    }

    pub(super) fn record_good(&mut self, id: &MessageId, attempt: u32) {
        if let Some(record) = &mut self.record {
            let mut starts = record.starts.iter_mut().rev();
            let start = starts.find(|start| start.id == *id && start.attempt == attempt);
            if let Some(start) = start {
                start.is_good = true;
            }
        }
    }

    pub(super) fn record_asked(&mut self, scenario: &Scenario, center: usize, ticket: Ticket) {
        if let Some(record) = &mut self.record {
            let now = record.now();
            record.asked.insert(ticket, now);
            // As if it had failed, until it is answered.
            self.record_reply(scenario, center, ticket, &Reply::NotOwner);
            if let Some(record) = &mut self.record
                && let Some(said) = record.said.pop()
            {
                record.unanswered.push((ticket, said));
            }
        }
    }

    pub(super) fn record_dead_letter(&mut self, id: &MessageId) {
        if let Some(record) = &mut self.record {
            record.dead_letters.insert(id.clone());
        }
    }

    fn say(&mut self, member: usize, id: &MessageId, ticket: Ticket, what: What) {
        if let Some(record) = &mut self.record {
            let answered = record.now();
            let open = record.unanswered.iter();
            if let Some(place) = open.into_iter().position(|(open, _)| *open == ticket) {
                record.unanswered.remove(place);
            }
            let sent = record.asked.get(&ticket).copied().unwrap_or(answered);
            record.said.push(Said {
                member: u32::try_from(member).unwrap(),
                id: id.clone(),
                sent,
                answered,
                what,
                in_fault: true,
            });
        }
    }

    /// A receive said that a submit is accepted.
    pub(super) fn record_accepted(&mut self, offset: usize) {
        let submit = self.intake[offset].submit.clone();
        let told = SubmitTold::Accepted;
        let digest = self.written(offset);
        self.say(
            9,
            &submit.id,
            1000 + offset as u64,
            What::Submit { digest, told },
        );
    }

    /// The digest of a request as the client wrote it.
    fn written(&self, offset: usize) -> crate::record::RequestDigest {
        crate::record::RequestDigest([self.intake[offset].request; 32])
    }

    pub(super) fn record_reply(
        &mut self,
        scenario: &Scenario,
        center: usize,
        ticket: Ticket,
        reply: &Reply,
    ) {
        if self.record.is_none() {
            return;
        }
        if ticket >= 1000 {
            let offset = usize::try_from(ticket - 1000).unwrap();
            let told = match reply {
                Reply::Verdict(Verdict::Accepted | Verdict::Duplicate) => SubmitTold::Accepted,
                Reply::Verdict(Verdict::Conflict) => SubmitTold::Conflict,
                _ => SubmitTold::Error,
            };
            let digest = self.written(offset);
            let id = self.intake[offset].submit.id.clone();
            return self.say(center, &id, ticket, What::Submit { digest, told });
        }
        let asked = &scenario.commands[usize::try_from(ticket).unwrap()];
        let verb = match asked.order {
            Some(Order::ExtendBy(_) | Order::ExtendTo(_)) => Some(Verb::Extend),
            Some(Order::Withdraw) => Some(Verb::Withdraw),
            Some(Order::Stop) => Some(Verb::Stop),
            Some(Order::Replay { .. }) => Some(Verb::Replay),
            Some(Order::Purge) => Some(Verb::Purge),
            None => None,
        };
        let what = match (verb, reply) {
            (None, Reply::Found(found)) => What::LookUp {
                found: Some(found.is_some()),
            },
            (None, _) => What::LookUp { found: None },
            (Some(verb), reply) => What::Command {
                verb,
                key: asked.key,
                told: match reply {
                    Reply::Command(answer) => Some(answer.clone()),
                    _ => None,
                },
            },
        };
        self.say(center, &asked.id.clone(), ticket, what);
    }

    /// What the checker is given. `is_over`: everything should have been settled long ago.
    pub(super) fn history(&self, is_over: bool) -> History {
        let mut record = self.record.as_deref().cloned().unwrap_or_default();
        let now = record.now();
        let unanswered = record.unanswered.drain(..).map(|(_, said)| said);
        record.said.extend(unanswered);
        History {
            identity: identity(),
            log: record.log,
            left: self.trimmed,
            dead_letters: record.dead_letters,
            starts: record.starts,
            said: record.said,
            healed: Some(now),
            ended: if is_over { now + HOUR } else { now },
            allowed: Allowed {
                settle: if is_over {
                    Allowed::default().settle
                } else {
                    HOUR * 1_000
                },
                ..Allowed::default()
            },
        }
    }
}

/// When a run begins.
pub(crate) fn run_begins() -> Timestamp {
    start()
}

/// A message is extended and delivered, another one is withdrawn, and nothing fails.
pub(crate) fn good_history() -> History {
    use super::scenario::{Asked, accepted, command, id, submitted};
    use super::steps::Step;
    use crate::record::{Key, RequestDigest};
    let key = Some((Key([7; 16]), RequestDigest([7; 32])));
    let scenario = Scenario {
        submits: vec![submitted(0), submitted(1)],
        prelude: accepted(2),
        commands: vec![
            Asked {
                key,
                ..command(0, Scenario::later())
            },
            command(1, Order::Withdraw),
        ],
        is_recorded: true,
        ..Scenario::default()
    };
    let mut world = scenario.begin();
    let first = id(0);
    let arrives = [Step::Land(0), Step::Read(0)];
    let steps = [Step::Ask(0, 0)]
        .into_iter()
        .chain(arrives.clone())
        .chain([Step::Ask(0, 1)])
        .chain(arrives.clone())
        .chain([Step::Begin(0, first.clone(), 0)])
        .chain(arrives.clone())
        .chain([
            Step::Arrive(0),
            Step::Start(0, first.clone(), 1),
            Step::End(0, first.clone(), 1, 0),
            Step::Report(0, first, 1, 0),
        ])
        .chain(arrives);
    for step in steps {
        assert!(world.take(&scenario, &step), "{step:?}");
    }
    let mut history = world.history(true);
    history.healed = None;
    for said in &mut history.said {
        said.in_fault = false;
    }
    history
}
