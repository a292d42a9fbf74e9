//! What can be wrong with a store, in the broker's words.

use std::path::Path;

use laneway_disk::StoreError;

use crate::broker::BrokerError;
use crate::topic::TopicName;

/// What the failure of a directory is in the broker's words.
pub(super) fn error(failure: &StoreError, directory: &Path) -> BrokerError {
    let directory = || directory.display().to_string();
    match failure {
        StoreError::Full => BrokerError::DiskFull {
            directory: directory(),
        },
        StoreError::NoDescriptor => BrokerError::Io {
            doing: format!(
                "syncing {}: it goes on by itself when a file descriptor is free; allow the process more of them",
                directory()
            ),
            source: std::io::ErrorKind::ResourceBusy.into(),
        },
        StoreError::Unavailable(reason) => BrokerError::Io {
            doing: format!("writing {}: it goes on by itself when it can", directory()),
            source: std::io::Error::other(reason.clone()),
        },
        StoreError::Failed(reason) => BrokerError::Poisoned(reason.clone()),
        StoreError::Closed => BrokerError::Closed,
    }
}

/// Whether a directory that was not opened may be opened later.
pub(super) fn passes(error: &BrokerError) -> bool {
    matches!(
        error,
        BrokerError::DiskFull { .. } | BrokerError::InUse { .. } | BrokerError::Io { .. }
    )
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
            Error::Format {
                what,
                found,
                supported,
            } => Self::Format {
                what,
                found,
                supported,
            },
            Error::Io { doing, source } => Self::Io { doing, source },
            error => Self::Poisoned(error.to_string()),
        }
    }
}

/// A place in a topic, for people.
pub(super) fn place(topic: &TopicName, partition: u32, offset: u64) -> String {
    format!("topic {topic}, partition {partition}, offset {offset}")
}
