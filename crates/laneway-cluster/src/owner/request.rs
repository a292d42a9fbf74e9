use std::time::Duration;

use bytes::Bytes;
use laneway_delay::{MessageId, Timestamp};

use crate::record::{Answer, Instance, Key, RequestDigest, Verb};

/// What a caller of the owner gets its answer by.
pub type Ticket = u64;

/// What an owner is asked to do. It answers when the log has decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// A client's command.
    Command {
        /// Who waits for the answer.
        ticket: Ticket,
        /// About which message.
        id: MessageId,
        /// What to do.
        order: Order,
        /// The key of the command, and the request as it was written.
        key: Option<(Key, RequestDigest)>,
    },
    /// A client wants to know what became of a message.
    LookUp {
        /// Who waits for the answer.
        ticket: Ticket,
        /// The message that is looked for.
        id: MessageId,
    },
    /// A record of the intake.
    Intake {
        /// Its offset there.
        offset: u64,
        /// What it holds.
        submit: Submit,
        /// Who waits for the verdict, if a client does.
        ticket: Option<Ticket>,
    },
    /// A worker says how an attempt ended. It keeps that until [`Decision::Logged`](super::Decision::Logged).
    Outcome {
        /// Who says so.
        worker: Instance,
        /// Of which message.
        id: MessageId,
        /// The number of the attempt, from 1.
        attempt: u32,
        /// How it ended, as far as the worker knows.
        outcome: Outcome,
        /// The waits between attempts.
        waits: Vec<Duration>,
    },
    /// A worker says that it has not started an attempt, and will not.
    Disclaim {
        /// Who says so.
        worker: Instance,
        /// To which epoch.
        epoch: u64,
        /// Of which message.
        id: MessageId,
        /// The number of the attempt, from 1.
        attempt: u32,
    },
}

/// What a command wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// To be due at this moment, later than now.
    ExtendTo(Timestamp),
    /// To be due this much later than now.
    ExtendBy(Duration),
    /// To be taken back.
    Withdraw,
    /// To be tried no more.
    Stop,
    /// To be sent again although it is dead.
    Replay {
        /// The id of the new one, which the caller has drawn until it fell into the same shard.
        to: MessageId,
    },
    /// To be removed.
    Purge,
}

impl Order {
    pub(super) const fn verb(&self) -> Verb {
        match self {
            Self::ExtendTo(_) | Self::ExtendBy(_) => Verb::Extend,
            Self::Withdraw => Verb::Withdraw,
            Self::Stop => Verb::Stop,
            Self::Replay { .. } => Verb::Replay,
            Self::Purge => Verb::Purge,
        }
    }
}

/// What a record of the intake holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Submit {
    /// The id that the message gets.
    pub id: MessageId,
    /// What was asked for.
    pub digest: RequestDigest,
    /// When it is due.
    pub due: Timestamp,
    /// When it was submitted.
    pub at: Timestamp,
    /// What it belongs to.
    pub topic: String,
    /// Target, payload and the rest.
    pub body: Bytes,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The receiver said yes.
    Delivered,
    /// The receiver did not get it, or said no.
    Failed {
        /// What went wrong, for people.
        reason: String,
        /// The least that the receiver wants to be left alone for.
        after: Duration,
        /// The receiver will never take it.
        is_final: bool,
    },
    /// There was no answer: it may have been delivered, and may still be.
    Unknown,
    /// Nothing was sent. The attempt does not count towards dead.
    HandedBack {
        /// How long to wait.
        wait: Duration,
    },
}

/// What a caller is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reply {
    /// The final answer to a command.
    Command(Answer),
    /// Whether there is such a message, and at which version.
    Found(Option<u64>),
    /// The final verdict on a submit.
    Verdict(Verdict),
    /// Nothing was decided here: ask again, another center perhaps (503).
    NotOwner,
}

/// What became of a submit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It is in the log.
    Accepted,
    /// The same request was accepted before.
    Duplicate,
    /// Another request has this id.
    Conflict,
    /// It waited for too long, and is a dead letter of the intake.
    TooOld,
}
