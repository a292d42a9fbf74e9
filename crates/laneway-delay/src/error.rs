use std::time::Duration;

use crate::{MessageId, Refusal};

/// What can go wrong with delayed messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Something that was handed in cannot be taken.
    #[error("{field}: {problem}")]
    Invalid {
        /// Which part of it.
        field: &'static str,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// There is no such message, or it ended so long ago that it is forgotten.
    #[error("there is no message {0}; ended messages are forgotten after a while")]
    NotFound(MessageId),
    /// The message is in a state that does not allow it. The answer is final.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The id is that of a message with other contents.
    #[error("id: {0} names another message already; choose another id")]
    IdTaken(MessageId),
    /// The idempotency key was used for something else.
    #[error(
        "idempotency_key: {key:?} was used for message {id}, which is not the same; \
         choose another key"
    )]
    KeyReused {
        /// The key.
        key: String,
        /// The message that it was used for.
        id: MessageId,
    },
    /// The disk is full. It goes on by itself when there is room.
    #[error("the disk of {directory} is full; make room, it goes on by itself then")]
    DiskFull {
        /// Where the messages are.
        directory: String,
    },
    /// Another process has the directory.
    #[error("{directory} is in use by another process; stop it, or choose another directory")]
    InUse {
        /// Where the messages are.
        directory: String,
    },
    /// The messages of the directory left for a cluster, or are on their way there.
    #[error("the messages in {directory} are not for this process: {what}")]
    Moved {
        /// Where the messages are, or were.
        directory: String,
        /// Where they go, and what to do.
        what: String,
    },
    /// What is on disk is not what was written.
    #[error("{what} is damaged: {detail}; restore it from a copy")]
    Damaged {
        /// Which part of it.
        what: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The store has failed; nothing is accepted until it is opened anew.
    #[error("the store has failed: {0}; start the process again")]
    Failed(String),
    /// Another version of this program made the store. Nothing is wrong with it.
    #[error(
        "{what} is of format {found:?}, and this program reads {supported:?}: open it with a version that reads {found:?}"
    )]
    Format {
        /// Which directory.
        what: String,
        /// The format that it has: a name and a version.
        found: String,
        /// The format that this program reads.
        supported: String,
    },
    /// The store cannot be used now, for a reason that may pass: a disk that is full, no descriptor left.
    #[error("the store cannot be used now: {0}; it goes on by itself when that has passed")]
    Unavailable(String),
    /// The disk did not answer in time. What was asked for may have happened, may still happen, or may not.
    #[error(
        "the disk gave no answer within {} s; it may have happened all the same: look, or ask again \
         with the same id or idempotency key",
        .0.as_secs()
    )]
    Unanswered(Duration),
    /// The disk failed while this was being written. It may be there nevertheless: what was asked for may have happened.
    #[error(
        "the disk failed meanwhile ({0}); it may have happened all the same: look, or ask again with the same id or \
         idempotency key"
    )]
    Unconfirmed(String),
    /// It was closed.
    #[error("it is closed")]
    Closed,
}

impl Error {
    pub(crate) fn invalid(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Invalid {
            field,
            problem: problem.into(),
        }
    }
}
