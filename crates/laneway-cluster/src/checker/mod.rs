//! What was seen from outside, judged: receivers' starts, clients' answers, and the log.
//!
//! The checker believes the log and nothing else. It reads it by [`apply`](crate::apply), and asks of every start and every
//! answer whether the log allows it:
//!
//! | violation | when |
//! |---|---|
//! | [`Lost`](Violation::Lost) | accepted, and nowhere; or due long ago, and neither delivered nor ended otherwise |
//! | [`Early`](Violation::Early) | a start before the due time that was in force |
//! | [`StartAfterYes`](Violation::StartAfterYes) | a start after a yes to withdraw, or before it with an outcome that the log does not know to be a failure |
//! | [`StartWithoutBegun`](Violation::StartWithoutBegun) | a start that no fact which counts has begun in that epoch |
//! | [`DoubleOwner`](Violation::DoubleOwner) | starts of one message whose epochs run backwards, or starts of two reigns in one epoch |
//! | [`Contradiction`](Violation::Contradiction) | answers that differ from each other or from the log |
//! | [`Duplicate`](Violation::Duplicate) | a second start after a good one, in a run without faults |
//! | [`Ailing`](Violation::Ailing) | a run in which too much erred, which proves nothing |
//! | [`BadLog`](Violation::BadLog) | a log that cannot be read, or whose rest is not complete by itself |
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `answers` | clients' answers against the log |
//! | `starts` | receivers' starts against the log |
//! | `told` | what the log tells, row by row |

mod answers;
mod starts;
#[cfg(test)]
mod tests;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use laneway_delay::{MessageId, Timestamp};

use crate::apply::{Identity, Memory, Stop, rebuild};
use crate::record::{Answer, Key, RequestDigest, Verb};
use told::Told;

/// All that was seen of one shard.
#[derive(Clone, Debug)]
pub struct History {
    /// Which log it is.
    pub identity: Identity,
    /// Its records, as one reader saw them from the start.
    pub log: Vec<LogEntry>,
    /// The offset of the first record that is left: what is before it was trimmed.
    pub left: u64,
    /// Messages that became dead letters of the intake, because they had waited there for too long.
    pub dead_letters: BTreeSet<MessageId>,
    /// What receivers saw, in the order of time.
    pub starts: Vec<Start>,
    /// What clients were told, in the order of time; also what they asked without being answered.
    pub said: Vec<Said>,
    /// When the last fault was healed, if there were faults.
    pub healed: Option<Timestamp>,
    /// When the run ended.
    pub ended: Timestamp,
    /// What is allowed.
    pub allowed: Allowed,
}

/// What a run is allowed.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    /// How much too early a start may be: the stated bound on clocks that differ.
    pub early: Duration,
    /// How long after its due time, and after the last fault, a message may be unfinished.
    pub settle: Duration,
    /// How far the clocks of clients and the log may differ.
    pub skew: Duration,
}

/// A record of the log, and when the broker took it.
#[derive(Clone, Debug)]
pub struct LogEntry {
    /// Its offset.
    pub offset: u64,
    /// When the broker took it.
    pub at: Timestamp,
    /// The record, as it was written.
    pub bytes: Bytes,
}

/// An attempt that reached a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Of which message.
    pub id: MessageId,
    /// The number of the attempt that it carried, from 1.
    pub attempt: u32,
    /// The epoch that it carried.
    pub epoch: u64,
    /// When the receiver got it, by its clock.
    pub at: Timestamp,
    /// The receiver said yes.
    pub is_good: bool,
}

/// What a client asked, and what it was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Which member answered.
    pub member: u32,
    /// About which message.
    pub id: MessageId,
    /// When it was asked.
    pub sent: Timestamp,
    /// When it was answered.
    pub answered: Timestamp,
    /// The question, with its answer.
    pub what: What,
    /// Whether a fault was on at that time.
    pub in_fault: bool,
}

/// Questions with their answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A submit.
    Submit {
        /// The request as it was written.
        digest: RequestDigest,
        /// What the client was told.
        told: SubmitTold,
    },
    /// A command.
    Command {
        /// What was asked for.
        verb: Verb,
        /// The key, and the request as it was written.
        key: Option<(Key, RequestDigest)>,
        /// The answer. `None`: an error, after which nothing is known.
        told: Option<Answer>,
    },
    /// A look-up.
    LookUp {
        /// Whether the message was found. `None`: an error.
        found: Option<bool>,
    },
}

