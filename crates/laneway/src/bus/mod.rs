//! The bus: publish and subscribe, in order per aggregate, on any broker.
//!
//! # Layout
//!
//! | file | what it is |
//! |---|---|
//! | `mod` | [`Bus`]: open, topics, health, close |
//! | `builder`, `shared` | how it is set up, what its parts share |
//! | `publish`, `publishes` | publishing, and what is counted of it |
//! | `subscription`, `handle` | how a subscription is asked for, and the handle to it |
//! | `handler` | what users write |
//! | `event` | what their handlers get |
//! | `pump` | from the broker to the lanes, and the commits back |
//! | `assigned_partitions` | the partitions that a rebalance assigns and revokes |
//! | `partition_state` | an assigned partition: what is settled of it, and what may start |
//! | `overflow` | keys whose lanes are full |
//! | `delivery` | a record on its way through the lanes |
//! | `domain`, `plain` | what happens to it there, by kind of topic |
//! | `releasing` | a release of a parked key, in the lane of the key |
//! | `dead_letters` | dead letters and parked events: written once, fenced, listed, replayed |
//! | `rate`, `dedup` | options of a subscription |
//! | `warnings` | what is logged of failures, however many there are |
//! | `health`, `state`, `error` | how it is doing, what can go wrong |
//! | `delayed` | events that are published later |
//! | `progress`, `unsettled` | what tests wait for |
//! | `metrics` | the figures for Prometheus |
//! | `log_access` | what a log has of its bus |
//! | `limits` | the sizes at which something happens; tiny in tests |
//! | `call_timeout` | the deadline of every call to the broker |
//! | `restart` | tasks that panicked are told and started again |
//! | `breaking` | what tests and fault runs read of the state of a group |

mod assigned_partitions;
mod breaking;
mod builder;
mod call_timeout;
mod dead_letters;
mod dedup;
#[cfg(feature = "delay")]
mod delayed;
mod delivery;
mod domain;
mod error;
mod event;
mod handle;
mod handler;
mod health;
mod limits;
#[cfg(feature = "log")]
mod log_access;
#[cfg(feature = "metrics")]
mod metrics;
mod overflow;
mod partition_state;
mod plain;
mod progress;
mod publish;
mod publishes;
mod pump;
mod rate;
mod releasing;
mod restart;
mod shared;
mod state;
mod subscription;
#[cfg(test)]
mod tests;
#[cfg(feature = "testing")]
mod unsettled;
mod warnings;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

pub use self::breaking::{contents, position, write_positions};
pub use self::builder::BusBuilder;
pub use self::dead_letters::topic::Letter;
pub use self::dead_letters::{DeadLetters, Parked};
#[cfg(feature = "delay")]
pub use self::delayed::{BusSink, DELAY_TOPIC, Delayed};
pub use self::error::Error;
pub use self::event::{Context, Event, Message, Outgoing};
pub use self::handle::{Subscription, SubscriptionStats};
pub use self::handler::{EventBatchHandler, EventHandler, MessageHandler};
pub use self::health::{Health, SubscriptionHealth};
pub use self::limits::BusLimits;
#[cfg(feature = "log")]
pub(crate) use self::log_access::LogAccess;
pub use self::rate::RateLimit;
pub use self::state::State;
pub use self::subscription::{Exhausted, SubscriptionBuilder};

