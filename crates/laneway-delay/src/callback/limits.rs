//! How long calls may take, and when a circuit opens.

use std::time::Duration;

use super::breaker::Policy;

/// How long callbacks may take, how many connections are kept, and when a circuit opens.
///
/// How many callbacks run at once, in all and per host, is decided by the engine before it starts an attempt:
/// [`Options::callbacks`](crate::Options::callbacks) and [`Options::per_host`](crate::Options::per_host).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// How long a call may take where the message does not say: from looking up the name to the
    /// head of the answer. Half of it is the longest time until there is a connection, whatever the message says: a
    /// host that cannot be connected to is known not to have got the message.
    pub timeout: Duration,
    /// The longest time that a message can ask for.
    pub max_timeout: Duration,
    /// Connections that are kept for the next call, over all hosts. Each is closed when it was idle for
    /// 30 s.
    pub idle: usize,
    /// Failures in a row after which nothing is sent to a host, or nothing of a topic, for a while.
    pub failures_to_open: u32,
    /// The first such while. It doubles with each probe that fails.
    pub open_for: Duration,
    /// The longest such while.
    pub open_for_at_most: Duration,
    /// How far past its due time a message is still put off for an open circuit.
    pub max_postponed: Duration,
    /// The longest `Retry-After` that is respected.
    pub max_retry_after: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            max_timeout: Duration::from_mins(5),
            idle: 1_024,
            failures_to_open: 10,
            open_for: Duration::from_secs(5),
            open_for_at_most: Duration::from_mins(1),
            max_postponed: Duration::from_hours(1),
            max_retry_after: Duration::from_hours(1),
        }
    }
}

impl Limits {
    /// How long a receiver has to be given before a time-out counts against its host: the usual limit, or
    /// 5 s if that is less.
    #[must_use]
    pub fn fair(&self) -> Duration {
        self.timeout.min(Duration::from_secs(5))
    }

    pub(super) fn policy(&self) -> Policy {
        Policy {
            failures_to_open: self.failures_to_open,
            first_wait: self.open_for,
            longest_wait: self.open_for_at_most,
        }
    }
}
