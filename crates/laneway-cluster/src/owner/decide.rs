//! What a request comes to, as far as the log is known. Pure: it changes nothing, and may be asked again.

use std::sync::Arc;
use std::time::Duration;

use laneway_delay::{MessageId, Timestamp};

use super::{Decision, Order, Outcome, Reply, Request, Settings, Submit, Ticket, Verdict};
use crate::apply::{Kept, Shard, Table, transition};
use crate::record::{
    Answer, Cause, Change, Command, Image, Key, MAX_ANSWERS, MessageRow, Next, Refusal,
    RequestDigest, State,
};
use crate::rules::Rule;
use crate::shard_of;

/// What a request comes to.
pub(super) enum Ruling {
    /// It is granted when this row counts.
    Row(MessageRow),
    /// There is nothing to write: that is what to do, once it is certain that nothing was decided elsewhere meanwhile.
    Settled(Vec<Decision>),
}

pub(super) fn decide<T: Table>(
    shard: &Shard<T>,
    settings: &Settings,
    epoch: u64,
    request: &Request,
    now: Timestamp,
) -> Ruling {
    match request {
        Request::Command {
            ticket,
            id,
            order,
            key,
        } => command(shard, epoch, *ticket, id, order, *key, now),
        Request::LookUp { ticket, id } => {
            let row = shard.table().get(id);
            let found = row.filter(|row| row.image.state != State::Absent);
            let reply = Reply::Found(found.map(|row| row.version));
            let ticket = *ticket;
            Ruling::Settled(vec![Decision::Reply { ticket, reply }])
        }
        Request::Intake {
            offset,
            submit,
            ticket,
        } => intake(shard, settings, *offset, submit, *ticket, now),
        Request::Outcome {
            worker,
            id,
            attempt,
            outcome,
            waits,
        } => {
            let row = shard.table().get(id).and_then(|kept| {
                let change = settle(&kept.image, *attempt, outcome, waits, now);
                row_of(shard, id, &kept, change, epoch)
            });
            row.map_or_else(
                || {
                    let logged = Decision::Logged {
                        worker: *worker,
                        id: id.clone(),
                        attempt: *attempt,
                    };
                    Ruling::Settled(vec![logged])
                },
                Ruling::Row,
            )
        }
        Request::Disclaim {
            worker,
            epoch: to,
            id,
            attempt,
        } => {
            let row = shard.table().get(id).and_then(|kept| {
                let doubt = kept.image.doubts.get(attempt)?;
                let is_own = doubt.worker == *worker && *to == epoch;
                if !is_own && shard.rules().holds(Rule::OwnDisclaims) {
                    return None;
                }
                let change = Change::Unstarted {
                    attempt: *attempt,
                    again: now,
                    at: now,
                };
                row_of(shard, id, &kept, change, epoch)
            });
            row.map_or_else(|| Ruling::Settled(Vec::new()), Ruling::Row)
        }
    }
}

/// What to do when the row that grants a request has counted.
pub(super) fn grant<T: Table>(shard: &Shard<T>, request: Request, decisions: &mut Vec<Decision>) {
    match request {
        Request::Command {
            ticket, id, key, ..
        } => {
            let row = shard.table().get(&id);
            let image = row.as_ref().map(|row| &row.image);
            // The row has the answer, if the command has a key: a refusal may have been logged.
            let noted = image.and_then(|image| image.answers.get(&key?.0));
            let answer = noted.map_or_else(
                || Answer::Done {
                    due: image.map_or(Timestamp::from_millis(0), |image| image.due),
                },
                |noted| noted.answer.clone(),
            );
            let reply = Reply::Command(answer);
            decisions.push(Decision::Reply { ticket, reply });
        }
        Request::Intake { offset, ticket, .. } => {
            let reply = Reply::Verdict(Verdict::Accepted);
            decisions.extend(ticket.map(|ticket| Decision::Reply { ticket, reply }));
            decisions.push(Decision::IntakeDone { offset });
        }
        Request::Outcome {
            worker,
            id,
            attempt,
            ..
        } => decisions.push(Decision::Logged {
            worker,
            id,
            attempt,
        }),
        Request::LookUp { .. } | Request::Disclaim { .. } => {}
    }
}

fn row_of<T: Table>(
    shard: &Shard<T>,
    id: &MessageId,
    kept: &Arc<Kept>,
    change: Change,
    epoch: u64,
) -> Option<MessageRow> {
    transition(shard.rules(), &kept.image, &change, epoch)?;
    Some(MessageRow {
        id: id.clone(),
        version: kept.version + 1,
        change,
    })
}

fn command<T: Table>(
    shard: &Shard<T>,
    epoch: u64,
    ticket: Ticket,
    id: &MessageId,
    order: &Order,
    key: Option<(Key, RequestDigest)>,
    now: Timestamp,
) -> Ruling {
    let answered = |answer| {
        let reply = Reply::Command(answer);
        Ruling::Settled(vec![Decision::Reply { ticket, reply }])
    };
    let kept = shard.table().get(id);
    let absent = Image::absent();
    let image = kept.as_ref().map_or(&absent, |kept| &kept.image);
    let verb = order.verb();
    let command = key.map(|(key, digest)| Command { verb, key, digest });
    if let Some(known) = command.and_then(|command| image.answers.get(&command.key)) {
        let is_same = command.is_some_and(|c| (c.verb, c.digest) == (known.verb, known.digest));
        return answered(if is_same {
            known.answer.clone()
        } else {
            Answer::Refused(Refusal::OtherCommand)
        });
    }
    let version = kept.as_ref().map_or(0, |kept| kept.version) + 1;
    let row = |change| MessageRow {
        id: id.clone(),
        version,
        change,
    };
    if command.is_some() && image.answers.len() >= MAX_ANSWERS {
        return answered(Answer::Refused(Refusal::TooManyCommands));
    }
    if let Some(change) = change_for(shard, image, order, command, now)
        && transition(shard.rules(), image, &change, epoch).is_some()
    {
        return Ruling::Row(row(change));
    }
    let answer = Answer::Refused(refusal(image, order));
    match command {
        None => answered(answer),
        Some(command) => Ruling::Row(row(Change::Answered {
            command,
            answer,
            at: now,
        })),
    }
}

