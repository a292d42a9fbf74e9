//! How well it is.

use std::fmt;
use std::time::Duration;

use crate::Error;

/// How well delayed messages are: what a probe for readiness or liveness asks.
///
/// ```
/// use laneway_delay::Health;
///
/// let health = Health::default();
/// assert!(health.is_ready() && health.is_live());
/// assert_eq!(health.to_string(), "all is well");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Why messages are not taken, if they are not.
    pub refuses: Option<Error>,
    /// The store has failed and does not come back by itself: the process has to be started again. Nothing is
    /// delivered meanwhile, since it could not be noted.
    pub has_failed: bool,
    /// How many waiting messages cannot be read. The others are delivered.
    pub unreadable: u64,
    /// One of them, for people.
    pub first_unreadable: Option<String>,
    /// By how much the wall clock was set ahead, while that is not believed: messages that are due at a moment of
    /// the wall clock are late by as much.
    pub clock_ahead: Option<Duration>,
    /// A task of the engine that panicked within the last ten minutes, and why. It was started again.
    pub panicked: Option<String>,
}

impl Health {
    /// Whether messages are taken and delivered. What cannot be read, and a clock that is not believed, are
    /// worth a look, and not worth taking the process out of service.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.refuses.is_none() && !self.has_failed
    }

    /// Whether it is of use to go on: if not, the process should be started again.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !self.has_failed
    }

    /// Whether there is nothing to tell.
    #[must_use]
    pub fn is_well(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let refuses = self.refuses.as_ref().map(ToString::to_string);
        let unreadable = (self.unreadable > 0).then(|| {
            let first = self.first_unreadable.as_deref().unwrap_or("unknown");
            format!(
                "{} messages cannot be read and are not delivered, the first of them is {first}",
                self.unreadable
            )
        });
        let clock = self.clock_ahead.map(|ahead| {
            let seconds = ahead.as_secs();
            format!("the wall clock was set ahead by {seconds} s, which is not believed yet")
        });
        let panicked = self.panicked.as_ref();
        let panicked =
            panicked.map(|what| format!("a task panicked and was started again: {what}"));
        let all = [refuses, unreadable, clock, panicked];
        let all: Vec<_> = all.into_iter().flatten().collect();
        if all.is_empty() {
            f.write_str("all is well")
        } else {
            f.write_str(&all.join("; "))
        }
    }
}
