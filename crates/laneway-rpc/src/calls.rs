//! What a center is asked.

use laneway_delay::BoxFuture;

use crate::proto::{Reply, Request};

/// Something that answers for a center: the center itself, or a client of one that runs elsewhere.
pub trait CenterCalls: Send + Sync + 'static {
    /// Asks. Every implementation has a deadline.
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, CallError>>;
}

/// Why a call has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// There is no connection, or it broke. What was asked for may have happened.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// There was no answer in time. What was asked for may have happened, and may still happen.
    #[error("it gave no answer in time")]
    Deadline,
    /// One of the two sides does not trust the certificate of the other, or has none.
    #[error(
        "there is no trust between the two sides: {0}; check the certificates and who signed them"
    )]
    NotTrusted(String),
    /// The center refused the request as it is.
    #[error("it refused: {0}")]
    Refused(String),
}

impl CallError {
    /// Whether the same request may get an answer later. Requests that change something need a key then, or be such that
    /// twice is the same as once.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Deadline)
    }
}
