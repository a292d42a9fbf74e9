//! What can go wrong.

/// An error of the registry.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server did not answer.
    #[error("the registry is away: {detail}; nothing is decided by it, retrying")]
    Away {
        /// What happened.
        detail: String,
    },
    /// The server refused, and would again.
    #[error("the registry refuses: {detail}; check its permissions")]
    Refused {
        /// What it said.
        detail: String,
    },
    /// A name that cannot be used.
    #[error("{0:?} cannot be the name of a lock: use 1 to 128 letters, digits, - and _")]
    Name(String),
    /// The runtime of the registry has ended.
    #[error("the registry is closed")]
    Closed,
}

impl Error {
    pub(crate) fn away(error: impl std::fmt::Display) -> Self {
        Self::Away {
            detail: error.to_string(),
        }
    }
}
