//! Calls to the server that failed.

use std::fmt;

use crate::broker::BrokerError;

/// A call that failed on the server, or on the way to it.
#[derive(Clone, Debug)]
pub(super) struct NatsError {
    pub(super) doing: &'static str,
    pub(super) detail: String,
}

impl NatsError {
    pub(super) fn new(doing: &'static str, error: impl fmt::Display) -> Self {
        Self {
            doing,
            detail: error.to_string(),
        }
    }

    pub(super) fn at(self, server: &str) -> BrokerError {
        BrokerError::Server {
            server: server.to_owned(),
            doing: self.doing,
            detail: self.detail,
        }
    }
}

impl fmt::Display for NatsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.doing, self.detail)
    }
}
