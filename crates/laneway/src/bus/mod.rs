//! The bus: publish and subscribe, in order per aggregate, on any broker.
//!
//! # Layout
//!
//! | file | what it is |
//! |---|---|
//! | `mod` | [`Bus`] and its builder: open, publish, topics, close |
//! | `subscription` | how a subscription is asked for, and the handle to it |
//! | `handler` | what users write |
//! | `event` | what their handlers get |
//! | `pump` | from the broker to the lanes, and the commits back |
//! | `delivery` | a record on the lanes, and what is settled of its partition |
//! | `domain`, `plain` | what happens to it there, by kind of topic |
//! | `letters`, `aside`, `marks` | dead letters and parked events |
//! | `rate`, `dedup` | options of a subscription |
//! | `health`, `error` | how it is doing, what can go wrong |
//! | `metrics` | the figures for Prometheus |

mod aside;
mod dedup;
mod delivery;
mod domain;
mod error;
mod event;
mod handler;
mod health;
mod letters;
mod marks;
mod metrics;
mod plain;
mod pump;
mod rate;
mod subscription;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use smol_str::SmolStr;

pub use self::aside::{DeadLetters, Parked};
pub use self::error::Error;
pub use self::event::{Context, Event, Message, Outgoing};
pub use self::handler::{EventBatchHandler, EventHandler, MessageHandler};
pub use self::health::{Health, SubscriptionHealth};
pub use self::letters::Letter;
pub use self::rate::RateLimit;
pub use self::subscription::{
    Exhausted, State, Subscription, SubscriptionBuilder, SubscriptionFigures,
};

use self::letters::LetterBox;
use self::metrics::Publishes;
use self::rate::Limiter;
use self::subscription::Place;
use crate::broker::embedded::{Embedded, now_ms};
use crate::broker::{Broker, Lag};
use crate::envelope::Envelope;
use crate::headers::Headers;
use crate::lanes::{CloseReport, Drain, Engine, Failure, Options, StartError, TopicOptions};
use crate::record::Record;
use crate::topic::{Growth, Kind, Strategy, Topic, TopicName, partition_of};
use crate::trace;

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

/// What the parts of a bus share.
struct Shared {
    broker: Arc<dyn Broker>,
    engine: Engine,
    lane_options: TopicOptions,
    strategy: Strategy,
    deadline: Duration,
    limiter: Option<Limiter>,
    topics: RwLock<HashMap<SmolStr, Arc<Known>>>,
    letters: Mutex<HashMap<TopicName, Arc<LetterBox>>>,
    places: Mutex<HashSet<(TopicName, String)>>,
    /// Those that are not closed. They live here: a dropped handle does not end a subscription.
    subscriptions: Mutex<Vec<Arc<subscription::Inner>>>,
    round_robin: AtomicU32,
    runtime: tokio::runtime::Handle,
    closed: AtomicBool,
}

/// A topic as the broker has it, so that a publish need not ask.
struct Known {
    topic: Topic,
    publishes: Arc<Publishes>,
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

/// Sets up a [`Bus`]. See [`Bus::builder`].
#[derive(Clone, Debug)]
#[must_use = "end with open"]
pub struct BusBuilder {
    lanes: Options,
    strategy: Strategy,
    deadline: Duration,
    rate: Option<RateLimit>,
}

impl BusBuilder {
    /// The workers, and how lanes are kept.
    pub fn lanes(mut self, lanes: Options) -> Self {
        self.lanes = lanes;
        self
    }

    /// What happens to topics that are declared or first used.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// How long a call to the broker may take (30 s unless changed).
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How fast may be published.
    pub fn publish_rate(mut self, rate: RateLimit) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Opens the bus.
    ///
    /// # Errors
    /// When the address is unknown, the options make no sense, or the broker fails.
    pub async fn open(self, url: &str) -> Result<Bus, Error> {
        let broker: Arc<dyn Broker> = match url.split_once(':') {
            Some(("memory", "")) => Arc::new(Embedded::in_memory().await?),
            _ => {
                return Err(Error::Address {
                    url: url.to_owned(),
                });
            }
        };
        self.over(broker)
    }

