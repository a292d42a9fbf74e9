//! Why a call did not deliver, and what follows from it.

use std::time::Duration;

use super::guard::Refused;
use crate::Failure;

/// Why a call did not deliver its message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
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
    /// It took too long, from looking up the name to the head of the answer. The request may have arrived.
    #[error("the receiver did not answer within {0:?}")]
    TimedOut(Duration),
    /// There was no connection.
    #[error("cannot connect to the receiver: {0}")]
    Connect(String),
    /// The connection broke before the answer was there. The request may have arrived.
    #[error("the connection broke before an answer came: {0}")]
    Broken(String),
    /// The guard does not let it out.
    #[error("the callback url may not be called: {0}")]
    Refused(#[from] Refused),
    /// The call cannot be put into a request.
    #[error("the callback cannot be sent: {0}")]
    Invalid(String),
    /// Nothing was sent: the host has failed too often just now.
    #[error("the circuit of {host}{} is open after failures; nothing was sent", of_topic(topic.as_deref()))]
    CircuitOpen {
        /// The host and its port.
        host: String,
        /// The topic of the message, if the host answers, and fails what is of this topic.
        topic: Option<String>,
        /// When it is worth looking again; `None` if the message has been put off for long enough.
        wait: Option<Duration>,
    },
}

impl CallError {
    /// What it means for the message.
    #[must_use]
    pub fn failure(&self) -> Failure {
        match self {
            Self::Status { status: 410, .. } | Self::Invalid(_) => Failure::Permanent,
            Self::Status {
                retry_after: Some(wait),
                ..
            } => Failure::RetryAfter(*wait),
            Self::TimedOut(_) | Self::Broken(_) => Failure::Unknown,
            Self::Status { .. }
            | Self::Connect(_)
            // What a name resolves to may change, what a URL says does not.
            | Self::Refused(Refused::Resolved { .. })
            | Self::CircuitOpen { wait: None, .. } => Failure::Retry,
            Self::Refused(_) => Failure::Permanent,
            // The host is away: all messages to it wait.
            Self::CircuitOpen {
                wait: Some(wait),
                topic: None,
                ..
            } => Failure::Unavailable(*wait),
            Self::CircuitOpen {
                wait: Some(wait), ..
            } => Failure::Postponed(*wait),
        }
    }

    /// All [kinds](Self::kind).
    pub const KINDS: [&str; 11] = [
        "gone",
        "throttled",
        "redirect",
        "client_error",
        "server_error",
        "timeout",
        "connect",
        "broken",
        "refused",
        "invalid",
        "circuit_open",
    ];

    /// A short name of the kind of error, for metrics.
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
        }
    }

    /// What this says about the host. One that answers 404 is alive and well. A time-out says something only if
    /// the receiver had a fair time to answer: `fair`.
    pub(super) fn host_health(&self, fair: Duration) -> HostHealth {
        match self {
            Self::Status { status, .. } if *status >= 500 => HostHealth::Fails,
            Self::Status { .. } => HostHealth::Works,
            Self::TimedOut(limit) if *limit < fair => HostHealth::Unknown,
            Self::TimedOut(_) | Self::Connect(_) | Self::Broken(_) => HostHealth::IsAway,
            _ => HostHealth::Unknown,
        }
    }
}

/// What a call says about its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostHealth {
    /// It takes what it is sent, or says what is wrong with it.
    Works,
    /// It answers, and cannot serve what is of this topic.
    Fails,
    /// It does not answer.
    IsAway,
    /// Nothing: it was not made, was given little time, or failed for a reason of its own.
    Unknown,
}

fn of_topic(topic: Option<&str>) -> String {
    topic.map_or_else(String::new, |topic| format!(" for {topic}"))
}

fn shown(body: &str) -> String {
    if body.is_empty() {
        String::new()
    } else {
        format!(": {body}")
    }
}
