use laneway_cluster::apply::{Identity, StoredError};

/// What can be wrong with a view.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The directory, its files or the engine in them.
    #[error(transparent)]
    Disk(#[from] laneway_disk::Error),
    /// What is there is not what was written.
    #[error("{what} is damaged: {detail}")]
    Damaged {
        /// Which part of the view.
        what: String,
        /// What is wrong with it.
        detail: String,
    },
    /// Another version of Laneway wrote it.
    #[error("{what}: {source}")]
    Stored {
        /// Which part of the view.
        what: String,
        /// What is wrong with it.
        source: StoredError,
    },
    /// It is the view of another log.
    #[error("the view is that of {found:?}, not of {expected:?}")]
    OtherLog {
        /// What the view says.
        found: Box<Identity>,
        /// What was asked for.
        expected: Box<Identity>,
    },
    /// Something failed before, and nothing of the view is believed any more.
    #[error("the view has failed before: {0}")]
    Failed(String),
    /// The view was closed, or set aside.
    #[error("the view is closed")]
    Closed,
}

impl Error {
    pub(crate) fn damaged(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Damaged {
            what: what.into(),
            detail: detail.into(),
        }
    }

    /// An error of the engine while `what` was read.
    pub(crate) fn reading(what: &str, error: fjall::Error) -> Self {
        Self::Disk(laneway_disk::Error::reading(|| what.to_owned(), error))
    }

    /// Whether it comes from what the directory holds, so that an empty view in its place cures it.
    pub(crate) const fn is_of_contents(&self) -> bool {
        match self {
            Self::Disk(error) => matches!(
                error,
                laneway_disk::Error::Damaged { .. } | laneway_disk::Error::Format { .. }
            ),
            Self::Damaged { .. } | Self::Stored { .. } | Self::OtherLog { .. } => true,
            Self::Failed(_) | Self::Closed => false,
        }
    }
}