/// The new message of a replay, where the row that ended the old one has not made it: what the rule forbids.
pub(super) fn second_half<T: Table>(shard: &Shard<T>, request: &Request) -> Option<MessageRow> {
    if shard.rules().holds(Rule::ReplayInOneRow) {
        return None;
    }
    let Request::Command {
        id,
        order: Order::Replay { to },
        ..
    } = request
    else {
        return None;
    };
    let old = shard.table().get(id)?;
    let change = Change::Accepted {
        due: old.image.due,
        at: old.image.accepted,
        digest: old.image.digest,
        topic: old.image.topic.clone(),
        body: old.image.body.clone(),
    };
    let row = MessageRow {
        id: to.clone(),
        version: 1,
        change,
    };
    shard.table().get(to).is_none().then_some(row)
}

fn change_for<T: Table>(
    shard: &Shard<T>,
    image: &Image,
    order: &Order,
    command: Option<Command>,
    now: Timestamp,
) -> Option<Change> {
    let at = now;
    let due = match order {
        Order::ExtendTo(due) => *due,
        Order::ExtendBy(delay) => image.due + *delay,
        Order::Withdraw => return Some(Change::Withdrawn { command, at }),
        Order::Stop => return Some(Change::Stopped { command, at }),
        Order::Purge => return Some(Change::Purged { command, at }),
        Order::Replay { to } => {
            let identity = &shard.head().identity;
            let is_here = shard_of(to, identity.shards) == identity.shard;
            let is_free = shard.table().get(to).is_none();
            let to = to.clone();
            return (is_here && is_free).then_some(Change::Replayed { to, command, at });
        }
    };
    let due = due.min(Timestamp::LAST_DUE);
    (due > now).then_some(Change::Extended { due, command, at })
}

fn refusal(image: &Image, order: &Order) -> Refusal {
    match (&image.state, order) {
        (State::Absent, _) => Refusal::Unknown,
        (State::Scheduled, Order::ExtendTo(_) | Order::ExtendBy(_) | Order::Withdraw)
            if image.is_in_doubt() =>
        {
            Refusal::MayHaveBeenDelivered
        }
        (State::Scheduled, Order::ExtendTo(_) | Order::ExtendBy(_)) => Refusal::NotLater,
        _ => Refusal::WrongState,
    }
}

fn intake<T: Table>(
    shard: &Shard<T>,
    settings: &Settings,
    offset: u64,
    submit: &Submit,
    ticket: Option<Ticket>,
    now: Timestamp,
) -> Ruling {
    let verdict = |verdict, then| {
        let reply = Reply::Verdict(verdict);
        let reply = ticket.map(|ticket| Decision::Reply { ticket, reply });
        Ruling::Settled(reply.into_iter().chain([then]).collect())
    };
    let kept = shard.table().get(&submit.id);
    if let Some(kept) = &kept
        && kept.image.state != State::Absent
    {
        let found = if kept.image.digest.is_same_as(&submit.digest) {
            Verdict::Duplicate
        } else {
            Verdict::Conflict
        };
        return verdict(found, Decision::IntakeDone { offset });
    }
    // What is older than that may have been accepted, delivered and forgotten.
    let is_too_old = now.since(submit.at) > settings.keep / 2;
    if is_too_old && shard.rules().holds(Rule::IntakeAge) {
        return verdict(Verdict::TooOld, Decision::IntakeDead { offset });
    }
    Ruling::Row(MessageRow {
        id: submit.id.clone(),
        version: kept.map_or(0, |kept| kept.version) + 1,
        change: Change::Accepted {
            due: submit.due,
            at: submit.at,
            digest: submit.digest,
            topic: submit.topic.clone(),
            body: submit.body.clone(),
        },
    })
}

/// The row that an outcome becomes.
fn settle(
    image: &Image,
    attempt: u32,
    outcome: &Outcome,
    waits: &[Duration],
    now: Timestamp,
) -> Change {
    let nth = usize::try_from(image.failures).unwrap_or(usize::MAX);
    match outcome {
        Outcome::Delivered => Change::Delivered { attempt, at: now },
        Outcome::Failed {
            reason,
            after,
            is_final,
        } => {
            let next = match waits.get(nth) {
                _ if *is_final => Next::Dead(Cause::Rejected),
                Some(wait) => Next::Again(now + (*wait).max(*after)),
                None => Next::Dead(Cause::Exhausted),
            };
            Change::Failed {
                attempt,
                next,
                reason: reason.clone(),
                at: now,
            }
        }
        // The doubt stays: only the wait is noted. It is never the end of the schedule.
        Outcome::Unknown => {
            let wait = waits.get(nth).or(waits.last()).copied();
            Change::Rescheduled {
                again: now + wait.unwrap_or_default(),
                at: now,
            }
        }
        Outcome::HandedBack { wait } => Change::Unstarted {
            attempt,
            again: now + *wait,
            at: now,
        },
    }
}
