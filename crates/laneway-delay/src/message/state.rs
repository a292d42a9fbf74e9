use std::fmt;

use crate::Timestamp;

/// Where a message is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Scheduled: for its due time, or for the next attempt after a failure.
    Scheduled {
        /// When it may be fired. Never before the due time.
        at: Timestamp,
    },
    /// It is being delivered.
    Firing {
        /// When that attempt started.
        since: Timestamp,
    },
    /// Delivered. Final.
    Delivered {
        /// When the receiver said yes.
        at: Timestamp,
    },
    /// Given up. Final.
    Dead {
        /// When it was given up.
        at: Timestamp,
        /// Why it was given up.
        cause: DeathCause,
    },
    /// Taken back before it fired, or stopped. Final.
    Withdrawn {
        /// When it was taken back.
        at: Timestamp,
    },
}

impl State {
    /// Whether nothing can change any more.
    ///
    /// ```
    /// use laneway_delay::{State, Timestamp};
    ///
    /// let at = Timestamp::from_millis(0);
    /// assert!(State::Withdrawn { at }.is_final());
    /// assert!(!State::Scheduled { at }.is_final());
    /// ```
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Scheduled { .. } | Self::Firing { .. } => false,
            Self::Delivered { .. } | Self::Dead { .. } | Self::Withdrawn { .. } => true,
        }
    }

    /// The name of the state, as it is shown to people and programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scheduled { .. } => "scheduled",
            Self::Firing { .. } => "firing",
            Self::Delivered { .. } => "delivered",
            Self::Dead { .. } => "dead",
            Self::Withdrawn { .. } => "withdrawn",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a message was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeathCause {
    /// Every attempt that the schedule allows has failed.
    Exhausted,
    /// The receiver said that it will never take it.
    Rejected,
}

/// The version of a record. It grows by one with every transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// The version of a record that has just been made.
    pub const FIRST: Self = Self(1);

    /// A version as it was stored or sent by a caller.
    #[must_use]
    pub const fn from_u64(version: u64) -> Self {
        Self(version)
    }

    /// The version as a number, to be stored or shown.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    pub(super) const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
