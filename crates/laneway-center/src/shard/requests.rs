//! Callers of the owner, and which of them waits for which answer.

use std::collections::HashMap;

use laneway_cluster::apply::Table;
use laneway_cluster::owner::{Reply, Request, Submit, Ticket, Verdict};
use laneway_cluster::record::{RequestDigest, State};
use laneway_delay::{MessageId, Timestamp};
use laneway_rpc::convert::{self, Contents};
use laneway_rpc::proto::{self, reply::What};
use tokio::sync::oneshot;

use super::Task;
use super::event::{Event, IntakeError};
use crate::stats::count;

/// What waits for an answer.
enum Caller {
    Command(MessageId, oneshot::Sender<proto::Reply>),
    LookUp(MessageId, oneshot::Sender<proto::Reply>),
    Intake {
        id: MessageId,
        digest: RequestDigest,
        verdict: Option<Verdict>,
        done: oneshot::Sender<Result<(), IntakeError>>,
    },
}

/// A receive that waits for the verdict on a submit.
struct Awaiting {
    digest: RequestDigest,
    submitted: Timestamp,
    reply: oneshot::Sender<Verdict>,
}

/// All that wait.
#[derive(Default)]
pub(super) struct Waiting {
    last: Ticket,
    callers: HashMap<Ticket, Caller>,
    verdicts: HashMap<MessageId, Vec<Awaiting>>,
    /// Records of the intake that came before the shard was owned.
    early: Vec<(Submit, oneshot::Sender<Result<(), IntakeError>>)>,
}

impl Waiting {
    fn ticket(&mut self, caller: Caller) -> Ticket {
        self.last += 1;
        self.callers.insert(self.last, caller);
        self.last
    }

    /// Forgets callers that have given up waiting for a verdict.
    pub(super) fn sweep(&mut self) {
        self.early.retain(|(_, done)| !done.is_closed());
        self.verdicts.retain(|_, waiting| {
            waiting.retain(|waiting| !waiting.reply.is_closed());
            !waiting.is_empty()
        });
    }
}

impl Task {
    /// Takes an event.
    pub(super) fn take(&mut self, event: Event) {
        match event {
            Event::Intake { submit, done } => self.intake(submit, done),
            Event::Command {
                id,
                order,
                key,
                reply,
            } => {
                let ticket = self.waiting.ticket(Caller::Command(id.clone(), reply));
                self.request(Request::Command {
                    ticket,
                    id,
                    order,
                    key,
                });
            }
            Event::LookUp { id, reply } => {
                let ticket = self.waiting.ticket(Caller::LookUp(id.clone(), reply));
                self.request(Request::LookUp { ticket, id });
            }
            Event::Verdict {
                id,
                digest,
                submitted,
                reply,
            } => self.await_verdict(id, digest, submitted, reply),
            Event::Outcome { worker, outcome } => self.outcome(worker, outcome),
            Event::Status { worker, status } => self.status(worker, status),
            Event::Refused { worker, refused } => self.refused(worker, &refused),
            Event::WorkerBack(worker) => self.worker_back(worker),
            Event::WorkerGone(worker) => self.worker_gone(worker),
        }
    }

    pub(super) fn request(&mut self, request: Request) {
        let now = self.now();
        let decisions = self.owner.request(&self.shard, request, now);
        self.decide(decisions);
    }

    fn intake(&mut self, submit: Submit, done: oneshot::Sender<Result<(), IntakeError>>) {
        if self.is_owning() {
            let caller = Caller::Intake {
                id: submit.id.clone(),
                digest: submit.digest,
                verdict: None,
                done,
            };
            let ticket = self.waiting.ticket(caller);
            // The number of the caller stands for the offset: what comes again is another caller.
            self.request(Request::Intake {
                offset: ticket,
                submit,
                ticket: Some(ticket),
            });
        } else if self.announcing.is_assigned {
            self.waiting.early.push((submit, done));
        } else {
            let _ = done.send(Err(IntakeError::NotOwner));
        }
    }

    /// The shard is owned now: what came too early is taken.
    pub(super) fn take_early_intake(&mut self) {
        for (submit, done) in std::mem::take(&mut self.waiting.early) {
            self.intake(submit, done);
        }
    }

    /// The shard will not be owned: what came too early goes elsewhere.
    pub(super) fn refuse_early_intake(&mut self) {
        for (_, done) in self.waiting.early.drain(..) {
            let _ = done.send(Err(IntakeError::NotOwner));
        }
    }

