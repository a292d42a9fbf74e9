//! The bus: publish and subscribe, in order per aggregate, on any broker.
//!
//! # Layout
//!
//! | file | what it is |
//! |---|---|
//! | `mod` | [`Bus`]: open, topics, health, close |
//! | `builder`, `shared` | how it is set up, what its parts share |
//! | `publish` | publishing |
//! | `subscription`, `handle` | how a subscription is asked for, and the handle to it |
//! | `handler` | what users write |
//! | `event` | what their handlers get |
//! | `pump` | from the broker to the lanes, and the commits back |
//! | `holdings` | the partitions that are ours, as they come and go |
//! | `behind` | keys whose lanes are full |
//! | `delivery` | a record on the lanes, and what is settled of its partition |
//! | `domain`, `plain` | what happens to it there, by kind of topic |
//! | `letters`, `aside`, `parked`, `marks` | dead letters and parked events |
//! | `rate`, `dedup` | options of a subscription |
//! | `health`, `state`, `error` | how it is doing, what can go wrong |
//! | `delayed` | events that are published later |
//! | `progress`, `unsettled` | what tests wait for |
//! | `metrics` | the figures for Prometheus |
//! | `patience` | the deadline of every call to the broker |

mod aside;
mod behind;
mod builder;
mod dedup;
mod delayed;
mod delivery;
mod domain;
mod error;
mod event;
mod handle;
mod handler;
mod health;
mod holdings;
mod letters;
mod marks;
mod metrics;
mod parked;
mod patience;
mod plain;
mod progress;
mod publish;
mod pump;
mod putting;
mod rate;
mod shared;
mod state;
mod subscription;
#[cfg(test)]
mod tests;
mod unsettled;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

pub use self::aside::{DeadLetters, Parked};
pub use self::builder::BusBuilder;
pub use self::delayed::{BusSink, DELAY_TOPIC, Delayed};
pub use self::error::Error;
pub use self::event::{Context, Event, Message, Outgoing};
pub use self::handle::{Subscription, SubscriptionFigures};
pub use self::handler::{EventBatchHandler, EventHandler, MessageHandler};
pub use self::health::{Health, SubscriptionHealth};
pub use self::letters::Letter;
pub use self::rate::RateLimit;
pub use self::state::State;
pub use self::subscription::{Exhausted, SubscriptionBuilder};

use self::shared::{Known, Shared};
pub(crate) use self::unsettled::Unsettled;
use crate::broker::{BrokerError, Lag};
use crate::lanes::{CloseReport, Drain, Engine, Failure};
use crate::topic::{Growth, Kind, Strategy, Topic, TopicName};

/// The group of a subscription that names none.
const DEFAULT_GROUP: &str = "default";

/// An event bus. Cheap to clone. It goes on until [`close`](Bus::close) is called, also when all
/// handles to it are dropped.
///
/// ```
/// use laneway::{Bus, Envelope};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let bus = Bus::open("memory:").await?;
/// let (seen, mut handled) = tokio::sync::mpsc::unbounded_channel();
/// bus.subscribe_envelope("orders", move |event| {
///     let seen = seen.clone();
///     async move {
///         seen.send(event.event_type().to_owned()).ok();
///         Ok(())
///     }
/// })
/// .await?;
///
/// let placed = Envelope::builder("order-1", "OrderPlaced").json(&serde_json::json!({"total": 42}))?;
/// bus.publish_envelope("orders", &placed).await?;
/// assert_eq!(handled.recv().await.as_deref(), Some("OrderPlaced"));
/// bus.close(Duration::from_secs(5)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Bus {
    shared: Arc<Shared>,
}

/// Where a published record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The partition.
    pub partition: u32,
    /// The place in it.
    pub offset: u64,
}

impl fmt::Debug for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bus")
            .field("engine", &self.shared.engine)
            .finish_non_exhaustive()
    }
}

impl Bus {
    /// Opens a bus: `memory:` (gone with the process), `file:DIRECTORY` (on disk),
    /// `nats://HOST:PORT` (on NATS `JetStream`) or `kafka://HOST:PORT` (on Apache Kafka).
    ///
    /// # Errors
    /// When the address is unknown or the broker fails.
    pub async fn open(url: &str) -> Result<Self, Error> {
        Self::builder().open(url).await
    }

    /// Sets a bus up before it is opened.
    pub fn builder() -> BusBuilder {
        BusBuilder::default()
    }

