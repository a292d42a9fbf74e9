//! Subscriptions: how they are asked for, and the handle to one.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::dedup::Dedup;
use super::delivery::{Delivery, PartitionState};
use super::domain::{Domain, Figures, ParkedKeys};
use super::error::Error;
use super::event::{Event, Message};
use super::handler::{
    EventBatchHandler, EventHandler, Events, FromFn, InBatches, MessageHandler, OneByOne, Typed,
};
use super::plain::Plain;
use super::pump::{self, Flow};
use super::rate::{Limiter, RateLimit};
use super::{Bus, DEFAULT_GROUP, Shared};
use crate::broker::Start;
use crate::lanes::{CloseReport, Drain, Failure, Handler, Intake, LaneBy, TopicOptions};
use crate::retry::RetryPolicy;
use crate::topic::{Kind, Topic, TopicName};

/// What happens to a domain event when all attempts have failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Exhausted {
    /// It goes to `<topic>.dead`, and the next one of its key follows.
    #[default]
    DeadLetter,
    /// It and all later ones of its key go, in order, to `<topic>.parked` until somebody releases
    /// the key.
    ParkKey,
    /// The subscription stops, with the event unsettled.
    Stop,
}

/// Asks for a subscription. See [`Bus::subscription`].
#[must_use = "end with envelope, envelopes, typed, message or a handler"]
pub struct SubscriptionBuilder {
    bus: Bus,
    topic: String,
    group: String,
    start: Start,
    exhausted: Exhausted,
    lanes: TopicOptions,
    rate: Option<RateLimit>,
    dedup: Option<usize>,
}

impl SubscriptionBuilder {
    pub(super) fn new(bus: Bus, topic: &str) -> Self {
        let lanes = bus.shared.lane_options.clone();
        Self {
            bus,
            topic: topic.to_owned(),
            group: DEFAULT_GROUP.to_owned(),
            start: Start::default(),
            exhausted: Exhausted::default(),
            lanes,
            rate: None,
            dedup: None,
        }
    }

