use std::io;
use std::path::Path;

use fjall::LsmError;

/// What can be wrong with a directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process has it.
    #[error("{directory} is in use by another process")]
    InUse {
        /// The directory.
        directory: String,
    },
    /// There is no room.
    #[error("the disk of {directory} is full")]
    Full {
        /// The directory.
        directory: String,
    },
    /// What is there is not what was written.
    #[error("{what} is damaged: {detail}")]
    Damaged {
        /// Which part of it.
        what: String,
        /// What is wrong with it.
        detail: String,
    },
    /// Another version of this program made it. Nothing is wrong with it.
    #[error(
        "{what} is of format {found:?}, and this program reads {supported:?}: open it with a version that reads {found:?}"
    )]
    Format {
        /// Which directory.
        what: String,
        /// The format that it has: a name and a version.
        found: String,
        /// The format that this program reads.
        supported: String,
    },
    /// The system said no.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// What an error of the engine means when a directory is opened.
    #[must_use]
    pub fn opening(path: &Path, error: fjall::Error) -> Self {
        match error {
            error if is_full(&error) => Self::Full {
                directory: path.display().to_string(),
            },
            fjall::Error::Locked => Self::InUse {
                directory: path.display().to_string(),
            },
            error => Self::reading(|| path.display().to_string(), error),
        }
    }

    /// What an error of the engine means when `what` is read.
    #[must_use]
    pub fn reading(what: impl FnOnce() -> String, error: fjall::Error) -> Self {
        match error {
            fjall::Error::Io(source) | fjall::Error::Storage(LsmError::Io(source))
                if !is_damage(&source) =>
            {
                Self::Io {
                    doing: format!("reading {}", what()),
                    source,
                }
            }
            fjall::Error::InvalidVersion(Some(version)) => Self::Format {
                what: what(),
                found: format!("fjall {version}"),
                supported: "fjall 3".to_owned(),
            },
            error => Self::Damaged {
                what: what(),
                detail: error.to_string(),
            },
        }
    }
}

/// Whether there was no room.
#[must_use]
pub fn is_full(error: &fjall::Error) -> bool {
    let (fjall::Error::Io(error) | fjall::Error::Storage(LsmError::Io(error))) = error else {
        return false;
    };
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// An error of the engine in plain words, where there are any.
#[must_use]
pub fn told(error: &fjall::Error) -> String {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(LsmError::Io(error)) => error.to_string(),
        fjall::Error::Poisoned => "the engine's background work has failed".to_owned(),
        error => error.to_string(),
    }
}

/// Errors of the system that come from what is on the disk, rather than from the disk.
pub(crate) fn is_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof
            | io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::NotFound
            | io::ErrorKind::Other
    )
}
