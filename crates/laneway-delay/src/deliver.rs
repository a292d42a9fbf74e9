//! The two ways out: callbacks and the bus.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::{Callback, Error, Failure, Message, Timestamp};

/// A future that can be sent.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A message that is being delivered: one attempt.
#[derive(Clone, Debug)]
pub struct Firing {
    /// The message. Its record is the one of this attempt.
    pub message: Arc<Message>,
}

impl Firing {
    /// Which attempt this is, from 1. An attempt that a crash interrupted may come again under the
    /// same number.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.message.record.attempts()
    }

    /// When the message was due.
    #[must_use]
    pub fn due(&self) -> Timestamp {
        self.message.record.due()
    }
}

/// An attempt that did not deliver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Undelivered {
    /// What comes next.
    pub failure: Failure,
    /// Why, for people. It is kept with the message.
    pub reason: String,
    /// A short name of what went wrong, for metrics, such as `timeout`.
    pub kind: &'static str,
}

impl Undelivered {
    /// An attempt that ended like this. Its kind is `failed`.
    #[must_use]
    pub fn new(failure: Failure, reason: impl Into<String>) -> Self {
        Self {
            failure,
            reason: reason.into(),
            kind: "failed",
        }
    }

    /// With another kind.
    #[must_use]
    pub fn kind(self, kind: &'static str) -> Self {
        Self { kind, ..self }
    }

    /// Worth another try.
    #[must_use]
    pub fn retry(reason: impl Into<String>) -> Self {
        Self::new(Failure::Retry, reason)
    }

    /// Without an answer: it may have been delivered, and may still be.
    #[must_use]
    pub fn unknown(reason: impl Into<String>) -> Self {
        Self::new(Failure::Unknown, reason)
    }

    /// Not worth another try.
    #[must_use]
    pub fn permanent(reason: impl Into<String>) -> Self {
        Self::new(Failure::Permanent, reason)
    }

    /// Whether an attempt was made. One that was put off before anything was sent is none.
    #[must_use]
    pub fn is_attempt(&self) -> bool {
        !matches!(
            self.failure,
            Failure::Postponed(_) | Failure::Unavailable(_)
        )
    }
}

/// Delivers messages with a [`Target::Callback`](crate::Target::Callback), one at a time, many at once.
///
/// An attempt that may have reached its receiver without an answer is [`Failure::Unknown`]: it counts as a failed one, and
/// the message cannot be moved or taken back from then on, only stopped.
///
/// The engine calls [`deliver`](Self::deliver) at most as often at once as its options say, in all and per host: slots
/// are counted there and nowhere else. An attempt has to end by itself: an implementation sets a time limit.
///
/// The feature `callback` has an implementation over HTTP, `callback::Client`.
pub trait Deliver: Send + Sync + 'static {
    /// Checks a callback before its message is taken, and may bring its URL into the form in which it will be sent.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the field, if it would never be called.
    fn check(&self, callback: &mut Callback) -> Result<(), Error> {
        let _ = callback;
        Ok(())
    }

    /// Delivers a message.
    fn deliver(&self, firing: Firing) -> BoxFuture<'_, Result<(), Undelivered>>;
}

/// Delivers messages with a [`Target::Bus`](crate::Target::Bus).
///
/// Those of one topic of the bus come in the order in which they are due, many together, and the next
/// ones only when these are done.
///
/// | failure | what it means here |
/// |---|---|
/// | [`Failure::Permanent`] | the bus will never take it: it becomes a dead letter |
/// | [`Failure::Unknown`] | it may have been published: it waits in its place and is tried again, the attempt is counted, and it can be neither moved nor taken back, only stopped |
/// | any other one | it was certainly not published: it waits in its place, no attempt is counted, and it can be taken back |
///
/// As long as one of a topic waits like that, those that come after it wait too.
pub trait Publish: Send + Sync + 'static {
    /// Why the bus would never take this, as far as that is known before it is due.
    fn objection(&self, submission: &crate::Submission) -> Option<String> {
        let _ = submission;
        None
    }

    /// Publishes messages of one topic of the bus, in this order. The answers are in the same order.
    fn publish(&self, batch: Vec<Firing>) -> BoxFuture<'_, Vec<Result<(), Undelivered>>>;
}

/// Where due messages go. A message with a target that has no sink is refused when it is submitted.
#[derive(Clone, Default)]
pub struct Sinks {
    /// For callbacks.
    pub callbacks: Option<Arc<dyn Deliver>>,
    /// For topics of the bus.
    pub bus: Option<Arc<dyn Publish>>,
}

impl std::fmt::Debug for Sinks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sinks")
            .field("callbacks", &self.callbacks.is_some())
            .field("bus", &self.bus.is_some())
            .finish()
    }
}
