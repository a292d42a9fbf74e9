//! What can be wrong with a store, in the broker's words.

use std::path::Path;

pub(super) use laneway_disk::is_full;

use crate::broker::BrokerError;
use crate::topic::TopicName;

/// Why nothing can be written now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The disk is full. It passes.
    Full,
    /// The disk failed, or the engine did. It stays.
    Failed(String),
    /// The store is closed.
    Closed,
}

impl Trouble {
    pub(super) fn error(&self, directory: &Path) -> BrokerError {
        match self {
            Self::Full => BrokerError::DiskFull {
                directory: directory.display().to_string(),
            },
            Self::Failed(reason) => BrokerError::Poisoned(reason.clone()),
            Self::Closed => BrokerError::Closed,
        }
    }
}

/// What an error of the engine means when `what` is read.
pub(super) fn reading(what: impl FnOnce() -> String, error: fjall::Error) -> BrokerError {
    laneway_disk::Error::reading(what, error).into()
}

impl From<laneway_disk::Error> for BrokerError {
    fn from(error: laneway_disk::Error) -> Self {
        use laneway_disk::Error;
        match error {
            Error::InUse { directory } => Self::InUse { directory },
            Error::Full { directory } => Self::DiskFull { directory },
            Error::Damaged { what, detail } => Self::Damaged { what, detail },
            Error::Io { doing, source } => Self::Io { doing, source },
            error => Self::Poisoned(error.to_string()),
        }
    }
}

/// A place in a topic, for people.
pub(super) fn place(topic: &TopicName, partition: u32, offset: u64) -> String {
    format!("topic {topic}, partition {partition}, offset {offset}")
}
