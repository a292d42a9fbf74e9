//! A witness: sees what is published and what runs, and gives a verdict.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::history::{Attempt, History, Outcome, Rules, Run, Verdict};
use crate::lanes::FailureKind;
use crate::{Bus, Envelope, Error, Event, EventHandler, Failure, Receipt};

/// Publishes events and watches the handler that gets them. Cheap to clone.
///
/// What it has not published itself it lets pass unseen. Events of one aggregate must be published
/// one after the other, or nobody could say what their order is. One witness watches one group; it
/// knows handled events and dead letters, not parked ones.
///
/// See the [module](super) for an example.
#[derive(Clone, Debug)]
pub struct Witness(Arc<Seen>);

#[derive(Debug)]
struct Seen {
    history: History,
    attempts: u32,
    owner: AtomicU64,
    /// By event id.
    published: Mutex<HashMap<String, Sequenced>>,
    /// By aggregate: how many were published.
    counts: Mutex<HashMap<Arc<str>, u64>>,
}

#[derive(Clone, Debug)]
struct Sequenced {
    key: Arc<str>,
    seq: u64,
}

impl Default for Witness {
    fn default() -> Self {
        Self::new()
    }
}

impl Witness {
    /// For the default retry policy, which makes five attempts.
    #[must_use]
    pub fn new() -> Self {
        Self::of_attempts(5)
    }

    /// For a retry policy of so many attempts: when the last one fails, the event is a dead letter.
    #[must_use]
    pub fn of_attempts(attempts: u32) -> Self {
        Self(Arc::new(Seen {
            history: History::new(),
            attempts,
            owner: AtomicU64::new(1),
            published: Mutex::default(),
            counts: Mutex::default(),
        }))
    }

    /// Publishes an event, and remembers what the bus has promised by it.
    ///
    /// # Errors
    /// As [`Bus::publish_envelope`].
    pub async fn publish(
        &self,
        bus: &Bus,
        topic: &str,
        envelope: &Envelope,
    ) -> Result<Receipt, Error> {
        let Sequenced { key, seq } = self.0.expect(envelope);
        let history = &self.0.history;
        history.submitted(key.clone(), seq);
        let result = bus.publish_envelope(topic, envelope).await;
        match &result {
            Ok(_) => history.acked(key, seq),
            // It may still have happened.
            Err(Error::TimedOut { .. }) => {}
            Err(_) => history.refused(key, seq),
        }
        result
    }

    /// A handler that is watched. If something else wraps it, be the innermost but one: the witness
    /// must see the failures that the bus sees.
    pub fn watching<H>(&self, handler: H) -> Watched<H> {
        Watched {
            witness: self.clone(),
            handler,
        }
    }

    /// The process that ran the handler is gone, without a goodbye. What comes after this is by
    /// another one, and may run again what was not settled.
    pub fn crashed(&self) {
        let owner = self.0.owner.fetch_add(1, Ordering::SeqCst);
        self.0.history.crashed(owner);
    }

    /// Whether all that was promised for domain events was kept so far. Wait until everything is
    /// [settled](super::settled) first, or what is still to come counts as lost.
    pub fn verdict(&self) -> Verdict {
        Rules::at_least_once().check(self.0.history.records())
    }

    /// What was recorded, to be judged by rules of your own.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.0.history
    }
}

impl Seen {
    fn expect(&self, envelope: &Envelope) -> Sequenced {
        let key: Arc<str> = envelope.aggregate_id().as_str().into();
        let seq = {
            let mut counts = self.counts.lock();
            let count = counts.entry(key.clone()).or_default();
            *count += 1;
            *count
        };
        let place = Sequenced { key, seq };
        self.published
            .lock()
            .insert(envelope.event_id().to_owned(), place.clone());
        place
    }

    fn place(&self, event: &Event) -> Option<Sequenced> {
        self.published.lock().get(event.event_id()).cloned()
    }
}

/// A handler that a [`Witness`] watches.
#[derive(Clone, Debug)]
pub struct Watched<H> {
    witness: Witness,
    handler: H,
}

impl<H: EventHandler> EventHandler for Watched<H> {
    async fn handle(&self, event: Event) -> Result<(), Failure> {
        let seen = &*self.witness.0;
        let Some(place) = seen.place(&event) else {
            return self.handler.handle(event).await;
        };
        let watch = Watch::begin(seen, place, &event);
        let result = self.handler.handle(event).await;
        watch.end(result.as_ref().err());
        result
    }
}

/// One attempt under watch. Dropped before its end it has failed, by a panic or by its time limit,
/// or it was cut short because the subscription closes.
struct Watch<'a> {
    seen: &'a Seen,
    run: Option<Run<'a>>,
    place: Sequenced,
    owner: u64,
    is_last: bool,
    deadline: Option<Instant>,
}

impl<'a> Watch<'a> {
    fn begin(seen: &'a Seen, place: Sequenced, event: &Event) -> Self {
        let context = event.context();
        let owner = seen.owner.load(Ordering::SeqCst);
        let attempt = Attempt {
            number: context.attempt(),
            owner,
            epoch: context.epoch(),
        };
        Self {
            run: Some(seen.history.started(place.key.clone(), place.seq, attempt)),
            is_last: context.attempt() >= seen.attempts,
            deadline: context.deadline(),
            seen,
            place,
            owner,
        }
    }

    fn end(mut self, failure: Option<&Failure>) {
        let Some(run) = self.run.take() else {
            return;
        };
        match failure {
            None => run.finish(Outcome::Done),
            Some(failure) => {
                run.finish(Outcome::Failed);
                if self.is_last || failure.kind() == FailureKind::Fatal {
                    self.is_dead();
                }
            }
        }
    }

    fn is_dead(&self) {
        let Sequenced { key, seq } = self.place.clone();
        let history = &self.seen.history;
        history.finished(key, seq, self.owner, Outcome::DeadLettered);
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let Some(run) = self.run.take() else {
            return;
        };
        // It records how it ended.
        drop(run);
        let too_late = self.deadline.is_some_and(|at| at <= Instant::now());
        if self.is_last && (too_late || std::thread::panicking()) {
            self.is_dead();
        }
    }
}
