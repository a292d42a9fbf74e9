//! Who delivers what is due.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::{Failure, Message, Timestamp};

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
}

impl Undelivered {
    /// Worth another try.
    #[must_use]
    pub fn retry(reason: impl Into<String>) -> Self {
        Self {
            failure: Failure::Retry,
            reason: reason.into(),
        }
    }

    /// Not worth another try.
    #[must_use]
    pub fn permanent(reason: impl Into<String>) -> Self {
        Self {
            failure: Failure::Permanent,
            reason: reason.into(),
        }
    }
}

/// Delivers messages with a [`Target::Callback`](crate::Target::Callback), one at a time, many at once.
///
/// The engine calls it at most as often at once as its options say, in all and per host. An attempt
/// has to end by itself: whoever implements this sets a time limit.
pub trait Deliver: Send + Sync + 'static {
    /// Delivers a message.
    fn deliver(&self, firing: Firing) -> BoxFuture<'_, Result<(), Undelivered>>;
}

/// Delivers messages with a [`Target::Bus`](crate::Target::Bus).
///
/// Those of one topic of the bus come in the order in which they are due, many together, and the next
/// ones only when these are done.
///
/// [`Failure::Retry`] means that the bus cannot take it now: it and all that follow wait, in order, and
/// no attempt is counted. [`Failure::Permanent`] is for a message that the bus will never take; it
/// becomes a dead letter.
pub trait Publish: Send + Sync + 'static {
    /// Publishes messages of one topic of the bus, in this order. The answers are in the same order.
    fn publish(&self, batch: Vec<Firing>) -> BoxFuture<'_, Vec<Result<(), Undelivered>>>;
}

/// Who delivers. A message whose target nobody serves is refused when it is submitted.
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
