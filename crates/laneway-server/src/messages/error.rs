//! What can go wrong.

/// What can go wrong with messages, wherever they are kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// As on one machine.
    #[error(transparent)]
    Delay(#[from] laneway_delay::Error),
    /// In a cluster the id is made of the key.
    #[cfg(feature = "cluster")]
    #[error("there are both id and idempotency_key: send one of them")]
    IdAndKey,
    /// The intake gave no answer, or refused. What was sent may be there.
    #[cfg(feature = "cluster")]
    #[error("the broker did not take it: {reason}; send it again{}", again(*.is_safe))]
    Intake {
        reason: String,
        /// A second one is known to be the same.
        is_safe: bool,
    },
    /// A message is in the intake, and no owner said what becomes of it.
    #[cfg(feature = "cluster")]
    #[error(
        "the message is on its way and nothing is decided yet ({reason}): send it again with the same id or key"
    )]
    Undecided { reason: String },
    /// No center answers for a shard.
    #[cfg(feature = "cluster")]
    #[error("{0}; send it again in a moment")]
    NoOwner(#[from] crate::cluster::NoOwner),
    /// A key of a command was used for another command.
    #[cfg(feature = "cluster")]
    #[error("the key was used for another command: choose another one")]
    OtherCommand,
    /// A message has no room for more answers.
    #[cfg(feature = "cluster")]
    #[error("message {0} was extended by a span too often: name the moment instead (`to`)")]
    TooManyCommands(laneway_delay::MessageId),
}

/// What to keep in mind when a message is sent again.
#[cfg(feature = "cluster")]
fn again(is_safe: bool) -> &'static str {
    if is_safe {
        ", it is taken once"
    } else {
        ", with an idempotency key so that it is taken once"
    }
}

impl Error {
    pub(crate) const CLOSED: Self = Self::Delay(laneway_delay::Error::Closed);

    /// Whether the answer is a final no: the message is gone, or cannot be changed any more.
    pub(crate) fn is_no(&self) -> bool {
        use laneway_delay::Error as Delay;
        matches!(self, Self::Delay(Delay::NotFound(_) | Delay::Refused(_)))
    }
}
