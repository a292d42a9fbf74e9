//! Domain events on the lanes: handled, retried, put aside, settled.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use smol_str::SmolStr;
use tokio::time::Instant;
use tracing::Instrument;

use super::Shared;
use super::aside::release_request;
use super::dedup::Dedup;
use super::delivery::{Content, Delivery};
use super::event::{Context, Event};
use super::handler::Events;
use super::letters::{Cause, Letter, LetterBox};
use super::subscription::{Exhausted, Stopper};
use crate::envelope::Envelope;
use crate::lanes::{Disposition, Failure, Handler, Job, Jobs, Outcome};
use crate::topic::Topic;
use crate::trace;

/// Parked events that one request releases; the next request follows by itself.
const RELEASED_AT_ONCE: usize = 256;

/// Everything that happens to the events of one subscription.
pub(super) struct Domain<H> {
    pub(super) bus: Arc<Shared>,
    pub(super) topic: Topic,
    pub(super) group: Arc<str>,
    pub(super) handler: H,
    pub(super) exhausted: Exhausted,
    pub(super) dead: Arc<LetterBox>,
    pub(super) parked: Arc<LetterBox>,
    pub(super) parked_keys: ParkedKeys,
    pub(super) dedup: Option<Dedup>,
    pub(super) stopper: Arc<Stopper>,
    pub(super) figures: Arc<Figures>,
}

/// The keys of a subscription that are parked.
#[derive(Debug, Default)]
pub(super) struct ParkedKeys(Mutex<HashSet<SmolStr>>);

impl ParkedKeys {
    pub(super) fn new(keys: HashSet<SmolStr>) -> Self {
        Self(Mutex::new(keys))
    }

    fn contains(&self, key: &str) -> bool {
        let keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !keys.is_empty() && keys.contains(key)
    }

    fn insert(&self, key: &str) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(SmolStr::new(key));
    }

    fn remove(&self, key: &str) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(key);
    }
}

/// What a subscription has done.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) handled: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) dead: AtomicU64,
    pub(super) parked: AtomicU64,
    pub(super) deduplicated: AtomicU64,
}

impl<H: Events> Handler<Delivery> for Domain<H> {
    fn batch(&self) -> NonZeroUsize {
        NonZeroUsize::new(self.handler.most()).unwrap_or(NonZeroUsize::MIN)
    }