    /// The group that reads. Every group sees everything; its position is kept under its name.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = group.into();
        self
    }

    /// Where the group starts if it has never read the topic.
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// How often a failed event is tried again, and after how long.
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.lanes = self.lanes.retry(retry);
        self
    }

    /// What happens to an event when all attempts have failed.
    pub fn on_exhausted(mut self, exhausted: Exhausted) -> Self {
        self.exhausted = exhausted;
        self
    }

    /// How long an attempt may take; `None` for ever.
    pub fn time_limit(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.lanes = self.lanes.time_limit(limit);
        self
    }

    /// What a lane is.
    pub fn lane_by(mut self, lane_by: LaneBy) -> Self {
        self.lanes = self.lanes.lane_by(lane_by);
        self
    }

    /// How many events of one key may wait in memory.
    pub fn lane_bound(mut self, events: usize) -> Self {
        self.lanes = self.lanes.lane_bound(events);
        self
    }

    /// How fast events are taken.
    pub fn rate_limit(mut self, rate: RateLimit) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Skips events whose id was among the last `remembered` that were handled. In memory: it helps
    /// against publishers that repeat themselves, not across a restart.
    pub fn dedup(mut self, remembered: usize) -> Self {
        self.dedup = Some(remembered);
        self
    }

    /// Handles domain events by a closure.
    ///
    /// # Errors
    /// When the topic is not a domain topic, the group reads it already, or the broker fails.
    pub async fn envelope<F, Fut>(self, handle: F) -> Result<Subscription, Error>
    where
        F: Fn(Event) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.envelope_handler(FromFn(handle)).await
    }

    /// Handles domain events by a handler.
    ///
    /// # Errors
    /// As [`envelope`](Self::envelope).
    pub async fn envelope_handler(self, handler: impl EventHandler) -> Result<Subscription, Error> {
        self.domain(OneByOne(handler)).await
    }

    /// Handles domain events whose payload is a `T`. An event whose payload is not one goes to the
    /// dead letters at once.
    ///
    /// # Errors
    /// As [`envelope`](Self::envelope).
    pub async fn typed<T, F, Fut>(self, handle: F) -> Result<Subscription, Error>
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(T, Event) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.envelope_handler(Typed::new(handle)).await
    }

    /// Handles up to `most` events of one aggregate at once, by a closure.
    ///
    /// # Errors
    /// As [`envelope`](Self::envelope).
    pub async fn envelopes<F, Fut>(self, most: usize, handle: F) -> Result<Subscription, Error>
    where
        F: Fn(Vec<Event>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.envelopes_handler(most, FromFn(handle)).await
    }

    /// Handles up to `most` events of one aggregate at once, by a handler.
    ///
    /// # Errors
    /// As [`envelope`](Self::envelope).
    pub async fn envelopes_handler(
        self,
        most: usize,
        handler: impl EventBatchHandler,
    ) -> Result<Subscription, Error> {
        self.domain(InBatches { handler, most }).await
    }

    /// Handles plain messages by a closure.
    ///
    /// # Errors
    /// When the topic is not a plain topic, the group reads it already, or the broker fails.
    pub async fn message<F, Fut>(self, handle: F) -> Result<Subscription, Error>
    where
        F: Fn(Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.message_handler(FromFn(handle)).await
    }

    /// Handles plain messages by a handler.
    ///
    /// # Errors
    /// As [`message`](Self::message).
    pub async fn message_handler(
        self,
        handler: impl MessageHandler,
    ) -> Result<Subscription, Error> {
        let topic = self.bus.topic_of_kind(&self.topic, Kind::Plain).await?;
        let figures = Arc::new(Figures::default());
        let plain = Plain {
            topic: topic.name().clone(),
            handler,
            figures: figures.clone(),
        };
        // It does not come again: one attempt, and nobody to hand it to.
        let lanes = self.lanes.clone().retry(RetryPolicy::none());
        self.start_reading(topic, lanes, figures, Arc::default(), plain)
            .await
    }

    async fn domain<H: Events>(self, handler: H) -> Result<Subscription, Error> {
        let topic = self.bus.topic_of_kind(&self.topic, Kind::Domain).await?;
        let shared = self.bus.shared.clone();
        let figures = Arc::new(Figures::default());
        let stopper = Arc::<Stopper>::default();
        let group: Arc<str> = self.group.as_str().into();
        let parked = shared.parked(topic.name());
        // Before the first event is read: the keys that must not be handled.
        let keys: HashSet<_> = parked
            .list(usize::MAX, |letter| *letter.group == *group)
            .await?
            .into_iter()
            .filter_map(|letter| letter.key)
            .collect();
        let domain = Domain {
            dead: shared.dead(topic.name()),
            parked,
            parked_keys: ParkedKeys::new(keys),
            bus: shared,
            topic: topic.clone(),
            group,
            handler,
            exhausted: self.exhausted,
            dedup: self.dedup.map(Dedup::new),
            stopper: stopper.clone(),
            figures: figures.clone(),
        };
        let lanes = self.lanes.clone();
        self.start_reading(topic, lanes, figures, stopper, domain)
            .await
    }

    async fn start_reading<H: Handler<Delivery>>(
        self,
        topic: Topic,
        lanes: TopicOptions,
        figures: Arc<Figures>,
        stopper: Arc<Stopper>,
        handler: H,
    ) -> Result<Subscription, Error> {
        let shared = &self.bus.shared;
        let name = topic.name().clone();
        let place = shared.take_place(&name, &self.group)?;
        let readers = shared.broker.join(&name, &self.group, self.start).await?;
        let lane_topic = format!("{name}@{}", self.group);
        let intake = shared.engine.topic_with(&lane_topic, lanes, handler)?;
        let commits = Arc::new(Notify::new());
        let flow = Arc::new(Flow {
            broker: shared.broker.clone(),
            topic: name,
            kind: topic.kind(),
            group: self.group.as_str().into(),
            intake: intake.clone(),
            limiter: self.rate.map(Limiter::new),
            stopper: stopper.clone(),
            commits: commits.clone(),
        });
        let mut tasks = JoinSet::new();
        let mut partitions = Vec::new();
        for reader in readers {
            let partition = Arc::new(PartitionState::new(
                reader.partition(),
                reader.epoch(),
                reader.position().clone(),
                commits.clone(),
            ));
            partitions.push(partition.clone());
            tasks.spawn(pump::read(flow.clone(), partition, reader));
        }
        let committer = tokio::spawn(pump::commit_all(flow.clone(), partitions.clone()));
        let inner = Arc::new(Inner {
            flow,
            partitions,
            intake,
            figures,
            stopper,
            tasks: tokio::sync::Mutex::new(Some((tasks, committer))),
            place,
        });
        shared.note_subscription(inner.clone());
        tokio::spawn(stop_when_asked(Arc::downgrade(&inner)));
        Ok(Subscription { inner })
    }
}

/// A subscription that stops itself cannot wait for its own handler.
async fn stop_when_asked(subscription: std::sync::Weak<Inner>) {
    let Some(mut asked) = subscription.upgrade().map(|s| s.stopper.watch()) else {
        return;
    };
    if asked.wait_for(State::is_stopped).await.is_ok()
        && let Some(subscription) = subscription.upgrade()
    {
        subscription.close(Duration::ZERO).await;
    }
}

/// A subscription. It goes on when the handle is dropped; [`close`](Self::close) ends it.
#[derive(Clone)]
pub struct Subscription {
    inner: Arc<Inner>,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("topic", &self.inner.flow.topic)
            .field("group", &self.inner.flow.group)
            .finish_non_exhaustive()
    }
}

impl Subscription {
    /// The topic.
    #[must_use]
    pub fn topic(&self) -> &TopicName {
        &self.inner.flow.topic
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.inner.flow.group
    }

    /// How it is doing.
    #[must_use]
    pub fn state(&self) -> State {
        self.inner.stopper.state()
    }