    fn over(self, broker: Arc<dyn Broker>) -> Result<Bus, Error> {
        let lane_options = self.lanes.topic_options();
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        Ok(Bus {
            shared: Arc::new(Shared {
                broker,
                engine: Engine::start(self.lanes)?,
                lane_options,
                strategy: self.strategy,
                deadline: self.deadline,
                limiter: self.rate.map(Limiter::new),
                topics: RwLock::default(),
                letters: Mutex::default(),
                places: Mutex::default(),
                subscriptions: Mutex::default(),
                round_robin: AtomicU32::new(0),
                runtime,
                closed: AtomicBool::new(false),
            }),
        })
    }
}

impl Bus {
    /// Opens a bus: `memory:` (gone with the process) or `file:DIRECTORY` (on disk).
    ///
    /// # Errors
    /// When the address is unknown or the broker fails.
    pub async fn open(url: &str) -> Result<Self, Error> {
        Self::builder().open(url).await
    }

    /// Sets a bus up before it is opened.
    pub fn builder() -> BusBuilder {
        BusBuilder {
            lanes: Options::default(),
            strategy: Strategy::default(),
            deadline: Duration::from_secs(30),
            rate: None,
        }
    }

    /// Publishes a plain message. A topic that does not exist is declared as [`Topic::plain`].
    ///
    /// # Errors
    /// When the topic is a domain topic, or the broker fails.
    pub async fn publish(
        &self,
        topic: &str,
        message: impl Into<Outgoing>,
    ) -> Result<Receipt, Error> {
        let known = self.known(topic, Kind::Plain).await?;
        let partition = self.next_partition(&known.topic);
        let record = outgoing(message.into());
        self.append(&known, partition, vec![record]).await
    }

    /// Publishes plain messages together, in one partition each, in turn.
    ///
    /// # Errors
    /// As [`publish`](Self::publish); some of them may have been published then.
    pub async fn publish_batch(
        &self,
        topic: &str,
        messages: impl IntoIterator<Item = Outgoing>,
    ) -> Result<Vec<Receipt>, Error> {
        let known = self.known(topic, Kind::Plain).await?;
        let records = messages
            .into_iter()
            .map(|message| (self.next_partition(&known.topic), outgoing(message)))
            .collect();
        self.append_all(&known, records).await
    }

    /// Publishes a domain event; it is durable when this resolves. A topic that does not exist is
    /// declared as [`Topic::domain`].
    ///
    /// # Errors
    /// When the topic is a plain topic, or the broker fails.
    pub async fn publish_envelope(
        &self,
        topic: &str,
        envelope: &Envelope,
    ) -> Result<Receipt, Error> {
        let known = self.known(topic, Kind::Domain).await?;
        let key = envelope.aggregate_id().as_bytes();
        let partition = partition_of(key, known.topic.partitions());
        self.append(&known, partition, vec![enveloped(envelope)])
            .await
    }

    /// Publishes domain events together; events of one aggregate keep their order. All are durable
    /// when this resolves.
    ///
    /// # Errors
    /// As [`publish_envelope`](Self::publish_envelope); some of them may have been published then.
    pub async fn publish_envelope_batch(
        &self,
        topic: &str,
        envelopes: &[Envelope],
    ) -> Result<Vec<Receipt>, Error> {
        let known = self.known(topic, Kind::Domain).await?;
        let partitions = known.topic.partitions();
        let records = envelopes
            .iter()
            .map(|envelope| {
                let key = envelope.aggregate_id().as_bytes();
                (partition_of(key, partitions), enveloped(envelope))
            })
            .collect();
        self.append_all(&known, records).await
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
        self.check_open()?;
        if topic.name().reserved().is_some() {
            return Err(Error::Reserved(topic.name().clone()));
        }
        let declaring = self.shared.broker.declare(topic, strategy, growth);
        let topic = self.within("declaring a topic", declaring).await??;
        self.remember(topic.clone());
        Ok(topic)
    }

    /// All topics.
    ///
    /// # Errors
    /// When the broker fails.
    pub async fn topics(&self) -> Result<Vec<Topic>, Error> {
        self.check_open()?;
        let topics = self.shared.broker.topics();
        Ok(self.within("listing topics", topics).await??)
    }

    /// A topic as it is; `None` if it does not exist.
    ///
    /// # Errors
    /// When the name cannot be one, or the broker fails.
    pub async fn describe(&self, topic: &str) -> Result<Option<Topic>, Error> {
        self.check_open()?;
        let name = TopicName::new(topic)?;
        let describing = self.shared.broker.describe(&name);
        Ok(self.within("describing a topic", describing).await??)
    }

