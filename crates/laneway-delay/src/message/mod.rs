//! The state machine of one message, pure.
//!
//! ```text
//!               claim                 deliver
//!  Scheduled ───────────►  Firing  ───────────►  Delivered
//!   │  ▲  ▲                 │  │
//!   │  │  └── fail (retry), ┘  └── fail (last) ►  Dead
//!   │  │      interrupt
//!   │  └ extend
//!   └───────── withdraw ───────────────────────►  Withdrawn
//! ```
//!
//! `stop` leads from `Scheduled` and `Firing` to `Withdrawn`, and says what a withdraw must not: the message may have been
//! delivered.
//!
//! `Delivered`, `Dead` and `Withdrawn` are final. Nothing leads out of them, so extending never
//! revives a message. Sending a dead message again makes a new message.
//!
//! # How two changes meet
//!
//! A [`Record`] is a value with a [`Version`]. A transition takes the version that the caller has
//! seen, leaves the old record alone and returns the next one, one version higher. The store
//! writes it only if the stored version is still the expected one (compare-and-set). So of two
//! changes that start from the same version, one wins. The other one gets a [`Refusal`], which
//! carries the state that won: that is the final answer to its caller.
//!
//! A worker fires only after its `claim` was written. A `withdraw` that was written before makes
//! that claim fail. That is all it takes for "withdrawn means no callback starts".

mod refusal;
mod state;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use refusal::{Action, Reason, Refusal};
pub use state::{DeathCause, State, Version};

use crate::{Schedule, Timestamp};

/// What the store holds about the life of one message.
///
/// The due time is the one that the sender asked for. It is changed by [`extend`](Self::extend)
/// and by nothing else: a retry has its own moment, in [`State::Scheduled`], which is never before
/// the due time.
///
/// ```
/// use std::time::Duration;
/// use laneway_delay::{Failure, Record, Schedule, State, Timestamp};
///
/// let due = Timestamp::from_millis(60_000);
/// let record = Record::scheduled(due);
///
/// let firing = record.claim(record.version(), due)?;
/// let waiting = firing.fail(firing.version(), due, Failure::Retry, &Schedule::default())?;
///
/// assert_eq!(waiting.state(), State::Scheduled { at: due + Duration::from_secs(1) });
/// assert_eq!(waiting.due(), due);
/// assert_eq!(waiting.attempts(), 1);
/// # Ok::<(), laneway_delay::Refusal>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    version: Version,
    due: Timestamp,
    /// Attempts that were started, however they ended: what a callback shows as its number.
    attempts: u32,
    /// Attempts that are known to have failed: what the retry schedule counts.
    failures: u32,
    /// Whether an attempt may have delivered it without an answer.
    in_doubt: bool,
    state: State,
}

/// How an attempt failed, as far as it decides what comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// Worth another try, when the schedule says so.
    Retry,
    /// Worth another try, but not before this much time has passed (`Retry-After`). The longer one
    /// of this and the scheduled wait counts. Who reads it from the network bounds it.
    RetryAfter(Duration),
    /// Trying again is pointless: the receiver said that it will never take this message.
    Permanent,
    /// Nothing was sent, because the receiver is known not to take anything now. Worth another
    /// look after this time; no attempt is counted. Who says so bounds how long it goes on.
    Postponed(Duration),
    /// The attempt gave no answer: it may have delivered the message, and may still do so. Worth another
    /// try. From then on the message can neither be moved nor taken back, only [stopped](Record::stop).
    Unknown,
    /// The same, and not worth another try before this much time has passed.
    UnknownAfter(Duration),
    /// Nothing was sent, because the destination takes nothing now, whichever message. All that go there
    /// wait for this time; no attempt is counted. Who says so bounds how long it goes on.
    Unavailable(Duration),
}

impl Failure {
    /// Whether the attempt may have delivered the message.
    #[must_use]
    pub const fn is_unknown(self) -> bool {
        matches!(self, Self::Unknown | Self::UnknownAfter(_))
    }
}

impl Record {
    /// A new message that is due at `due`.
    #[must_use]
    pub const fn scheduled(due: Timestamp) -> Self {
        Self {
            version: Version::FIRST,
            due,
            attempts: 0,
            failures: 0,
            in_doubt: false,
            state: State::Scheduled { at: due },
        }
    }

