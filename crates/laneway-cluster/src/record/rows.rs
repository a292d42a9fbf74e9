use bytes::Bytes;
use laneway_delay::{MessageId, Timestamp};

use super::{Image, Instance, Key, RequestDigest, RowDigest};
use crate::apply::Identity;

/// One row of a fact.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Row {
    /// Something happened to a message.
    Message(MessageRow),
    /// From here on the log is made complete by itself: every needed row is carried behind it. Alone in its fact.
    Open(Open),
    /// All needed rows have an image behind the `open` that it names. Alone in its fact.
    Close(Close),
}

/// A change of one message. It counts only on the version before the one that it makes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MessageRow {
    /// The message that changes.
    pub id: MessageId,
    /// The version that it makes. It is based on the one before it; an id that nothing is known of has version 0.
    pub version: u64,
    /// What happened.
    pub change: Change,
}

/// What can happen to a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Change {
    /// It was taken from the intake.
    Accepted {
        /// When it is due.
        due: Timestamp,
        /// When it was submitted.
        at: Timestamp,
        /// What was asked for.
        digest: RequestDigest,
        /// What it belongs to.
        topic: String,
        /// Target, payload and the rest, which no decision depends on.
        body: Bytes,
    },
    /// An attempt was given to a worker, which may start it as soon as this is read back.
    Begun {
        /// Which attempt, from 1.
        attempt: u32,
        /// The worker that it was given to.
        worker: Instance,
        /// When the owner decided it.
        at: Timestamp,
    },
    /// The worker said that it has not started the attempt, and will not.
    Unstarted {
        /// The attempt that was begun, from 1.
        attempt: u32,
        /// When the next one is due.
        again: Timestamp,
        /// When the worker was heard.
        at: Timestamp,
    },
    /// An attempt delivered it.
    Delivered {
        /// The attempt that did, from 1.
        attempt: u32,
        /// When the worker was heard.
        at: Timestamp,
    },
    /// An attempt failed.
    Failed {
        /// The attempt that did, from 1.
        attempt: u32,
        /// What follows, if it was the newest one.
        next: Next,
        /// What went wrong, for people.
        reason: String,
        /// When the worker was heard.
        at: Timestamp,
    },
    /// It is due later.
    Extended {
        /// When it is due now.
        due: Timestamp,
        /// Who asked for it.
        command: Option<Command>,
        /// When the owner decided it.
        at: Timestamp,
    },
    /// It was taken back: no attempt has started, and none will.
    Withdrawn {
        /// Who asked for it.
        command: Option<Command>,
        /// When the owner decided it.
        at: Timestamp,
    },
    /// No further attempts. It may have been delivered.
    Stopped {
        /// Who asked for it.
        command: Option<Command>,
        /// When the owner decided it.
        at: Timestamp,
    },
    /// It was given up without a further attempt.
    Dead {
        /// What it was given up for.
        cause: Cause,
        /// When the owner decided it.
        at: Timestamp,
    },
    /// A dead message ended, and a new one with the same contents was made, in this one row.
    Replayed {
        /// The new one, in the same shard.
        to: MessageId,
        /// Who asked for it.
        command: Option<Command>,
        /// When; the new one is due then.
        at: Timestamp,
    },
    /// The next attempt is at another moment. Doubts stay.
    Rescheduled {
        /// The moment of the next attempt.
        again: Timestamp,
        /// When that was decided.
        at: Timestamp,
    },
    /// An operator removed an ended message.
    Purged {
        /// Who asked for it.
        command: Option<Command>,
        /// When the owner decided it.
        at: Timestamp,
    },
    /// A command with a key was refused.
    Answered {
        /// The command.
        command: Command,
        /// The answer, also to the same command when it comes again.
        answer: Answer,
        /// When the owner refused it.
        at: Timestamp,
    },
    /// All that is known of the message, so that what is before the last `open` can be trimmed.
    Carried {
        /// All of it.
        image: Box<Image>,
    },
    /// It is not needed any more.
    Forgotten(Forgotten),
}

/// What is not needed any more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Forgotten {
    /// The ended message and its answers.
    Message,
    /// Some answers.
    Keys(Vec<Key>),
}

/// What follows a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Next {
    /// Another one at this moment.
    Again(Timestamp),
    /// No further one: the message is given up.
    Dead(Cause),
}

/// Which command with a key led to a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Command {
    /// What was asked for.
    pub verb: Verb,
    /// The key.
    pub key: Key,
    /// The request as it was written: a key with another digest is another command.
    pub digest: RequestDigest,
}

/// What can be asked of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Verb {
    /// To be delivered later.
    Extend,
    /// To be taken back.
    Withdraw,
    /// To be tried no more.
    Stop,
    /// To be sent again although it is dead.
    Replay,
    /// To be removed.
    Purge,
}

/// The final answer to a command.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Answer {
    /// Yes. For an extend: when it is due now.
    Done {
        /// When the message is due.
        due: Timestamp,
    },
    /// No, for this reason.
    Refused(Refusal),
}

/// Why a command was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// Nothing is known of that id (404).
    Unknown,
    /// The message has ended, or has not, as the command wants it (409).
    WrongState,
    /// An attempt may have delivered it (409).
    MayHaveBeenDelivered,
    /// It would not be due later (409).
    NotLater,
    /// The key belongs to another command (422).
    OtherCommand,
    /// The message has as many answers as it can carry (429).
    TooManyCommands,
}

/// The start of a log that is complete by itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Open {
    /// Which log this is.
    pub identity: Identity,
    /// The newest format that the log may have.
    pub format: u8,
    /// The offset behind the last fact that forgot something.
    pub forgotten: u64,
}

/// The end of what [`Open`] started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Close {
    /// The epoch of the fact with the `open`.
    pub epoch: u64,
    /// The sequence of the fact with the `open`.
    pub sequence: u64,
    /// How many rows there are.
    pub rows: u64,
    /// The digest of all of them.
    pub digest: RowDigest,
}

impl MessageRow {
    /// The version that it is based on.
    #[must_use]
    pub const fn base(&self) -> u64 {
        self.version.saturating_sub(1)
    }
}

impl Change {
    /// The command that led to it, if one did.
    #[must_use]
    pub const fn command(&self) -> Option<&Command> {
        match self {
            Self::Extended { command, .. }
            | Self::Withdrawn { command, .. }
            | Self::Stopped { command, .. }
            | Self::Replayed { command, .. }
            | Self::Purged { command, .. } => command.as_ref(),
            Self::Answered { command, .. } => Some(command),
            _ => None,
        }
    }
}

/// Why a message was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Every attempt that its schedule allows has failed.
    Exhausted,
    /// The receiver said that it will never take it.
    Rejected,
}

impl From<Cause> for laneway_delay::DeathCause {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Exhausted => Self::Exhausted,
            Cause::Rejected => Self::Rejected,
        }
    }
}
