//! Domain events on the lanes: handled, retried, put aside, settled.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use smol_str::SmolStr;
use tokio::time::Instant;
use tracing::Instrument;

use super::Shared;
use super::dead_letters::digest::Digest;
use super::dead_letters::in_flight::Cause;
use super::dead_letters::parked_keys::{Hold, ParkedKeys};
use super::dead_letters::topic::{self as letters, LetterTopic};
use super::dedup::Dedup;
use super::delivery::{Content, Delivery};
use super::event::{Context, Event};
use super::handler::Events;
use super::partition_state::PartitionState;
use super::state::{Condition, Part};
use super::subscription::Exhausted;
use super::warnings::Warnings;
use crate::envelope::Envelope;
use crate::lanes::{Admission, Disposition, Failure, Handler, Job, Jobs};
use crate::record::Record;
use crate::topic::Topic;
use crate::trace;

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
    pub(super) stats: Arc<Stats>,
    pub(super) warnings: Warnings,
}

/// What a subscription has done.
#[derive(Debug, Default)]
pub(super) struct Stats {
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

    /// An attempt counts as one of its partition, and is drained or cancelled with it. A key has events in several where
    /// the topic has grown, or where others publish by rules of their own.
    fn joins(&self, first: &Delivery, delivery: &Delivery) -> bool {
        Arc::ptr_eq(&first.partition, &delivery.partition)
    }

    fn admits(&self, delivery: &Delivery) -> Admission {
        delivery.partition.admission()
    }

    async fn handle(&self, jobs: Jobs<'_, Delivery>) -> Result<(), Failure> {
        // `joins` puts those of one partition together.
        let partition = &jobs.first().partition;
        let _running = partition.begin().ok_or_else(ours_no_more)?;
        let attempt = Attempt {
            stats: &self.stats,
            condition: &self.condition,
            partition,
        };
        let handled = partition.while_ours(self.handle_all(jobs)).await;
        let handled = handled.unwrap_or_else(|| Err(ours_no_more()));
        // IMPORTANT: settled while `_running` counts the attempt: `PartitionState::drain` waits for no longer.
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
        // The lanes have asked whether it is admitted, as before every attempt: an owner without a valid
        // lease puts nothing aside, since another member may have handled it by now.
        let _running = partition.begin().ok_or_else(ours_no_more)?;
        let disposing = partition.while_ours(self.dispose(delivery, failure, attempts));
        let disposed = disposing.await.unwrap_or_else(|| Err(ours_no_more()))?;
        partition.settle(delivery.offset);
        self.warn(delivery, failure, attempts, disposed);
        Ok(disposed)
    }
}

/// The attempt counts for nothing: the next owner of the partition makes it again.
pub(super) fn ours_no_more() -> Failure {
    Failure::new("the partition is with another member of the group now")
}

