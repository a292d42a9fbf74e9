//! What can be wrong with a store, in the broker's words.

use std::io;
use std::path::Path;

use fjall::LsmError;

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

/// Whether there was no room.
pub(super) fn is_full(error: &fjall::Error) -> bool {
    let (fjall::Error::Io(error) | fjall::Error::Storage(LsmError::Io(error))) = error else {
        return false;
    };
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// An error of the engine in plain words, where there are any.
pub(super) fn told(error: &fjall::Error) -> String {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(LsmError::Io(error)) => error.to_string(),
        fjall::Error::Poisoned => "the engine's background work has failed".to_owned(),
        error => error.to_string(),
    }
}

/// What an error of the engine means when `what` is read.
pub(super) fn reading(what: impl FnOnce() -> String, error: fjall::Error) -> BrokerError {
    match error {
        fjall::Error::Io(source) | fjall::Error::Storage(LsmError::Io(source))
            if !is_damage(&source) =>
        {
            BrokerError::Io {
                doing: format!("reading {}", what()),
                source,
            }
        }
        error => BrokerError::Damaged {
            what: what(),
            detail: error.to_string(),
        },
    }
}

/// Errors of the system that come from what is on the disk, rather than from the disk.
fn is_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof
            | io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::NotFound
            | io::ErrorKind::Other
    )
}

/// A place in a topic, for people.
pub(super) fn place(topic: &TopicName, partition: u32, offset: u64) -> String {
    format!("topic {topic}, partition {partition}, offset {offset}")
}