    async fn handle(&self, jobs: Jobs<'_, Delivery>) -> Result<(), Failure> {
        let result = self.handle_all(jobs).await;
        if result.is_err() {
            self.figures.failed.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    async fn exhausted(
        &self,
        delivery: &Delivery,
        failure: &Failure,
        attempts: u32,
    ) -> Result<Disposition, Failure> {
        match (&delivery.content, self.exhausted) {
            // The request is spent; the key stays parked.
            (Content::Release, _) => Ok(Disposition::Parked),
            (Content::Event(_), Exhausted::Stop) => {
                self.stopper.stop(format!(
                    "event at partition {}, offset {} failed {attempts} times: {failure}",
                    delivery.partition.number, delivery.offset
                ));
                Err(Failure::new("the subscription stops here"))
            }
            (Content::Event(_), Exhausted::ParkKey) => {
                // The key first: whatever of it comes next must not be handled.
                self.parked_keys.insert(delivery.key().unwrap_or_default());
                self.put_aside(&self.parked, delivery, failure, attempts)
                    .await?;
                self.figures.parked.fetch_add(1, Ordering::Relaxed);
                Ok(Disposition::Parked)
            }
            // What cannot be decoded has no key to park.
            _ => {
                self.put_aside(&self.dead, delivery, failure, attempts)
                    .await?;
                self.figures.dead.fetch_add(1, Ordering::Relaxed);
                Ok(Disposition::DeadLettered)
            }
        }
    }

    fn finished(&self, delivery: Delivery, outcome: Outcome) {
        match outcome {
            Outcome::Done | Outcome::Exhausted(_) => delivery.partition.settle(delivery.offset),
            // It stays unsettled and comes again.
            Outcome::Abandoned => {}
        }
    }
}

impl<H: Events> Domain<H> {
    /// Events go to the handler together, anything else goes its own way, all in order.
    async fn handle_all(&self, jobs: Jobs<'_, Delivery>) -> Result<(), Failure> {
        let mut events = Vec::new();
        let mut done = 0;
        for (index, delivery) in jobs.iter().enumerate() {
            let result = match &delivery.content {
                Content::Event(envelope) if !self.goes_aside(delivery) => {
                    events.push(self.event(delivery, envelope.clone(), jobs));
                    continue;
                }
                other => {
                    self.call(std::mem::take(&mut events), done).await?;
                    done = index;
                    match other {
                        Content::Event(_) => self.park_behind(delivery).await,
                        Content::Undecodable(reason) => Err(Failure::fatal(reason)),
                        Content::Release => self.release(delivery, jobs).await,
                        Content::Message => Err(Failure::fatal("a message in a domain topic")),
                    }
                }
            };
            result.map_err(|failure| failure.after(done))?;
            done = index + 1;
        }
        self.call(events, done).await
    }

    fn goes_aside(&self, delivery: &Delivery) -> bool {
        self.parked_keys
            .contains(delivery.key().unwrap_or_default())
    }

    fn event(
        &self,
        delivery: &Delivery,
        envelope: Arc<Envelope>,
        jobs: Jobs<'_, Delivery>,
    ) -> Event {
        let trace = trace::TraceParent::from_headers(&delivery.record.headers)
            .ok()
            .flatten();
        Event {
            envelope,
            context: Context {
                topic: self.topic.name().clone(),
                partition: delivery.partition.number,
                offset: delivery.offset,
                epoch: delivery.partition.epoch,
                attempt: jobs.attempt(),
                deadline: jobs.time_limit().map(|limit| Instant::now() + limit),
                trace,
                record: delivery.record.clone(),
            },
        }
    }

    /// Calls the user's handler with the events that it has not seen. A failure is told in terms of
    /// the whole attempt, of which `done_before` jobs came before these events.
    async fn call(&self, events: Vec<Event>, done_before: usize) -> Result<(), Failure> {
        let mut places = Vec::with_capacity(events.len());
        let mut unseen = Vec::with_capacity(events.len());
        for (place, event) in events.into_iter().enumerate() {
            if self
                .dedup
                .as_ref()
                .is_some_and(|dedup| dedup.has_seen(event.event_id()))
            {
                self.figures.deduplicated.fetch_add(1, Ordering::Relaxed);
            } else {
                places.push(place);
                unseen.push(event);
            }
        }
        let Some(first) = unseen.first() else {
            return Ok(());
        };
        let ids: Vec<SmolStr> = match &self.dedup {
            Some(_) => unseen.iter().map(|e| SmolStr::new(e.event_id())).collect(),
            None => Vec::new(),
        };
        let span = tracing::debug_span!(
            "handle",
            topic = %self.topic.name(),
            key = %first.aggregate_id(),
            offset = first.context.offset,
            attempt = first.context.attempt,
        );
        let trace = first.context.trace;
        let handling = self.handler.handle(unseen).instrument(span);
        let result = trace::within(trace, handling).await;
        let handled = match &result {
            Ok(()) => places.len(),
            Err(failure) => failure.done().min(places.len() - 1),
        };
        self.figures
            .handled
            .fetch_add(handled as u64, Ordering::Relaxed);
        if let Some(dedup) = &self.dedup {
            ids.iter().take(handled).for_each(|id| dedup.remember(id));
        }
        result.map_err(|failure| failure.after(done_before + places[handled]))
    }

    async fn put_aside(
        &self,
        letters: &LetterBox,
        delivery: &Delivery,
        failure: &Failure,
        attempts: u32,
    ) -> Result<(), Failure> {
        let cause = Cause {
            group: &self.group,
            partition: delivery.partition.number,
            offset: delivery.offset,
            reason: failure.message(),
            attempts,
        };
        Ok(letters.put(&delivery.record, &cause).await?)
    }

    /// A later event of a parked key follows it.
    async fn park_behind(&self, delivery: &Delivery) -> Result<(), Failure> {
        let reason = Failure::new("an earlier event of its key is parked");
        self.put_aside(&self.parked, delivery, &reason, 0).await?;
        self.figures.parked.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Handles the parked events of a key, oldest first. Called in the lane of the key, so nothing
    /// else of it runs meanwhile.
    async fn release(&self, request: &Delivery, jobs: Jobs<'_, Delivery>) -> Result<(), Failure> {
        let key = request.key().unwrap_or_default();
        if !self.parked_keys.contains(key) {
            return Ok(());
        }
        let of_key =
            |letter: &Letter| *letter.group == *self.group && letter.key.as_deref() == Some(key);
        // One more than is handled now, to see whether that is all.
        let letters = self.parked.list(RELEASED_AT_ONCE + 1, of_key).await?;
        let all = letters.len() <= RELEASED_AT_ONCE;
        for letter in letters.into_iter().take(RELEASED_AT_ONCE) {
            let id = letter.id;
            let envelope = Envelope::decode(letter.record.payload.clone())
                .map_err(|error| Failure::fatal(error.to_string()))?;
            let (partition, offset) = letter.origin;
            let event = Event {
                envelope: Arc::new(envelope),
                context: Context {
                    topic: self.topic.name().clone(),
                    partition: u32::try_from(partition).unwrap_or_default(),
                    offset,
                    epoch: request.partition.epoch,
                    attempt: jobs.attempt(),
                    deadline: jobs.time_limit().map(|limit| Instant::now() + limit),
                    trace: trace::TraceParent::from_headers(&letter.record.headers)
                        .ok()
                        .flatten(),
                    record: Arc::new(letter.record),
                },
            };
            self.call(vec![event], 0).await?;
            self.parked.settle(&[id]).await?;
        }
        if all {
            self.parked_keys.remove(key);
        } else {
            self.bus
                .append(&self.topic, release_request(&self.group, key))
                .await?;
        }
        Ok(())
    }
}
