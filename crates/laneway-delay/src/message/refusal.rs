use std::fmt;

use super::{State, Version};
use crate::Timestamp;

/// A transition that did not happen, and the state that won.
///
/// ```
/// use laneway_delay::{Record, Timestamp};
///
/// let now = Timestamp::from_millis(0);
/// let record = Record::scheduled(Timestamp::from_millis(500));
/// let gone = record.withdraw(record.version(), now)?;
///
/// let refusal = gone.extend(gone.version(), now, Timestamp::from_millis(900)).unwrap_err();
/// assert_eq!(refusal.to_string(), "cannot extend: the message is withdrawn");
/// # Ok::<(), laneway_delay::Refusal>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {action}: {}", self.explain())]
pub struct Refusal {
    /// What was asked for.
    pub action: Action,
    /// Why it was refused.
    pub reason: Reason,
    /// The version of the record as it stands.
    pub version: Version,
    /// The state of the record as it stands.
    pub state: State,
}

impl Refusal {
    fn explain(&self) -> String {
        let Self { version, state, .. } = self;
        match self.reason {
            Reason::Stale { expected } => format!(
                "version {expected} was expected, but the message is {state} at version {version}; \
                 read it again and decide again"
            ),
            Reason::WrongState => format!("the message is {state}"),
            Reason::InDoubt => {
                "an attempt gave no answer, so the message may have been delivered; \
                 withdraw it with stop to end it all the same"
                    .to_owned()
            }
            Reason::TooEarly { now } => match state {
                State::Scheduled { at } => format!("it is {now}, and the message fires at {at}"),
                _ => format!("it is {now}, and the message is {state}"),
            },
            Reason::NotLater { due, after } => {
                format!("the new due time {due} is not later than {after}")
            }
        }
    }
}

/// Why a transition was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The record has changed since the caller saw it.
    Stale {
        /// The version that the caller had seen.
        expected: Version,
    },
    /// The state of the message does not allow it.
    WrongState,
    /// An attempt gave no answer: the message may have been delivered, or may still be by that attempt.
    InDoubt,
    /// The message may not fire yet.
    TooEarly {
        /// The caller's time.
        now: Timestamp,
    },
    /// An extension has to lead to a later moment.
    NotLater {
        /// The due time that was asked for.
        due: Timestamp,
        /// What it has to be later than: now, or when the message would fire.
        after: Timestamp,
    },
}

/// What can be asked of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Take it to deliver it.
    Claim,
    /// Report success.
    Deliver,
    /// Report failure.
    Fail,
    /// Give it back because the process that was firing it is gone.
    Interrupt,
    /// Move it later.
    Extend,
    /// Take it back.
    Withdraw,
    /// Make a new message of a dead one.
    Replay,
    /// Forget it.
    Purge,
    /// Put another one in its place.
    Replace,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Claim => "claim",
            Self::Deliver => "deliver",
            Self::Fail => "fail",
            Self::Interrupt => "interrupt",
            Self::Extend => "extend",
            Self::Withdraw => "withdraw",
            Self::Replay => "replay",
            Self::Purge => "purge",
            Self::Replace => "replace",
        })
    }
}