/// What a client is told about a submit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitTold {
    /// It is accepted, or was before.
    Accepted,
    /// Another one has its id.
    Conflict,
    /// An error, after which nothing is known.
    Error,
}

/// What must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// An accepted message is gone, or was not dealt with.
    Lost {
        /// The accepted message.
        id: MessageId,
        /// What shows that it is lost.
        why: &'static str,
    },
    /// A start before the due time.
    Early {
        /// Of which message.
        id: MessageId,
        /// By how much.
        by: Duration,
    },
    /// A start although a withdraw was granted.
    StartAfterYes {
        /// Of which message.
        id: MessageId,
    },
    /// A start that the log does not know of.
    StartWithoutBegun {
        /// Of which message.
        id: MessageId,
        /// The number that the start carried.
        attempt: u32,
    },
    /// Two owners at once.
    DoubleOwner {
        /// In which epoch the second one acted.
        epoch: u64,
    },
    /// An answer that cannot be true.
    Contradiction {
        /// About which message.
        id: MessageId,
        /// What it contradicts.
        why: &'static str,
    },
    /// A second start without any reason.
    Duplicate {
        /// Of which message.
        id: MessageId,
    },
    /// The run was too ill to prove anything.
    Ailing {
        /// What there was too much or too little of.
        why: String,
    },
    /// The log cannot be read.
    BadLog(Stop),
}

impl Default for Allowed {
    fn default() -> Self {
        Self {
            early: Duration::ZERO,
            settle: Duration::from_secs(30),
            skew: Duration::from_secs(1),
        }
    }
}

/// Judges what was seen. Empty: nothing that must not be.
#[must_use]
pub fn check(history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    match Told::read(history) {
        Ok(told) => {
            starts::check(history, &told, &mut violations);
            answers::check(history, &told, &mut violations);
            check_left(history, &told, &mut violations);
        }
        Err(stop) => violations.push(Violation::BadLog(stop)),
    }
    check_health(history, &mut violations);
    violations
}

/// What is left of the log is complete by itself.
fn check_left(history: &History, told: &Told, violations: &mut Vec<Violation>) {
    let is_whole = history
        .log
        .first()
        .is_none_or(|first| first.offset >= history.left);
    if is_whole {
        return;
    }
    let left = history
        .log
        .iter()
        .filter(|entry| entry.offset >= history.left);
    let left: Vec<_> = left
        .map(|entry| (entry.offset, entry.bytes.clone()))
        .collect();
    match rebuild(&history.identity, false, &left, Memory::default) {
        Ok(built) if built.head() == told.shard.head() => {}
        Ok(_) => violations.push(Violation::BadLog(Stop::OtherRows)),
        Err(stop) => violations.push(Violation::BadLog(stop)),
    }
}

/// The share of submits outside faults that must be accepted.
const ACCEPTED: f64 = 0.9;

/// How many of the last answers of each member must be good.
const LAST: usize = 20;

fn check_health(history: &History, violations: &mut Vec<Violation>) {
    let is_good = |said: &Said| match &said.what {
        What::Submit { told, .. } => *told != SubmitTold::Error,
        What::Command { told, .. } => told.is_some(),
        What::LookUp { found } => found.is_some(),
    };
    let submits = history
        .said
        .iter()
        .filter(|said| !said.in_fault && matches!(said.what, What::Submit { .. }));
    let (good, all) = submits.fold((0_u32, 0_u32), |(good, all), said| {
        (good + u32::from(is_good(said)), all + 1)
    });
    if f64::from(good) < ACCEPTED * f64::from(all) {
        let why = format!("{good} of {all} submits outside faults were accepted");
        violations.push(Violation::Ailing { why });
    }
    let mut members: BTreeMap<u32, Vec<&Said>> = BTreeMap::new();
    for said in &history.said {
        if history.healed.is_none_or(|healed| said.sent > healed) {
            members.entry(said.member).or_default().push(said);
        }
    }
    for (member, said) in members {
        let bad = said.iter().rev().take(LAST).filter(|said| !is_good(said));
        let bad = bad.count();
        if bad > 0 {
            let why = format!("{bad} of the last answers of member {member} are errors");
            violations.push(Violation::Ailing { why });
        }
    }
}