    /// A record as it was stored.
    #[must_use]
    pub const fn restore(
        version: Version,
        due: Timestamp,
        attempts: u32,
        failures: u32,
        state: State,
    ) -> Self {
        Self {
            version,
            due,
            attempts,
            failures,
            in_doubt: false,
            state,
        }
    }

    /// The same, in doubt or not: see [`is_in_doubt`](Self::is_in_doubt).
    #[must_use]
    pub const fn in_doubt(self, in_doubt: bool) -> Self {
        Self { in_doubt, ..self }
    }

    /// The version of this record, to be handed to the next transition.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// When the sender wants the message delivered. Lateness is measured from here.
    #[must_use]
    pub const fn due(&self) -> Timestamp {
        self.due
    }

    /// How many attempts were started.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// How many attempts are known to have failed.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether an attempt ended without an answer, so that the message may have been delivered although it
    /// is not [`State::Delivered`]. What a later attempt is answered says nothing about that one: the doubt stays.
    #[must_use]
    pub const fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Where the message is in its life.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Scheduled → Firing: a worker takes the message to deliver it now.
    ///
    /// # Errors
    ///
    /// Refused when the record has changed since, when it is not scheduled, and before its time,
    /// whatever the caller's timer said.
    pub fn claim(&self, expected: Version, now: Timestamp) -> Result<Self, Refusal> {
        let at = self.expect_scheduled(Action::Claim, expected)?;
        if now < at {
            return Err(self.refuse(Action::Claim, Reason::TooEarly { now }));
        }
        Ok(Self {
            attempts: self.attempts.saturating_add(1),
            ..self.next(State::Firing { since: now })
        })
    }

    /// Firing → Delivered: the attempt succeeded.
    ///
    /// # Errors
    ///
    /// Refused when the record has changed since, and when it is not firing.
    pub fn deliver(&self, expected: Version, now: Timestamp) -> Result<Self, Refusal> {
        self.expect_firing(Action::Deliver, expected)?;
        Ok(self.next(State::Delivered { at: now }))
    }

    /// Firing → Scheduled for another attempt, or → Dead when there is none left or none is worth
    /// it. [`Failure::Postponed`] uses up no attempt.
    ///
    /// # Errors
    ///
    /// Refused when the record has changed since, and when it is not firing.
    pub fn fail(
        &self,
        expected: Version,
        now: Timestamp,
        failure: Failure,
        schedule: &Schedule,
    ) -> Result<Self, Refusal> {
        self.expect_firing(Action::Fail, expected)?;
        let asked_for = match failure {
            Failure::Retry | Failure::Unknown => Some(Duration::ZERO),
            Failure::RetryAfter(wait) | Failure::UnknownAfter(wait) => Some(wait),
            Failure::Permanent => None,
            Failure::Postponed(wait) | Failure::Unavailable(wait) => {
                return Ok(self.postponed(now + wait));
            }
        };
        let failures = self.failures.saturating_add(1);
        let state = match (asked_for, schedule.wait_after(failures)) {
            (Some(asked_for), Some(wait)) => self.fire_again(now + wait.max(asked_for)),
            (Some(_), None) => State::Dead {
                at: now,
                cause: DeathCause::Exhausted,
            },
            (None, _) => State::Dead {
                at: now,
                cause: DeathCause::Rejected,
            },
        };
        Ok(Self {
            failures,
            in_doubt: self.in_doubt || failure.is_unknown(),
            ..self.next(state)
        })
    }

    /// Firing → Scheduled, in doubt: the attempt gave no answer, and the message keeps its place `at` in
    /// line. The attempt is counted, but not as a failure: a receiver that is gone for a day must not turn
    /// its messages into dead letters.
    ///
    /// # Errors
    ///
    /// Refused when the record has changed since, and when it is not firing.
    pub fn doubt(&self, expected: Version, at: Timestamp) -> Result<Self, Refusal> {
        self.expect_firing(Action::Fail, expected)?;
        Ok(Self {
            in_doubt: true,
            ..self.next(self.fire_again(at))
        })
    }

    /// Firing → Scheduled: the process that was firing is gone, and how far it came is unknown.
    ///
    /// The message fires again at once. The attempt is not held against it: a server that is
    /// killed ten times must not turn its messages into dead letters.
    ///
    /// # Errors
    ///
    /// Refused when the record has changed since, and when it is not firing.
    pub fn interrupt(&self, expected: Version, now: Timestamp) -> Result<Self, Refusal> {
        self.expect_firing(Action::Interrupt, expected)?;
        Ok(self.next(self.fire_again(now)))
    }