impl<H: Events> Domain<H> {
    /// Tells of an event whose attempts are used up: whoever runs the service has to look after it.
    fn warn(&self, delivery: &Delivery, failure: &Failure, attempts: u32, disposed: Disposition) {
        let Some(unsaid) = self.warnings.turn() else {
            return;
        };
        let (topic, group, key) = (self.topic.name(), &*self.group, delivery.key());
        let (partition, offset) = (delivery.partition.number, delivery.offset);
        let what = match (disposed, &delivery.content) {
            (_, Content::Release) => "a parked event failed again; its key stays parked",
            (Disposition::Parked, _) => {
                "all attempts failed; the event and the later ones of its key are parked"
            }
            _ => "all attempts failed; the event is a dead letter",
        };
        tracing::warn!(%topic, group, key, partition, offset, attempts, reason = %failure, unsaid, "{what}");
    }

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
            (Content::Event(_) | Content::Reference(_), Exhausted::Stop) => {
                tracing::error!(topic = %self.topic.name(), group = &*self.group, key = delivery.key(),
                    partition = delivery.partition.number, offset = delivery.offset, attempts,
                    reason = %failure, "all attempts failed; the subscription stops");
                self.condition.stop(format!(
                    "event at partition {}, offset {} failed {attempts} times: {failure}",
                    delivery.partition.number, delivery.offset
                ));
                Err(Failure::new("the subscription stops here"))
            }
            (Content::Event(_) | Content::Reference(_), Exhausted::ParkKey) => {
                self.park(delivery, failure, attempts).await?;
                Ok(Disposition::Parked)
            }
            // What cannot be decoded has no key to park.
            _ => {
                let dead = self.bus()?.dead(self.topic.name());
                self.put_aside(&dead, delivery, failure, attempts).await?;
                self.stats.dead.fetch_add(1, Ordering::Relaxed);
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
                        Content::Reference(offset) if !self.goes_aside(delivery) => {
                            self.handle_original(delivery, *offset, jobs).await
                        }
                        // A later event of a parked key follows it.
                        Content::Event(_) | Content::Reference(_) => {
                            let reason = Failure::new("an earlier event of its key is parked");
                            self.park(delivery, &reason, 0).await
                        }
                        Content::Undecodable(reason) => Err(Failure::fatal(reason)),
                        Content::Release => self.release(delivery, jobs).await,
                        // There is nothing to handle.
                        Content::Gone => Ok(()),
                        Content::Message => Err(Failure::fatal("a message in a domain topic")),
                    }
                }
            };
            result.map_err(|failure| failure.after(done))?;
            done = index + 1;
        }
        self.call(events, done).await
    }

    pub(super) fn bus(&self) -> Result<Arc<Shared>, Failure> {
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
                deadline: deadline_of(jobs, Instant::now()),
                trace: trace_of(&delivery.record),
                record: delivery.record.clone(),
            },
        }
    }

    /// Calls the user's handler, unless there is nothing to call it with. A failure is told in terms
    /// of the whole attempt, of which `done_before` jobs came before these events.
    pub(super) async fn call(&self, events: Vec<Event>, done_before: usize) -> Result<(), Failure> {
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
        let stats = &self.stats;
        stats.handled.fetch_add(handled as u64, Ordering::Relaxed);
        if deduplicated > 0 {
            stats
                .deduplicated
                .fetch_add(deduplicated as u64, Ordering::Relaxed);
        }
    }

    async fn put_aside(
        &self,
        letters: &LetterTopic,
        delivery: &Delivery,
        failure: &Failure,
        attempts: u32,
    ) -> Result<(), Failure> {
        let partition = delivery.partition.number;
        let cause = Cause {
            group: &self.group,
            partition,
            offset: delivery.offset,
            digest: Digest::of(&delivery.record),
            epoch: delivery.partition.epoch,
            key: delivery.key(),
            reason: failure.message(),
            attempts,
            reference: match delivery.content {
                Content::Reference(offset) => Some(offset),
                _ => None,
            },
        };
        let part = Part::PuttingAside(partition);
        let result = letters
            .put(&delivery.record, &cause, &delivery.partition)
            .await;
        match &result {
            Ok(()) => self.condition.fine(part),
            Err(error) => {
                let offset = delivery.offset;
                if let Some(unsaid) = self.warnings.turn() {
                    tracing::warn!(topic = %self.topic.name(), key = delivery.key(), partition, offset,
                        %error, unsaid, "putting an event aside failed, retrying");
                }
                let place = format!("partition {partition}, offset {offset}");
                let trouble = format!("the event at {place} could not be put aside: {error}");
                self.condition.failing(part, trouble);
            }
        }
        result
    }

    /// Handles the event that a record stands for.
    async fn handle_original(
        &self,
        delivery: &Delivery,
        offset: u64,
        jobs: Jobs<'_, Delivery>,
    ) -> Result<(), Failure> {
        let partition = delivery.partition.number;
        let dead = self.bus()?.dead(self.topic.name());
        let digest = Digest::of(&delivery.record);
        let Some(record) = dead.original(partition, offset, digest).await? else {
            let gone = letters::missing(self.topic.name(), partition, offset);
            return Err(Failure::fatal(gone));
        };
        let envelope = envelope_of(&record)?;
        let mut event = self.event(delivery, envelope, jobs);
        event.context.offset = offset;
        event.context.trace = trace_of(&record);
        event.context.record = record;
        self.call(vec![event], 0).await
    }

    async fn park(
        &self,
        delivery: &Delivery,
        reason: &Failure,
        attempts: u32,
    ) -> Result<(), Failure> {
        let key = delivery.key().unwrap_or_default();
        let (partition, offset) = (&delivery.partition, delivery.offset);
        let digest = Digest::of(&delivery.record);
        let parked = self.bus()?.parked(self.topic.name());
        // The key first: whatever of it comes next must not be handled.
        match self.parked_keys.hold(key, partition, offset, digest) {
            Hold::PutAside => {}
            Hold::IsAside | Hold::NotOurs => return Ok(()),
            Hold::IfNotPast((last, digest)) => {
                // A record that was there when this one was parked before, and is not there, was in another life of the
                // topic, and its offset says nothing.
                let last = parked.original(partition.number, last, digest);
                if last.await?.is_some() {
                    return Ok(());
                }
            }
        }
        self.put_aside(&parked, delivery, reason, attempts).await?;
        self.parked_keys.parked(key, partition, offset, digest);
        self.stats.parked.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// When an attempt is over its time limit. A limit that clocks cannot count is none.
pub(super) fn deadline_of(jobs: Jobs<'_, Delivery>, began: Instant) -> Option<Instant> {
    began.checked_add(jobs.time_limit()?)
}

/// The event that a record is which was put aside, or published again.
pub(super) fn envelope_of(record: &Record) -> Result<Arc<Envelope>, Failure> {
    match Content::of(record) {
        Content::Event(envelope) => Ok(envelope),
        Content::Undecodable(reason) => Err(Failure::fatal(reason)),
        Content::Release | Content::Reference(_) | Content::Message | Content::Gone => Err(
            Failure::fatal("a record that was put aside and is no event"),
        ),
    }
}

/// Whether the event was handled lately, or comes twice in this batch.
fn is_repeated(dedup: &Dedup, event: &Event, batch: &[Event]) -> bool {
    let id = event.event_id();
    dedup.has_seen(id) || batch.iter().any(|other| other.event_id() == id)
}

pub(super) fn trace_of(record: &Record) -> Option<trace::TraceParent> {
    trace::TraceParent::from_headers(&record.headers)
        .ok()
        .flatten()
}

/// An attempt that failed unless it says otherwise: one that panics or is over its time limit has no
/// other way to tell.
struct Attempt<'a> {
    stats: &'a Stats,
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
            self.stats.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}
