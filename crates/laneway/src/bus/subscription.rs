//! How a subscription is asked for and begun.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::assigned_partitions::{self, AssignedPartitions};
use super::dead_letters::parked_keys::{Parked, ParkedKeys};
use super::dedup::Dedup;
use super::delivery::Delivery;
use super::domain::{Domain, Stats};
use super::error::Error;
use super::event::{Event, Message};
use super::handle::{Inner, Open, Subscription, hint_if_idle, stop_when_asked};
use super::handler::{
    EventBatchHandler, EventHandler, Events, InBatches, MessageHandler, OneByOne, Typed,
};
use super::partition_state::PartitionState;
use super::plain::Plain;
use super::pump::{self, Ending, Flow};
use super::rate::{Limiter, RateLimit};
use super::restart::Restarts;
use super::state::Condition;
use super::warnings::Warnings;
use super::{Bus, DEFAULT_GROUP};
use crate::broker::subscriptions::SubscriptionGuard;
use crate::broker::{Member, Start};
use crate::lanes::{Failure, Handler, LaneBy, TopicOptions};
use crate::planted::planted;
use crate::retry::RetryPolicy;
use crate::topic::{Kind, Topic};

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
///
/// ```
/// use laneway::retry::RetryPolicy;
/// use laneway::{Bus, Exhausted, Start};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let bus = Bus::open("memory:").await?;
/// let (first, most) = (Duration::from_millis(100), Duration::from_secs(30));
/// let subscription = bus
///     .subscription("orders")
///     .group("billing") // every group sees every event
///     .start(Start::Latest)
///     .retry(RetryPolicy::exponential(10, first, most)?)
///     .on_exhausted(Exhausted::ParkKey) // later events of the key wait behind the one that failed
///     .envelope(|event| async move {
///         println!("{}", event.event_type());
///         Ok(())
///     })
///     .await?;
/// assert_eq!(subscription.group(), "billing");
/// bus.close(Duration::from_secs(1)).await?;
/// # Ok(())
/// # }
/// ```
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
    /// Settings that were made and that only domain topics have.
    of_events: Vec<&'static str>,
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
            of_events: Vec::new(),
        }
    }

    fn of_events(mut self, setting: &'static str) -> Self {
        self.of_events.push(setting);
        self
    }

    /// The group that reads. Every group sees everything; its position is kept under its name: 1 to
    /// 255 visible ASCII characters other than `@`, not beginning with `laneway-`.
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = group.into();
        self
    }

    /// Where the group starts if it has never read the topic.
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// How often a failed event is tried again, and after how long. For domain topics only.
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.lanes = self.lanes.retry(retry);
        self.of_events("retry")
    }

    /// What happens to an event when all attempts have failed. For domain topics only.
    pub fn on_exhausted(mut self, exhausted: Exhausted) -> Self {
        self.exhausted = exhausted;
        self.of_events("on_exhausted")
    }

    /// How long an attempt may take; `None` for ever.
    pub fn time_limit(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.lanes = self.lanes.time_limit(limit);
        self
    }

    /// What a lane is. For domain topics only: plain messages have no key.
    pub fn lane_by(mut self, lane_by: LaneBy) -> Self {
        self.lanes = self.lanes.lane_by(lane_by);
        self.of_events("lane_by")
    }

    /// How many events of one key may wait in memory. For domain topics only.
    pub fn lane_bound(mut self, events: usize) -> Self {
        self.lanes = self.lanes.lane_bound(events);
        self.of_events("lane_bound")
    }

    /// How fast events are taken.
    pub fn rate_limit(mut self, rate: RateLimit) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Skips events whose id was among the last `remembered` that were handled. In memory: it helps
    /// against publishers that repeat themselves, not across a restart. For domain topics only.
    pub fn dedup(mut self, remembered: usize) -> Self {
        self.dedup = Some(remembered);
        self.of_events("dedup")
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
        self.envelope_handler(handle).await
    }

    /// Handles domain events by a handler.
    ///
    /// # Errors
    /// As [`envelope`](Self::envelope).
    pub async fn envelope_handler(self, handler: impl EventHandler) -> Result<Subscription, Error> {
        self.domain(OneByOne(handler)).await
    }

    /// Handles domain events whose payload is a `T`. An event whose payload is not one has failed for
    /// good at once: it goes to the dead letters, unless [`on_exhausted`](Self::on_exhausted) says
    /// otherwise.
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
        self.envelopes_handler(most, handle).await
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
    /// When the topic is not a plain topic, a setting is only for domain topics, the group reads it
    /// already, or the broker fails.
    pub async fn message<F, Fut>(self, handle: F) -> Result<Subscription, Error>
    where
        F: Fn(Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.message_handler(handle).await
    }

    /// Handles plain messages by a handler.
    ///
    /// # Errors
    /// As [`message`](Self::message).
    pub async fn message_handler(
        self,
        handler: impl MessageHandler,
    ) -> Result<Subscription, Error> {
        let topic = self.topic_of_kind(Kind::Plain).await?;
        if let Some(setting) = self.of_events.first() {
            return Err(Error::OnlyForEvents {
                topic: topic.name().clone(),
                setting,
            });
        }
        let joined = self.join(&topic).await?;
        let parts = Parts::default();
        let plain = Plain {
            topic: topic.name().clone(),
            handler,
            stats: parts.stats.clone(),
            warnings: Warnings::default(),
        };
        // It does not come again: one attempt, and nobody to hand it to.
        let lanes = self.lanes.clone().retry(RetryPolicy::none());
        self.begin(&topic, joined, lanes, parts, plain).await
    }

    async fn domain<H: Events>(self, handler: H) -> Result<Subscription, Error> {
        let topic = self.topic_of_kind(Kind::Domain).await?;
        let shared = &self.bus.shared;
        let joined = self.join(&topic).await?;
        let parked_keys = Arc::new(ParkedKeys::default());
        let parts = Parts {
            parked: Some(Parked {
                keys: parked_keys.clone(),
                letters: shared.parked(topic.name()),
                dead: shared.dead(topic.name()),
                parks: self.exhausted == Exhausted::ParkKey,
            }),
            ..Parts::default()
        };
        let domain = Domain {
            bus: Arc::downgrade(shared),
            topic: topic.clone(),
            group: self.group.as_str().into(),
            handler,
            exhausted: self.exhausted,
            parked_keys,
            dedup: self.dedup.map(Dedup::new),
            condition: parts.condition.clone(),
            stats: parts.stats.clone(),
            warnings: Warnings::default(),
        };
        let lanes = self.lanes.clone();
        self.begin(&topic, joined, lanes, parts, domain).await
    }

    async fn topic_of_kind(&self, kind: Kind) -> Result<Topic, Error> {
        self.bus.shared.check_open()?;
        Ok(self.bus.topic(&self.topic, kind).await?.topic.clone())
    }

    /// From here on no other subscription of this process reads for the group.
    async fn join(&self, topic: &Topic) -> Result<Joined, Error> {
        check_group(&self.group)?;
        let shared = &self.bus.shared;
        let guard = shared.subscribe_once(topic.name(), &self.group)?;
        let joining = shared.broker.join(topic.name(), &self.group, self.start);
        let member = shared.call_timeout.with("joining a group", joining).await?;
        Ok(Joined { guard, member })
    }

    /// Learns what is parked in the partitions that are ours from the beginning. Answers the numbers of those that it is
    /// known for.
    async fn prepare(
        &self,
        parts: &Parts,
        first: &[Arc<PartitionState>],
    ) -> Result<Vec<u32>, Error> {
        match &parts.parked {
            Some(parked) => parked.prepare(&self.group, first).await,
            None => Ok(first.iter().map(|held| held.number).collect()),
        }
    }

    async fn begin<H: Handler<Delivery>>(
        self,
        topic: &Topic,
        mut joined: Joined,
        lanes: TopicOptions,
        parts: Parts,
        handler: H,
    ) -> Result<Subscription, Error> {
        let shared = &self.bus.shared;
        let commits = Arc::new(Notify::new());
        let first = assigned_partitions::first(&mut *joined.member, &commits, &shared.progress)?;
        let mut prepared = Vec::new();
        if !planted("B3") {
            prepared = self.prepare(&parts, &first).await?;
        }
        // From here on nothing waits: a caller that gives up has begun nothing, or everything.
        let lane_topic = format!("{}@{}", topic.name(), self.group);
        let intake = shared.engine.topic_with(&lane_topic, lanes, handler)?;
        if planted("B3") {
            prepared = self.prepare(&parts, &first).await?;
        }
        let flow = Arc::new(Flow {
            broker: shared.broker.clone(),
            call_timeout: shared.call_timeout,
            limits: shared.limits,
            topic: topic.name().clone(),
            kind: topic.kind(),
            group: self.group.as_str().into(),
            intake,
            limiter: self.rate.map(Limiter::new),
            condition: parts.condition,
            commits,
            progress: shared.progress.clone(),
            assigned: AssignedPartitions::default(),
            restarts: Restarts::default(),
            parked: parts.parked,
            ending: watch::Sender::new(Ending::No),
        });
        let mut held = JoinSet::new();
        assigned_partitions::hold_first(&flow, first, &prepared, &mut held);
        let open = Open {
            keeper: tokio::spawn(assigned_partitions::keep(flow.clone(), joined.member, held)),
            committer: tokio::spawn(pump::commit_all(shared.clone(), flow.clone())),
            guard: joined.guard,
        };
        let inner = Arc::new(Inner::new(shared, flow, parts.stats, open));
        shared.note_subscription(inner.clone());
        if shared.check_open().is_err() {
            // It was closed meanwhile, and may not have seen us.
            inner.close(Duration::ZERO).await;
            return Err(Error::Closed);
        }
        tokio::spawn(stop_when_asked(Arc::downgrade(&inner)));
        if shared.broker.is_shared() {
            tokio::spawn(hint_if_idle(Arc::downgrade(&inner)));
        }
        Ok(Subscription { inner })
    }
}

/// A group's hold on a topic.
struct Joined {
    guard: SubscriptionGuard,
    member: Box<dyn Member>,
}

/// What the handler and the rest of a subscription share.
#[derive(Default)]
struct Parts {
    stats: Arc<Stats>,
    condition: Arc<Condition>,
    parked: Option<Parked>,
}

fn check_group(group: &str) -> Result<(), Error> {
    let visible = group
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'@');
    let fits = (1..=255).contains(&group.len());
    // Names that the bus keeps its own books under.
    if visible && fits && !group.starts_with("laneway-") {
        return Ok(());
    }
    Err(Error::Group {
        group: group.to_owned(),
    })
}
