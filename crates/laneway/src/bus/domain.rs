//! Domain events on the lanes: handled, retried, put aside, settled.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use smol_str::SmolStr;
use tokio::time::Instant;
use tracing::Instrument;

use super::Shared;
use super::aside::release_request;
use super::dedup::Dedup;
use super::delivery::{Content, Delivery, PartitionState};
use super::event::{Context, Event};
use super::handler::Events;
use super::letters::{Letter, LetterBox};
use super::parked::ParkedKeys;
use super::putting::Cause;
use super::state::Condition;
use super::subscription::Exhausted;
use crate::envelope::Envelope;
use crate::lanes::{Admission, Disposition, Failure, Handler, Job, Jobs};
use crate::record::Record;
use crate::topic::Topic;
use crate::trace;

/// Parked events that one request releases; the next request follows by itself.
const RELEASED_AT_ONCE: usize = 256;

/// Everything that happens to the events of one subscription.
pub(super) struct Domain<H> {
    /// The lanes hold us and the bus holds the lanes, so we do not hold the bus.
    pub(super) bus: Weak<Shared>,
    pub(super) topic: Topic,
    pub(super) group: Arc<str>,
    pub(super) handler: H,
    pub(super) exhausted: Exhausted,
    pub(super) parked_keys: Arc<ParkedKeys>,
    pub(super) dedup: Option<Dedup>,
    pub(super) condition: Arc<Condition>,
    pub(super) figures: Arc<Figures>,
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

    fn admits(&self, delivery: &Delivery) -> Admission {
        delivery.partition.admission()
    }

    async fn handle(&self, jobs: Jobs<'_, Delivery>) -> Result<(), Failure> {
        // Those of one attempt have one key, and so one partition.
        let partition = &jobs.first().partition;
        let _running = partition.begin().ok_or_else(ours_no_more)?;
        let attempt = Attempt {
            figures: &self.figures,
            condition: &self.condition,
            partition,
        };
        let handled = partition.while_ours(self.handle_all(jobs)).await;
        let handled = handled.unwrap_or_else(|| Err(ours_no_more()));
        // Settled while it counts as running: whoever lets the partition go waits for no longer.
        let count = jobs.iter().len();
        let done = match &handled {
            Ok(()) => count,
            Err(failure) => failure.done().min(count - 1),
        };
        for delivery in jobs.iter().take(done) {
            delivery.partition.settle(delivery.offset);
        }
        if handled.is_ok() {
            attempt.succeeded();
        }
        handled
    }

    async fn exhausted(
        &self,
        delivery: &Delivery,
        failure: &Failure,
        attempts: u32,
    ) -> Result<Disposition, Failure> {
        let partition = &delivery.partition;
        let _running = partition.begin().ok_or_else(ours_no_more)?;
        let disposing = partition.while_ours(self.dispose(delivery, failure, attempts));
        let disposed = disposing.await.unwrap_or_else(|| Err(ours_no_more()))?;
        partition.settle(delivery.offset);
        Ok(disposed)
    }
}

/// The attempt counts for nothing: whoever owns the partition now makes it again.
fn ours_no_more() -> Failure {
    Failure::new("the partition is with another member of the group now")
}

impl<H: Events> Domain<H> {
    /// Puts an event aside whose attempts are used up.
    async fn dispose(
        &self,
        delivery: &Delivery,
        failure: &Failure,
        attempts: u32,
    ) -> Result<Disposition, Failure> {
        match (&delivery.content, self.exhausted) {
            // The request is spent; the key stays parked.
            (Content::Release, _) => Ok(Disposition::Parked),
            (Content::Event(_), Exhausted::Stop) => {
                self.condition.stop(format!(
                    "event at partition {}, offset {} failed {attempts} times: {failure}",
                    delivery.partition.number, delivery.offset
                ));
                Err(Failure::new("the subscription stops here"))
            }
            (Content::Event(_), Exhausted::ParkKey) => {
                self.park(delivery, failure, attempts).await?;
                Ok(Disposition::Parked)
            }
            // What cannot be decoded has no key to park.
            _ => {
                let dead = self.bus()?.dead(self.topic.name());
                self.put_aside(&dead, delivery, failure, attempts).await?;
                self.figures.dead.fetch_add(1, Ordering::Relaxed);
                Ok(Disposition::DeadLettered)
            }
        }
    }

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
                        // A later event of a parked key follows it.
                        Content::Event(_) => {
                            let reason = Failure::new("an earlier event of its key is parked");
                            self.park(delivery, &reason, 0).await
                        }
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