    /// A record of the intake is settled. `is_dead`: as a dead letter.
    pub(super) fn intake_done(&mut self, ticket: Ticket, is_dead: bool) {
        let Some(Caller::Intake {
            id,
            digest,
            verdict,
            done,
        }) = self.waiting.callers.remove(&ticket)
        else {
            return;
        };
        if let Some(verdict) = verdict {
            if verdict == Verdict::Accepted {
                count(&self.shared.counters.accepted);
            }
            self.tell_verdict(&id, digest, verdict);
        }
        let _ = done.send(if is_dead {
            Err(IntakeError::TooOld)
        } else {
            Ok(())
        });
    }

    fn tell_verdict(&mut self, id: &MessageId, digest: RequestDigest, verdict: Verdict) {
        let Some(waiting) = self.waiting.verdicts.get_mut(id) else {
            return;
        };
        let (told, rest) = std::mem::take(waiting)
            .into_iter()
            .partition(|waiting| waiting.digest == digest);
        *waiting = rest;
        if waiting.is_empty() {
            self.waiting.verdicts.remove(id);
        }
        let told: Vec<Awaiting> = told;
        let accepted = self.shard.table().get(id).map(|row| row.image.accepted);
        for waiting in told {
            // The same may have been sent before, and then it is due as the first one said.
            let is_other = accepted.is_some_and(|accepted| accepted != waiting.submitted);
            let verdict = match verdict {
                Verdict::Accepted if is_other => Verdict::Duplicate,
                verdict => verdict,
            };
            let _ = waiting.reply.send(verdict);
        }
    }

    fn await_verdict(
        &mut self,
        id: MessageId,
        digest: RequestDigest,
        submitted: Timestamp,
        reply: oneshot::Sender<Verdict>,
    ) {
        let row = self.shard.table().get(&id);
        // What is in the log stays so: no barrier is needed for it.
        if let Some(row) = row.filter(|row| row.image.state != State::Absent) {
            let verdict = if !row.image.digest.is_same_as(&digest) {
                Verdict::Conflict
            } else if row.image.accepted == submitted {
                Verdict::Accepted
            } else {
                Verdict::Duplicate
            };
            let _ = reply.send(verdict);
            return;
        }
        let waiting = self.waiting.verdicts.entry(id).or_default();
        waiting.push(Awaiting {
            digest,
            submitted,
            reply,
        });
    }

    /// Answers a caller.
    pub(super) fn reply(&mut self, ticket: Ticket, reply: Reply) {
        if let (Some(Caller::Intake { verdict, .. }), Reply::Verdict(found)) =
            (self.waiting.callers.get_mut(&ticket), &reply)
        {
            // Told when the record is settled, which follows at once.
            *verdict = Some(*found);
            return;
        }
        let Some(caller) = self.waiting.callers.remove(&ticket) else {
            return;
        };
        let not_owner = proto::Reply {
            what: Some(What::NotOwner(true)),
        };
        match (caller, reply) {
            (Caller::Command(id, sender), Reply::Command(answer)) => {
                let mut answer = proto::Answer::from(&answer);
                answer.message = self.message(&id);
                let what = Some(What::Answer(answer));
                let _ = sender.send(proto::Reply { what });
            }
            (Caller::LookUp(id, sender), Reply::Found(found)) => {
                let message = found.and_then(|_| self.message(&id));
                let what = Some(What::Found(proto::Found { message }));
                let _ = sender.send(proto::Reply { what });
            }
            (Caller::Command(_, sender) | Caller::LookUp(_, sender), _) => {
                let _ = sender.send(not_owner);
            }
            (Caller::Intake { done, .. }, _) => {
                let _ = done.send(Err(IntakeError::NotOwner));
            }
        }
    }

    /// A message as the view has it now.
    fn message(&self, id: &MessageId) -> Option<proto::Message> {
        let row = self.shard.table().get(id)?;
        if row.image.state == State::Absent {
            return None;
        }
        let now = self.now();
        let message = convert::message(id, &row, now, Contents::With);
        let without = |invalid| {
            tracing::error!(shard = self.number, %id, %invalid, "the content of a message cannot be read");
            convert::message(id, &row, now, Contents::Without).ok()
        };
        message.map_or_else(without, Some)
    }
}
