//! Why a call did not deliver, and what follows from it.

use std::time::Duration;

use super::guard::Refused;
use crate::Failure;

/// Why a call did not deliver its message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Trouble {
    /// The receiver answered, and not with 2xx.
    #[error("the receiver answered {status}{}", shown(body))]
    Status {
        /// What it answered.
        status: u16,
        /// What it asked to wait, bounded.
        retry_after: Option<Duration>,
        /// The beginning of its answer, as far as it is text.
        body: String,
    },
    /// It took too long, from the first byte out to the head of the answer.
    #[error("the receiver did not answer within {0:?}")]
    TimedOut(Duration),
    /// There was no connection.
    #[error("cannot connect to the receiver: {0}")]
    Connect(String),
    /// The connection broke before the answer was there.
    #[error("the connection broke before an answer came: {0}")]
    Broken(String),
    /// The guard does not let it out.
    #[error("the callback url may not be called: {0}")]
    Refused(#[from] Refused),
    /// The call cannot be put into a request.
    #[error("the callback cannot be sent: {0}")]
    Invalid(String),
    /// Nothing was sent: the host has failed too often just now.
    #[error("the circuit of {host} is open after failures; nothing was sent")]
    CircuitOpen {
        /// The host and its port.
        host: String,
        /// When it is worth looking again; `None` if the message has been put off for long enough.
        wait: Option<Duration>,
    },
    /// Nothing was sent: too many calls to this host wait already.
    #[error("too many callbacks wait for {host}; nothing was sent")]
    Busy {
        /// The host and its port.
        host: String,
        /// When it is worth looking again.
        wait: Duration,
    },
}

/// What follows from a [`Trouble`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Next {
    /// The attempt failed.
    Fail(Failure),
    /// There was no attempt. The message is to be tried again after this time, with nothing
    /// counted against it.
    Postpone(Duration),
}

impl Trouble {
    /// What follows.
    #[must_use]
    pub fn next(&self) -> Next {
        match self {
            Self::Status { status: 410, .. } => Next::Fail(Failure::Permanent),
            Self::Status {
                retry_after: Some(wait),
                ..
            } => Next::Fail(Failure::RetryAfter(*wait)),
            Self::Status { .. }
            | Self::TimedOut(_)
            | Self::Connect(_)
            | Self::Broken(_)
            // What a name resolves to may change, what a URL says does not.
            | Self::Refused(Refused::Resolved { .. })
            | Self::CircuitOpen { wait: None, .. } => Next::Fail(Failure::Retry),
            Self::Refused(_) | Self::Invalid(_) => Next::Fail(Failure::Permanent),
            Self::CircuitOpen {
                wait: Some(wait), ..
            }
            | Self::Busy { wait, .. } => Next::Postpone(*wait),
        }
    }

    /// A short name of the kind of trouble, for figures.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Status { status: 410, .. } => "gone",
            Self::Status { status: 429, .. } => "throttled",
            Self::Status { status, .. } if *status < 400 => "redirect",
            Self::Status { status, .. } if *status < 500 => "client_error",
            Self::Status { .. } => "server_error",
            Self::TimedOut(_) => "timeout",
            Self::Connect(_) => "connect",
            Self::Broken(_) => "broken",
            Self::Refused(_) => "refused",
            Self::Invalid(_) => "invalid",
            Self::CircuitOpen { .. } => "circuit_open",
            Self::Busy { .. } => "busy",
        }
    }

    /// Whether this says that the host is in trouble. One that answers 404 is alive and well.
    pub(super) fn is_of_the_host(&self) -> bool {
        match self {
            Self::Status { status, .. } => *status >= 500,
            Self::TimedOut(_) | Self::Connect(_) | Self::Broken(_) => true,
            _ => false,
        }
    }
}

fn shown(body: &str) -> String {
    if body.is_empty() {
        String::new()
    } else {
        format!(": {body}")
    }
}