    /// Resolves when it has stopped by itself, with the reason.
    pub async fn stopped(&self) -> String {
        let mut watch = self.inner.stopper.watch();
        match watch.wait_for(State::is_stopped).await.as_deref() {
            Ok(State::Stopped(reason)) => reason.clone(),
            _ => "closed".to_owned(),
        }
    }

    /// What it has done so far.
    #[must_use]
    pub fn figures(&self) -> SubscriptionFigures {
        self.inner.figures()
    }

    /// Stops reading, finishes what runs (for plain messages: all that was taken) within the
    /// deadline, commits, and lets the group go.
    pub async fn close(&self, deadline: Duration) -> CloseReport {
        self.inner.close(deadline).await
    }
}

/// What a subscription has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SubscriptionFigures {
    /// Deliveries that were handled.
    pub handled: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Events that went to the dead letters.
    pub dead_lettered: u64,
    /// Events that were parked.
    pub parked: u64,
    /// Events that were skipped because their id was known.
    pub deduplicated: u64,
}

pub(super) struct Inner {
    pub(super) flow: Arc<Flow>,
    partitions: Vec<Arc<PartitionState>>,
    intake: Intake<Delivery>,
    figures: Arc<Figures>,
    pub(super) stopper: Arc<Stopper>,
    tasks: tokio::sync::Mutex<Option<(JoinSet<()>, tokio::task::JoinHandle<()>)>>,
    place: Place,
}

impl Inner {
    pub(super) async fn close(&self, deadline: Duration) -> CloseReport {
        // Held throughout: a second close waits for the first.
        let mut tasks = self.tasks.lock().await;
        let Some((mut readers, committer)) = tasks.take() else {
            return CloseReport::default();
        };
        readers.shutdown().await;
        let drain = match self.flow.kind {
            // They are safe in the log.
            Kind::Domain => Drain::Running,
            // They are settled already.
            Kind::Plain => Drain::Queued,
        };
        let report = self.intake.close(drain, deadline).await;
        committer.abort();
        // It may be in the middle of a commit; an older position must not land after the last.
        let _ = committer.await;
        pump::commit_finally(&self.flow, &self.partitions).await;
        self.stopper.closed();
        self.place.give_up(self);
        report
    }

    pub(super) fn figures(&self) -> SubscriptionFigures {
        use std::sync::atomic::Ordering::Relaxed;
        let figures = &self.figures;
        SubscriptionFigures {
            handled: figures.handled.load(Relaxed),
            failed: figures.failed.load(Relaxed),
            dead_lettered: figures.dead.load(Relaxed),
            parked: figures.parked.load(Relaxed),
            deduplicated: figures.deduplicated.load(Relaxed),
        }
    }
}

/// Keeps a group from subscribing to a topic twice.
pub(super) struct Place {
    shared: std::sync::Weak<Shared>,
    key: (TopicName, String),
}

impl Place {
    pub(super) fn new(shared: &Arc<Shared>, key: (TopicName, String)) -> Self {
        Self {
            shared: Arc::downgrade(shared),
            key,
        }
    }

    /// The group may subscribe again.
    fn give_up(&self, subscription: &Inner) {
        if let Some(shared) = self.shared.upgrade() {
            shared.forget_subscription(subscription);
            shared.give_up_place(&self.key);
        }
    }
}

/// A subscription that could not be started gives its place up too.
impl Drop for Place {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.give_up_place(&self.key);
        }
    }
}

/// How a subscription is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// It reads, handles and commits.
    Running,
    /// The broker fails it, and it tries again.
    Failing(String),
    /// It stopped by itself.
    Stopped(String),
    /// It was closed.
    Closed,
}

impl State {
    fn is_stopped(&self) -> bool {
        matches!(self, Self::Stopped(_) | Self::Closed)
    }
}

/// Where the parts of a subscription say how they are doing.
#[derive(Debug)]
pub(super) struct Stopper {
    state: watch::Sender<State>,
    last_commit: Mutex<Option<tokio::time::Instant>>,
}

impl Default for Stopper {
    fn default() -> Self {
        Self {
            state: watch::Sender::new(State::Running),
            last_commit: Mutex::default(),
        }
    }
}

impl Stopper {
    pub(super) fn stop(&self, reason: String) {
        self.change(State::Stopped(reason));
    }

    pub(super) fn failing(&self, reason: String) {
        self.change(State::Failing(reason));
    }

    pub(super) fn fine(&self) {
        self.change(State::Running);
    }

    fn closed(&self) {
        self.change(State::Closed);
    }

    pub(super) fn committed(&self) {
        *self
            .last_commit
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(tokio::time::Instant::now());
    }

    pub(super) fn since_commit(&self) -> Option<Duration> {
        self.last_commit
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .map(|at| at.elapsed())
    }

    pub(super) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    fn watch(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// What has stopped stays stopped.
    fn change(&self, next: State) {
        self.state.send_if_modified(|state| {
            let changes = !state.is_stopped() && *state != next;
            if changes {
                *state = next;
            }
            changes
        });
    }
}
