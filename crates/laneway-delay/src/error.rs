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
    /// The disk did not answer in time. What was asked for may have happened, may still happen, or may not.
    #[error(
        "the disk gave no answer within {} s; it may have happened all the same: look, or ask again \
         with the same id or idempotency key",
        .0.as_secs()
    )]
    Unanswered(Duration),
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