    fn bus(&self) -> Result<Arc<Shared>, Failure> {
        self.bus
            .upgrade()
            .ok_or_else(|| Failure::new("the bus is gone"))
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
        Event {
            envelope,
            context: Context {
                topic: self.topic.name().clone(),
                partition: delivery.partition.number,
                offset: delivery.offset,
                epoch: delivery.partition.epoch,
                attempt: jobs.attempt(),
                deadline: jobs.time_limit().map(|limit| Instant::now() + limit),
                trace: trace_of(&delivery.record),
                record: delivery.record.clone(),
            },
        }
    }

    /// Calls the user's handler, unless there is nothing to call it with. A failure is told in terms
    /// of the whole attempt, of which `done_before` jobs came before these events.
    async fn call(&self, events: Vec<Event>, done_before: usize) -> Result<(), Failure> {
        if events.is_empty() {
            return Ok(());
        }
        if let Some(dedup) = &self.dedup {
            return self.call_with_unseen(dedup, events, done_before).await;
        }
        let count = events.len();
        let result = self.call_handler(events).await;
        let handled = match &result {
            Ok(()) => count,
            Err(failure) => failure.done().min(count - 1),
        };
        self.count(handled, 0);
        result.map_err(|failure| failure.after(done_before + handled))
    }

    /// The same with the events that it has not seen.
    async fn call_with_unseen(
        &self,
        dedup: &Dedup,
        events: Vec<Event>,
        done_before: usize,
    ) -> Result<(), Failure> {
        let count = events.len();
        let mut places = Vec::with_capacity(count);
        let mut unseen: Vec<Event> = Vec::with_capacity(count);
        for (place, event) in events.into_iter().enumerate() {
            if !is_repeated(dedup, &event, &unseen) {
                places.push(place);
                unseen.push(event);
            }
        }
        if unseen.is_empty() {
            self.count(0, count);
            return Ok(());
        }
        let ids: Vec<_> = unseen.iter().map(|e| SmolStr::new(e.event_id())).collect();
        let result = self.call_handler(unseen).await;
        // How many of the unseen were handled, and how many of all are done by that.
        let (handled, done) = match &result {
            Ok(()) => (places.len(), count),
            Err(failure) => {
                let handled = failure.done().min(places.len() - 1);
                (handled, places[handled])
            }
        };
        self.count(handled, done - handled);
        ids.iter().take(handled).for_each(|id| dedup.remember(id));
        result.map_err(|failure| failure.after(done_before + done))
    }

    /// Calls it within the span and the trace of the first event.
    async fn call_handler(&self, events: Vec<Event>) -> Result<(), Failure> {
        let first = &events[0];
        let span = tracing::debug_span!(
            "handle",
            topic = %self.topic.name(),
            key = %first.aggregate_id(),
            offset = first.context.offset,
            attempt = first.context.attempt,
        );
        let trace = first.context.trace;
        trace::within(trace, self.handler.handle(events).instrument(span)).await
    }

    fn count(&self, handled: usize, deduplicated: usize) {
        let figures = &self.figures;
        figures.handled.fetch_add(handled as u64, Ordering::Relaxed);
        if deduplicated > 0 {
            figures
                .deduplicated
                .fetch_add(deduplicated as u64, Ordering::Relaxed);
        }
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
        letters.put(&delivery.record, &cause).await
    }

