//! What the server would not do.

use std::fmt;

use crate::broker::BrokerError;

/// Something that failed on the server, or on the way to it.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    pub(super) doing: &'static str,
    pub(super) detail: String,
}

impl Trouble {
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

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.doing, self.detail)
    }
}