    /// Deletes a topic, its records, and what its groups have settled.
    ///
    /// # Errors
    /// When it does not exist, or the broker fails.
    pub async fn delete(&self, topic: &str) -> Result<(), Error> {
        self.check_open()?;
        let name = TopicName::new(topic)?;
        let deleting = self.shared.broker.delete(&name);
        self.within("deleting a topic", deleting).await??;
        write(&self.shared.topics).remove(name.as_str());
        lock(&self.shared.letters).retain(|letters, _| letters.base() != name.base());
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
        self.check_open()?;
        let name = TopicName::new(topic)?;
        let asking = self.shared.broker.lag(&name, group);
        Ok(self.within("asking for the backlog", asking).await??)
    }

    /// How the bus is doing.
    pub async fn health(&self) -> Health {
        let broker = match self
            .within("asking the broker", self.shared.broker.health())
            .await
        {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        let mut health = Health {
            broker,
            subscriptions: self
                .shared
                .live_subscriptions()
                .iter()
                .map(|subscription| SubscriptionHealth {
                    topic: subscription.flow.topic.clone(),
                    group: subscription.flow.group.to_string(),
                    state: subscription.stopper.state(),
                    since_commit: subscription.stopper.since_commit(),
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
    /// was left; it comes again when the bus is opened the next time.
    ///
    /// # Errors
    /// When the broker fails; the bus is closed then all the same.
    pub async fn close(&self, deadline: Duration) -> Result<CloseReport, Error> {
        if self.shared.closed.swap(true, Ordering::SeqCst) {
            return Err(Error::Closed);
        }
        let subscriptions = self.shared.live_subscriptions();
        let closing = subscriptions
            .iter()
            .map(|subscription| subscription.close(deadline));
        let mut report = CloseReport::default();
        for closed in futures_util::future::join_all(closing).await {
            report.left.extend(closed.left);
        }
        let rest = self.shared.engine.close(Drain::Running, deadline).await;
        report.left.extend(rest.left);
        let closing = self.shared.broker.close();
        self.within("closing the broker", closing).await??;
        Ok(report)
    }

    /// The topic, declared by its first use if need be; an error if it is of the other kind.
    async fn topic_of_kind(&self, name: &str, kind: Kind) -> Result<Topic, Error> {
        Ok(self.known(name, kind).await?.topic.clone())
    }

    /// The same, with what is counted of it.
    async fn known(&self, name: &str, kind: Kind) -> Result<Arc<Known>, Error> {
        self.check_open()?;
        let known = read(&self.shared.topics).get(name).cloned();
        let known = match known {
            Some(known) => known,
            None => self.first_use(name, kind).await?,
        };
        if known.topic.kind() == kind {
            Ok(known)
        } else {
            Err(Error::WrongKind {
                topic: known.topic.name().clone(),
                is: known.topic.kind(),
            })
        }
    }

    async fn first_use(&self, name: &str, kind: Kind) -> Result<Arc<Known>, Error> {
        let name = TopicName::new(name)?;
        let describing = self.shared.broker.describe(&name);
        if let Some(topic) = self.within("describing a topic", describing).await?? {
            return Ok(self.remember(topic));
        }
        let topic = match kind {
            Kind::Domain => Topic::domain(name.as_str()),
            Kind::Plain => Topic::plain(name.as_str()),
        };
        let topic = self.declare(&topic.build()?).await?;
        Ok(self.remember(topic))
    }

    async fn existing(&self, name: &str) -> Result<Topic, Error> {
        let name = TopicName::new(name)?.base();
        self.describe(name.as_str())
            .await?
            .ok_or_else(|| crate::broker::BrokerError::UnknownTopic(name).into())
    }

    fn remember(&self, topic: Topic) -> Arc<Known> {
        let mut topics = write(&self.shared.topics);
        let name = SmolStr::new(topic.name().as_str());
        // A topic that is declared again goes on counting.
        let publishes = topics.get(&name).map(|known| known.publishes.clone());
        let known = Arc::new(Known {
            topic,
            publishes: publishes.unwrap_or_default(),
        });
        topics.insert(name, known.clone());
        known
    }

    fn next_partition(&self, topic: &Topic) -> u32 {
        self.shared.round_robin.fetch_add(1, Ordering::Relaxed) % topic.partitions().get()
    }

    async fn append(
        &self,
        known: &Known,
        partition: u32,
        records: Vec<Record>,
    ) -> Result<Receipt, Error> {
        if let Some(limiter) = &self.shared.limiter {
            let count = u32::try_from(records.len()).unwrap_or(u32::MAX);
            self.within("waiting for the rate limit", limiter.turns(count))
                .await?;
        }
        let count = records.len() as u64;
        let begun = Instant::now();
        let publishing = self
            .shared
            .broker
            .publish(known.topic.name(), partition, records);
        let offset = match self.within("publishing", publishing).await {
            Ok(result) => result.map_err(Error::from),
            Err(error) => Err(error),
        };
        known.publishes.count(count, begun.elapsed(), &offset);
        Ok(Receipt {
            partition,
            offset: offset?,
        })
    }

    /// Partitions go in parallel; within one the order is kept.
    async fn append_all(
        &self,
        known: &Known,
        records: Vec<(u32, Record)>,
    ) -> Result<Vec<Receipt>, Error> {
        let partitions: Vec<u32> = records.iter().map(|(partition, _)| *partition).collect();
        let mut by_partition: HashMap<u32, Vec<Record>> = HashMap::new();
        for (partition, record) in records {
            by_partition.entry(partition).or_default().push(record);
        }
        let appending = by_partition
            .into_iter()
            .map(|(partition, records)| self.append(known, partition, records));
        let mut next: HashMap<u32, u64> = futures_util::future::try_join_all(appending)
            .await?
            .into_iter()
            .map(|receipt| (receipt.partition, receipt.offset))
            .collect();
        Ok(partitions
            .into_iter()
            .map(|partition| {
                let next = next.entry(partition).or_default();
                let offset = *next;
                *next += 1;
                Receipt { partition, offset }
            })
            .collect())
    }

    async fn within<F: Future>(&self, doing: &'static str, work: F) -> Result<F::Output, Error> {
        let limit = self.shared.deadline;
        tokio::time::timeout(limit, work)
            .await
            .map_err(|_| Error::TimedOut { doing, limit })
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.shared.closed.load(Ordering::SeqCst) {
            return Err(Error::Closed);
        }
        Ok(())
    }
}

impl Shared {
    fn dead(&self, topic: &TopicName) -> Arc<LetterBox> {
        self.letters(topic, topic.dead())
    }

    fn parked(&self, topic: &TopicName) -> Arc<LetterBox> {
        self.letters(topic, topic.parked())
    }

    /// One for each topic, so that changes meet.
    fn letters(&self, origin: &TopicName, topic: TopicName) -> Arc<LetterBox> {
        lock(&self.letters)
            .entry(topic.clone())
            .or_insert_with(|| Arc::new(LetterBox::new(self.broker.clone(), origin.clone(), topic)))
            .clone()
    }

    fn take_place(self: &Arc<Self>, topic: &TopicName, group: &str) -> Result<Place, Error> {
        let key = (topic.clone(), group.to_owned());
        if !lock(&self.places).insert(key.clone()) {
            return Err(Error::AlreadySubscribed {
                topic: topic.clone(),
                group: group.to_owned(),
            });
        }
        Ok(Place::new(self, key))
    }

    fn give_up_place(&self, key: &(TopicName, String)) {
        lock(&self.places).remove(key);
    }

    fn note_subscription(&self, subscription: Arc<subscription::Inner>) {
        lock(&self.subscriptions).push(subscription);
    }

    fn forget_subscription(&self, subscription: &subscription::Inner) {
        lock(&self.subscriptions).retain(|known| !std::ptr::eq(Arc::as_ptr(known), subscription));
    }

    fn live_subscriptions(&self) -> Vec<Arc<subscription::Inner>> {
        lock(&self.subscriptions).clone()
    }
}

fn enveloped(envelope: &Envelope) -> Record {
    Record {
        key: Some(SmolStr::new(envelope.aggregate_id().as_str())),
        headers: traced(Headers::new()),
        payload: envelope.encode(),
        timestamp_ms: now_ms(),
    }
}

fn outgoing(message: Outgoing) -> Record {
    Record {
        key: None,
        headers: traced(message.headers),
        payload: message.payload,
        timestamp_ms: now_ms(),
    }
}

/// What is published within a trace belongs to it.
fn traced(mut headers: Headers) -> Headers {
    if let Some(current) = trace::current() {
        current.child().write_to(&mut headers);
    }
    headers
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