use self::call_timeout::CallTimeout;
use self::handle::GOODBYE_WITHIN;
use self::shared::{KnownTopic, Shared};
#[cfg(feature = "testing")]
pub(crate) use self::unsettled::Unsettled;
use crate::broker::embedded::finish::Finish;
use crate::broker::{BrokerError, Lag};
use crate::lanes::{CloseReport, Drain, Engine, Failure, after};
use crate::planted::planted;
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
        self.declare_here(topic, strategy, growth).await
    }

    async fn declare_here(
        &self,
        topic: &Topic,
        strategy: Strategy,
        growth: Growth,
    ) -> Result<Topic, Error> {
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
        self.describe_here(&TopicName::new(topic)?).await
    }

    async fn describe_here(&self, name: &TopicName) -> Result<Option<Topic>, Error> {
        let describing = self.shared.broker.describe(name);
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
        let deleting = self.clone().delete_all(name);
        if planted("C4") {
            return deleting.await;
        }
        Finish::new(deleting).await
    }

    /// Deletes a topic and what was put aside of it. Once begun it goes on when its caller gives up: a topic of the same name
    /// that comes later must not begin with keys that are parked. What a crash leaves of it goes with the next call.
    async fn delete_all(self, name: TopicName) -> Result<(), Error> {
        let mut is_known = false;
        for part in [name.clone(), name.dead(), name.parked()] {
            let deleting = self.shared.broker.delete(&part);
            match self.ask("deleting a topic", deleting).await {
                Ok(()) => is_known = true,
                Err(Error::Broker(BrokerError::UnknownTopic(_))) => {}
                Err(error) => return Err(error),
            }
        }
        self.shared.forget(&name);
        if is_known {
            Ok(())
        } else {
            Err(BrokerError::UnknownTopic(name).into())
        }
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
                    partitions: subscription.flow.assigned.all().len(),
                    since_commit: subscription.flow.condition.since_commit(),
                    stats: subscription.stats(),
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
    /// not stop it. `Duration::MAX` is no deadline.
    ///
    /// Handlers that run can publish until they have ended; nothing else can be asked of the bus from the
    /// beginning. The deadline is for everything together. What has to be told to the broker then has a
    /// second more for each step, also if the broker is away.
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
        let until = after(deadline);
        let left = || until.saturating_duration_since(Instant::now());
        let subscriptions = self.shared.subscriptions();
        let closing = subscriptions
            .iter()
            .map(|subscription| subscription.close(deadline));
        let mut report = CloseReport::default();
        for closed in futures_util::future::join_all(closing).await {
            report.left.extend(closed.left);
        }
        // What is left of them was told already.
        self.shared.engine.close(Drain::Running, left()).await;
        // After the handlers: they may ask for delayed events as long as they run.
        #[cfg(feature = "delay")]
        let delays = self.shared.delays.close(left().max(GOODBYE_WITHIN)).await;
        self.shared.drained.store(true, Ordering::SeqCst);
        let CallTimeout(limit) = self.shared.call_timeout;
        let call_timeout = CallTimeout(left().max(GOODBYE_WITHIN).min(limit));
        let closing = self.shared.broker.close();
        call_timeout.with("closing the broker", closing).await?;
        #[cfg(feature = "delay")]
        delays?;
        Ok(report)
    }

    /// The topic, declared by its first use if need be; an error if it is of the other kind.
    async fn topic(&self, name: &str, kind: Kind) -> Result<Arc<KnownTopic>, Error> {
        self.shared.check_publishing()?;
        let known = match self.shared.known_topic(name) {
            Some(known) if self.is_current(&known.topic) => known,
            _ => self.first_use(name, kind).await?,
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

    /// Whether the broker has heard of no other number of partitions since.
    fn is_current(&self, topic: &Topic) -> bool {
        let now = self.shared.broker.partitions(topic.name());
        now.is_none_or(|now| now == topic.partitions())
    }

    async fn first_use(&self, name: &str, kind: Kind) -> Result<Arc<KnownTopic>, Error> {
        let name = TopicName::new(name)?;
        // A handler of dead letters that fails would make more of them without end.
        if name.reserved().is_some() {
            return Err(Error::Reserved(name));
        }
        if let Some(topic) = self.describe_here(&name).await? {
            return Ok(self.shared.remember(topic));
        }
        let topic = match kind {
            Kind::Domain => Topic::domain(name.as_str()),
            Kind::Plain => Topic::plain(name.as_str()),
        };
        let (topic, strategy) = (topic.build()?, self.shared.strategy);
        let topic = match self.declare_here(&topic, strategy, Growth::Refused).await {
            // Another process has made it since `describe`: first use takes a topic as it is, also then.
            Err(Error::Broker(BrokerError::Topic(mismatch))) => {
                let topic = self.describe_here(&name).await?;
                let topic = topic.ok_or(BrokerError::Topic(mismatch))?;
                return Ok(self.shared.remember(topic));
            }
            declared => declared?,
        };
        let known = self.shared.known_topic(name.as_str());
        Ok(known.unwrap_or_else(|| Arc::new(KnownTopic::new(topic))))
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
        self.shared.call_timeout.with(doing, call).await
    }
}