    /// Handles the plain messages of a topic by a closure: each once, on whatever worker is free.
    ///
    /// # Errors
    /// When the topic is a domain topic, is subscribed to already, or the broker fails.
    pub async fn subscribe<F, Fut>(&self, topic: &str, handle: F) -> Result<Subscription, Error>
    where
        F: Fn(Message) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.subscription(topic).message(handle).await
    }

    /// Handles the domain events of a topic by a closure: in order per aggregate, in parallel across
    /// aggregates, at least once.
    ///
    /// # Errors
    /// When the topic is a plain topic, is subscribed to already, or the broker fails.
    pub async fn subscribe_envelope<F, Fut>(
        &self,
        topic: &str,
        handle: F,
    ) -> Result<Subscription, Error>
    where
        F: Fn(Event) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.subscription(topic).envelope(handle).await
    }

    /// Subscribes with options: group, retries, batches, limits.
    pub fn subscription(&self, topic: &str) -> SubscriptionBuilder {
        SubscriptionBuilder::new(self.clone(), topic)
    }

    /// Declares a topic, as the strategy of the bus says; answers it as it is then.
    ///
    /// # Errors
    /// When the topic exists and is something else (both sides are named), or the broker fails.
    pub async fn declare(&self, topic: &Topic) -> Result<Topic, Error> {
        self.declare_with(topic, self.shared.strategy, Growth::Refused)
            .await
    }

    /// Declares a topic by a strategy; `growth` allows more partitions, which breaks the order of
    /// keys once.
    ///
    /// # Errors
    /// As [`declare`](Self::declare).
    pub async fn declare_with(
        &self,
        topic: &Topic,
        strategy: Strategy,
        growth: Growth,
    ) -> Result<Topic, Error> {
        self.shared.check_open()?;
        if topic.name().reserved().is_some() {
            return Err(Error::Reserved(topic.name().clone()));
        }
        let declaring = self.shared.broker.declare(topic, strategy, growth);
        let topic = self.ask("declaring a topic", declaring).await?;
        // Under this strategy the answer does not mean that it exists.
        if strategy != Strategy::Skip {
            self.shared.remember(topic.clone());
        }
        Ok(topic)
    }

    /// All topics.
    ///
    /// # Errors
    /// When the broker fails.
    pub async fn topics(&self) -> Result<Vec<Topic>, Error> {
        self.shared.check_open()?;
        self.ask("listing topics", self.shared.broker.topics())
            .await
    }

    /// A topic as it is; `None` if it does not exist.
    ///
    /// # Errors
    /// When the name cannot be one, or the broker fails.
    pub async fn describe(&self, topic: &str) -> Result<Option<Topic>, Error> {
        self.shared.check_open()?;
        let name = TopicName::new(topic)?;
        let describing = self.shared.broker.describe(&name);
        self.ask("describing a topic", describing).await
    }

    /// Deletes a topic, its records, its dead letters and parked events, and what its groups have
    /// settled.
    ///
    /// # Errors
    /// When it does not exist, is subscribed to, or the broker fails.
    pub async fn delete(&self, topic: &str) -> Result<(), Error> {
        self.shared.check_open()?;
        let name = TopicName::new(topic)?;
        if name.reserved().is_some() {
            return Err(Error::Reserved(name));
        }
        let deleting = self.shared.broker.delete(&name);
        self.ask("deleting a topic", deleting).await?;
        // A topic of the same name that comes later must not begin with keys that are parked.
        for beside in [name.dead(), name.parked()] {
            let deleting = self.shared.broker.delete(&beside);
            match self.ask("deleting a topic", deleting).await {
                Ok(()) | Err(Error::Broker(BrokerError::UnknownTopic(_))) => {}
                Err(error) => return Err(error),
            }
        }
        self.shared.forget(&name);
        Ok(())
    }

    /// The dead letters of a topic.
    ///
    /// # Errors
    /// When the topic does not exist.
    pub async fn dead_letters(&self, topic: &str) -> Result<DeadLetters, Error> {
        let topic = self.existing(topic).await?;
        Ok(DeadLetters {
            bus: self.shared.clone(),
            letters: self.shared.dead(topic.name()),
            topic,
        })
    }

    /// The parked events of a topic.
    ///
    /// # Errors
    /// When the topic does not exist.
    pub async fn parked(&self, topic: &str) -> Result<Parked, Error> {
        let topic = self.existing(topic).await?;
        Ok(Parked {
            bus: self.shared.clone(),
            letters: self.shared.parked(topic.name()),
            topic,
        })
    }

    /// How far a group is behind in a topic, by partition.
    ///
    /// # Errors
    /// When the topic does not exist, or the broker fails.
    pub async fn backlog(&self, topic: &str, group: &str) -> Result<Vec<Lag>, Error> {
        self.shared.check_open()?;
        let name = TopicName::new(topic)?;
        let asking = self.shared.broker.lag(&name, group);
        self.ask("asking for the backlog", asking).await
    }

    /// How the bus is doing.
    pub async fn health(&self) -> Health {
        let asking = self.shared.broker.health();
        let broker = self.ask("asking the broker", asking).await;
        let mut health = Health {
            broker: broker.err().map(|error| error.to_string()),
            subscriptions: self
                .shared
                .subscriptions()
                .iter()
                .map(|subscription| SubscriptionHealth {
                    topic: subscription.flow.topic.clone(),
                    group: subscription.flow.group.to_string(),
                    state: subscription.flow.condition.state(),
                    since_commit: subscription.flow.condition.since_commit(),
                    figures: subscription.figures(),
                })
                .collect(),
            degraded_workers: 0,
            longest_running: None,
        };
        health.of_workers(&self.shared.engine.stats().workers);
        health
    }

    /// The engine that runs the handlers: its events and figures.
    #[must_use]
    pub fn lanes(&self) -> &Engine {
        &self.shared.engine
    }

    /// Closes the subscriptions within the deadline, commits, and lets the broker go. Answers what
    /// was left; it comes again when the bus is opened the next time. A caller that gives up does
    /// not stop it.
    ///
    /// # Errors
    /// When the bus is closed already, or the broker fails; the bus is closed then all the same.
    pub async fn close(&self, deadline: Duration) -> Result<CloseReport, Error> {
        if self.shared.closed.swap(true, Ordering::SeqCst) {
            return Err(Error::Closed);
        }
        let bus = self.clone();
        let closing = tokio::spawn(async move { bus.close_here(deadline).await });
        // An error means that the runtime goes down, and everything with it.
        closing.await.unwrap_or(Err(Error::Closed))
    }

    async fn close_here(&self, deadline: Duration) -> Result<CloseReport, Error> {
        let until = Instant::now() + deadline;
        let delays = self.shared.delays.close(deadline).await;
        let subscriptions = self.shared.subscriptions();
        let closing = subscriptions
            .iter()
            .map(|subscription| subscription.close(deadline));
        let mut report = CloseReport::default();
        for closed in futures_util::future::join_all(closing).await {
            report.left.extend(closed.left);
        }
        // What is left of them was told already.
        let rest = until.saturating_duration_since(Instant::now());
        self.shared.engine.close(Drain::Running, rest).await;
        self.ask("closing the broker", self.shared.broker.close())
            .await?;
        delays?;
        Ok(report)
    }

    /// The topic, declared by its first use if need be; an error if it is of the other kind.
    async fn known(&self, name: &str, kind: Kind) -> Result<Arc<Known>, Error> {
        self.shared.check_open()?;
        let known = match self.shared.known(name) {
            Some(known) => known,
            None => self.first_use(name, kind).await?,
        };
        if known.topic.kind() == kind {
            Ok(known)
        } else {
            Err(Error::WrongKind {
                topic: known.topic.name().clone(),
                is: known.topic.kind(),
                used_as: kind,
            })
        }
    }

    async fn first_use(&self, name: &str, kind: Kind) -> Result<Arc<Known>, Error> {
        let name = TopicName::new(name)?;
        // A handler of dead letters that fails would make more of them without end.
        if name.reserved().is_some() {
            return Err(Error::Reserved(name));
        }
        if let Some(topic) = self.describe(name.as_str()).await? {
            return Ok(self.shared.remember(topic));
        }
        let topic = match kind {
            Kind::Domain => Topic::domain(name.as_str()),
            Kind::Plain => Topic::plain(name.as_str()),
        };
        let topic = self.declare(&topic.build()?).await?;
        let known = self.shared.known(name.as_str());
        Ok(known.unwrap_or_else(|| Arc::new(Known::new(topic))))
    }

    async fn existing(&self, name: &str) -> Result<Topic, Error> {
        let name = TopicName::new(name)?.base();
        self.describe(name.as_str())
            .await?
            .ok_or_else(|| BrokerError::UnknownTopic(name).into())
    }

    /// Asks the broker, with the deadline of the bus.
    async fn ask<T, E: Into<Error>>(
        &self,
        doing: &'static str,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Error> {
        self.shared.patience.with(doing, call).await
    }
}