    /// Scheduled → Scheduled, later: the message is due at `due` instead.
    ///
    /// A message that waits for a retry can be extended too. Its attempts stay counted.
    ///
    /// # Errors
    ///
    /// Refused when the record has changed since, when it is not scheduled, when an attempt may have
    /// delivered it, and when `due` is not later than both now and the moment at which the message would fire: a yes must mean that it
    /// fires later than it would have.
    pub fn extend(
        &self,
        expected: Version,
        now: Timestamp,
        due: Timestamp,
    ) -> Result<Self, Refusal> {
        let at = self.expect_scheduled(Action::Extend, expected)?;
        self.expect_certain(Action::Extend)?;
        let after = at.max(now);
        if due <= after {
            return Err(self.refuse(Action::Extend, Reason::NotLater { due, after }));
        }
        Ok(Self {
            due,
            ..self.next(State::Scheduled { at: due })
        })
    }

    /// Scheduled → Withdrawn: the message will not fire.
    ///
    /// # Errors
    ///
    /// Refused when the record has changed since, when it is not scheduled, and when an attempt may have
    /// delivered it: a yes means that it was not delivered, and will not be.
    pub fn withdraw(&self, expected: Version, now: Timestamp) -> Result<Self, Refusal> {
        self.expect_scheduled(Action::Withdraw, expected)?;
        self.expect_certain(Action::Withdraw)?;
        Ok(self.next(State::Withdrawn { at: now }))
    }

    /// Scheduled or Firing → Withdrawn: no further attempt is made. Unlike [`withdraw`](Self::withdraw) it is not
    /// refused because an attempt runs or gave no answer; the record [tells](Self::is_in_doubt) then that the message
    /// may have been delivered.
    ///
    /// # Errors
    ///
    /// Refused when the record has changed since, and when the message has ended.
    pub fn stop(&self, expected: Version, now: Timestamp) -> Result<Self, Refusal> {
        self.expect_version(Action::Withdraw, expected)?;
        let runs = match self.state {
            State::Scheduled { .. } => false,
            State::Firing { .. } => true,
            _ => return Err(self.refuse(Action::Withdraw, Reason::WrongState)),
        };
        Ok(Self {
            in_doubt: self.in_doubt || runs,
            ..self.next(State::Withdrawn { at: now })
        })
    }

    /// As if it had not been claimed, but for the version and the moment.
    fn postponed(&self, at: Timestamp) -> Self {
        Self {
            attempts: self.attempts.saturating_sub(1),
            ..self.next(self.fire_again(at))
        }
    }

    /// A clock that went back must not bring a further attempt before the due time.
    fn fire_again(&self, at: Timestamp) -> State {
        State::Scheduled {
            at: at.max(self.due),
        }
    }

    fn next(&self, state: State) -> Self {
        Self {
            version: self.version.next(),
            state,
            ..*self
        }
    }

    fn expect_scheduled(&self, action: Action, expected: Version) -> Result<Timestamp, Refusal> {
        self.expect_version(action, expected)?;
        match self.state {
            State::Scheduled { at } => Ok(at),
            _ => Err(self.refuse(action, Reason::WrongState)),
        }
    }

    fn expect_firing(&self, action: Action, expected: Version) -> Result<(), Refusal> {
        self.expect_version(action, expected)?;
        match self.state {
            State::Firing { .. } => Ok(()),
            _ => Err(self.refuse(action, Reason::WrongState)),
        }
    }

    fn expect_certain(&self, action: Action) -> Result<(), Refusal> {
        if self.in_doubt {
            Err(self.refuse(action, Reason::InDoubt))
        } else {
            Ok(())
        }
    }

    fn expect_version(&self, action: Action, expected: Version) -> Result<(), Refusal> {
        if expected == self.version {
            Ok(())
        } else {
            Err(self.refuse(action, Reason::Stale { expected }))
        }
    }

    fn refuse(&self, action: Action, reason: Reason) -> Refusal {
        Refusal {
            action,
            reason,
            version: self.version,
            state: self.state,
        }
    }
}
