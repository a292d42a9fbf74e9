//! How a subscription is asked for and begun.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::dedup::Dedup;
use super::delivery::Delivery;
use super::domain::{Domain, Figures};
use super::error::Error;
use super::event::{Event, Message};
use super::handle::{Inner, Open, Place, Subscription, stop_when_asked};
use super::handler::{
    EventBatchHandler, EventHandler, Events, InBatches, MessageHandler, OneByOne, Typed,
};
use super::holdings::{self, Holdings, Parked};
use super::parked::ParkedKeys;
use super::plain::Plain;
use super::pump::{self, Ending, Flow};
use super::rate::{Limiter, RateLimit};
use super::state::Condition;
use super::{Bus, DEFAULT_GROUP};
use crate::broker::{Member, Start};
use crate::lanes::{Drain, Failure, Handler, LaneBy, TopicOptions};
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
    /// When the topic is not a plain topic, the group reads it already, or the broker fails.
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
        let joined = self.join(&topic).await?;
        let parts = Parts::default();
        let plain = Plain {
            topic: topic.name().clone(),
            handler,
            figures: parts.figures.clone(),
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
            figures: parts.figures.clone(),
        };
        let lanes = self.lanes.clone();
        self.begin(&topic, joined, lanes, parts, domain).await
    }

    async fn topic_of_kind(&self, kind: Kind) -> Result<Topic, Error> {
        Ok(self.bus.known(&self.topic, kind).await?.topic.clone())
    }

    /// From here on nobody else reads for the group.
    async fn join(&self, topic: &Topic) -> Result<Joined, Error> {
        check_group(&self.group)?;
        let shared = &self.bus.shared;
        let place = shared.take_place(topic.name(), &self.group)?;
        let joining = shared.broker.join(topic.name(), &self.group, self.start);
        let member = shared.patience.with("joining a group", joining).await?;
        Ok(Joined { place, member })
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
        let lane_topic = format!("{}@{}", topic.name(), self.group);
        let intake = shared.engine.topic_with(&lane_topic, lanes, handler)?;
        let flow = Arc::new(Flow {
            broker: shared.broker.clone(),
            patience: shared.patience,
            topic: topic.name().clone(),
            kind: topic.kind(),
            group: self.group.as_str().into(),
            intake,
            limiter: self.rate.map(Limiter::new),
            condition: parts.condition,
            commits: Arc::new(Notify::new()),
            progress: shared.progress.clone(),
            holdings: Holdings::default(),
            parked: parts.parked,
            ending: watch::Sender::new(Ending::No),
        });
        let mut held = JoinSet::new();
        if let Err(error) = holdings::take_first(&flow, &mut *joined.member, &mut held).await {
            flow.intake.close(Drain::Running, Duration::ZERO).await;
            return Err(error);
        }
        let open = Open {
            keeper: tokio::spawn(holdings::keep(flow.clone(), joined.member, held)),
            committer: tokio::spawn(pump::commit_all(shared.clone(), flow.clone())),
            place: joined.place,
        };
        let inner = Arc::new(Inner::new(shared, flow, parts.figures, open));
        shared.note_subscription(inner.clone());
        if shared.check_open().is_err() {
            // It was closed meanwhile, and may not have seen us.
            inner.close(Duration::ZERO).await;
            return Err(Error::Closed);
        }
        tokio::spawn(stop_when_asked(Arc::downgrade(&inner)));
        Ok(Subscription { inner })
    }
}

/// A group's hold on a topic.
struct Joined {
    place: Place,
    member: Box<dyn Member>,
}

/// What the handler and the rest of a subscription share.
#[derive(Default)]
struct Parts {
    figures: Arc<Figures>,
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