    async fn park(
        &self,
        delivery: &Delivery,
        reason: &Failure,
        attempts: u32,
    ) -> Result<(), Failure> {
        let key = delivery.key().unwrap_or_default();
        let place = (delivery.partition.number, delivery.offset);
        // The key first: whatever of it comes next must not be handled.
        if self.parked_keys.hold(key, place) {
            let parked = self.bus()?.parked(self.topic.name());
            self.put_aside(&parked, delivery, reason, attempts).await?;
            self.parked_keys.parked(key, place);
            self.figures.parked.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Handles the parked events of a key, oldest first. Called in the lane of the key, so nothing
    /// else of it runs meanwhile.
    async fn release(&self, request: &Delivery, jobs: Jobs<'_, Delivery>) -> Result<(), Failure> {
        let key = request.key().unwrap_or_default();
        if !self.parked_keys.contains(key) {
            return Ok(());
        }
        let began = Instant::now();
        let bus = self.bus()?;
        let parked = bus.parked(self.topic.name());
        let of_key =
            |letter: &Letter| *letter.group == *self.group && letter.key.as_deref() == Some(key);
        // One more than is handled now, to see whether that is all.
        let letters = parked.list(RELEASED_AT_ONCE + 1, of_key).await?;
        for (done, letter) in letters.into_iter().enumerate() {
            let late = |limit: Duration| began.elapsed() > limit / 2;
            if done == RELEASED_AT_ONCE || done > 0 && jobs.time_limit().is_some_and(late) {
                return self.release_again(&bus, key).await;
            }
            let id = letter.id;
            let event = self.parked_event(letter, request, jobs, began)?;
            match self.call(vec![event], 0).await {
                // It has its attempts for itself, like any other event.
                Err(_) if done > 0 => {
                    self.figures.failed.fetch_add(1, Ordering::Relaxed);
                    return self.release_again(&bus, key).await;
                }
                result => result?,
            }
            parked.settle(&[id]).await?;
        }
        self.parked_keys.remove(key);
        Ok(())
    }

    async fn release_again(&self, bus: &Shared, key: &str) -> Result<(), Failure> {
        let request = release_request(&self.group, key);
        Ok(bus.append(&self.topic, request).await?)
    }

    fn parked_event(
        &self,
        letter: Letter,
        request: &Delivery,
        jobs: Jobs<'_, Delivery>,
        began: Instant,
    ) -> Result<Event, Failure> {
        let envelope = match Content::of(&letter.record) {
            Content::Event(envelope) => envelope,
            Content::Undecodable(reason) => return Err(Failure::fatal(reason)),
            Content::Release | Content::Message => {
                return Err(Failure::fatal("a parked record that is no event"));
            }
        };
        let (partition, offset) = letter.origin;
        Ok(Event {
            envelope,
            context: Context {
                topic: self.topic.name().clone(),
                partition: u32::try_from(partition).unwrap_or_default(),
                offset,
                epoch: request.partition.epoch,
                attempt: jobs.attempt(),
                deadline: jobs.time_limit().map(|limit| began + limit),
                trace: trace_of(&letter.record),
                record: Arc::new(letter.record),
            },
        })
    }
}

/// Whether the event was handled lately, or comes twice in this batch.
fn is_repeated(dedup: &Dedup, event: &Event, batch: &[Event]) -> bool {
    let id = event.event_id();
    dedup.has_seen(id) || batch.iter().any(|other| other.event_id() == id)
}

fn trace_of(record: &Record) -> Option<trace::TraceParent> {
    trace::TraceParent::from_headers(&record.headers)
        .ok()
        .flatten()
}

/// An attempt that failed unless it says otherwise: one that panics or is over its time limit has no
/// other way to tell.
struct Attempt<'a> {
    figures: &'a Figures,
    condition: &'a Condition,
    partition: &'a PartitionState,
}

impl Attempt<'_> {
    fn succeeded(self) {
        std::mem::forget(self);
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.condition.is_closing() && !self.partition.has_ended() {
            self.figures.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}
