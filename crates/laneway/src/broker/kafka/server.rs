//! A cluster with the bus's topics: what all parts of the broker share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AlterConfig, ConfigResource, NewPartitions, ResourceSpecifier};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{FutureProducer, Producer};
use tokio::time::sleep;

use super::catalog::Catalog;
use super::client::{self, ANSWER_WITHIN, Telling};
use super::cluster::{
    LOOK_AGAIN, blocking, broker_config, create, done, ensure_catalog, lock, one, shape, wait_for,
    within,
};
use super::names::Names;
use super::options::KafkaOptions;
use super::peek::Lookers;
use super::statistics::Gauges;
use super::topics::{self, Actual, Declared, Place};
use crate::broker::BrokerError;
use crate::broker::places::Places;
use crate::broker::seats::Seats;
use crate::topic::{Decision, Growth, Kind, Strategy, Topic, TopicName, reconcile};

/// Two processes may declare a topic at the same moment, one of them looks again.
const TRIES: usize = 5;

/// What was given to the producer gets this long when the bus is closed.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);

pub(super) struct Server {
    pub(super) options: KafkaOptions,
    pub(super) names: Names,
    pub(super) telling: Telling,
    pub(super) producer: FutureProducer<Telling>,
    admin: AdminClient<Telling>,
    /// Asks for metadata and offsets; reads nothing.
    pub(super) asker: Arc<BaseConsumer<Telling>>,
    pub(super) catalog: Catalog,
    pub(super) lookers: Lookers,
    /// Clients that know what groups have committed, by group.
    observers: Mutex<HashMap<String, Arc<BaseConsumer<Telling>>>>,
    /// Topics that were looked up.
    places: Places<Place>,
    /// What this process reads.
    pub(super) seats: Seats,
    closed: AtomicBool,
}

/// Clients for groups that nobody here is a member of; more are made when needed and the others go.
const MOST_OBSERVERS: usize = 16;

impl Server {
    pub(super) async fn open(options: KafkaOptions) -> Result<Self, BrokerError> {
        options.check()?;
        let at = options.server_list();
        let telling = Telling {
            gauges: Gauges::default(),
            who: "producer".into(),
            trouble: Arc::default(),
        };
        let failed = |doing, error: KafkaError| {
            let trouble = lock(&telling.trouble).take();
            let trouble = trouble.map_or_else(String::new, |trouble| format!(": {trouble}"));
            BrokerError::Server {
                server: at.clone(),
                doing,
                detail: format!("{error}{trouble}"),
            }
        };
        let connecting = |error| failed("connecting", error);
        let producer: FutureProducer<Telling> = client::producer(&options)
            .create_with_context(telling.clone())
            .map_err(connecting)?;
        let admin: AdminClient<Telling> = client::common(&options)
            .create_with_context(telling.clone())
            .map_err(connecting)?;
        let asker: BaseConsumer<Telling> = client::asker(&options)
            .create_with_context(telling.clone())
            .map_err(connecting)?;
        let asker = Arc::new(asker);
        let names = Names::new(options.namespace.as_deref());
        let name = names.catalog();
        ensure_catalog(&admin, &asker, &options, &name)
            .await
            .map_err(|error| failed("opening the catalog", error))?;
        let reader = client::looker(&options)
            .create_with_context(telling.clone())
            .map_err(connecting)?;
        let catalog = Catalog::new(name, producer.clone(), reader);
        // Whoever asks first should not have to wait for all of it.
        let read = catalog.read_on().await;
        read.map_err(|error| failed("reading the catalog", error))?;
        Ok(Self {
            lookers: Lookers::new(options.clone(), telling.clone()),
            options,
            names,
            telling,
            producer,
            admin,
            asker,
            catalog,
            observers: Mutex::default(),
            places: Places::default(),
            seats: Seats::default(),
            closed: AtomicBool::new(false),
        })
    }

    pub(super) fn check_open(&self) -> Result<(), BrokerError> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(BrokerError::Closed);
        }
        Ok(())
    }

    /// Nothing more is done. Letting clients go takes a while, and a thread.
    pub(super) async fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let observers = std::mem::take(&mut *lock(&self.observers));
        let (lookers, producer) = (self.lookers.take_all(), self.producer.clone());
        let _ = blocking(move || {
            drop((observers, lookers));
            if producer.in_flight_count() == 0 {
                return Ok(());
            }
            producer.flush(FLUSH_WITHIN)
        })
        .await;
    }

    /// The error that users see.
    pub(super) fn failed(&self, doing: &'static str, error: impl std::fmt::Display) -> BrokerError {
        BrokerError::Server {
            server: self.options.server_list(),
            doing,
            detail: error.to_string(),
        }
    }

    /// A client that knows what a group has committed.
    pub(super) fn observer(&self, group: &str) -> Result<Arc<BaseConsumer<Telling>>, BrokerError> {
        let mut observers = lock(&self.observers);
        if let Some(observer) = observers.get(group) {
            return Ok(observer.clone());
        }
        if observers.len() >= MOST_OBSERVERS {
            observers.clear();
        }
        let observer: BaseConsumer<Telling> = client::observer(&self.options, group)
            .create_with_context(self.telling.clone())
            .map_err(|error| self.failed("asking for a group", error))?;
        let observer = Arc::new(observer);
        observers.insert(group.to_owned(), observer.clone());
        Ok(observer)
    }

    /// The topic, as it was when it was last looked up.
    pub(super) async fn place(&self, topic: &TopicName) -> Result<Arc<Place>, BrokerError> {
        self.check_open()?;
        match self.places.get(topic) {
            Some(place) => Ok(place),
            None => self.place_now(topic).await,
        }
    }

    /// The topic, as it is now.
    pub(super) async fn place_now(&self, topic: &TopicName) -> Result<Arc<Place>, BrokerError> {
        let found = self.find(topic).await?;
        found.ok_or_else(|| BrokerError::UnknownTopic(topic.clone()))
    }

    /// Looks a topic up. One that somebody else made counts as a domain topic, unless it was declared to
    /// be a plain one.
    pub(super) async fn find(&self, topic: &TopicName) -> Result<Option<Arc<Place>>, BrokerError> {
        self.check_open()?;
        let place = match self.declared(topic).await? {
            Some(declared) => Some(self.ours(declared).await?),
            None => self.foreign(topic, Kind::Domain).await?,
        };
        let place = place.map(Arc::new);
        self.places.note(topic, place.as_ref());
        Ok(place)
    }

    async fn declared(&self, topic: &TopicName) -> Result<Option<Declared>, BrokerError> {
        let entry = topic_entry(topic);
        let read = self.catalog.read(&entry).await;
        let Some(value) = read.map_err(|error| self.failed("reading the catalog", error))? else {
            return Ok(None);
        };
        let declared = serde_json::from_value(value).map_err(|error| BrokerError::Damaged {
            what: format!("entry {entry} of the catalog"),
            detail: error.to_string(),
        });
        declared.map(Some)
    }

    /// What a topic is called on the cluster, and when it was born. As the catalog says, for the price of
    /// one question.
    pub(super) async fn birth(&self, topic: &TopicName) -> Result<(String, u64), BrokerError> {
        self.check_open()?;
        if let Some(declared) = self.declared(topic).await? {
            return Ok((self.names.topic(topic), declared.born));
        }
        let place = self.place_now(topic).await?;
        Ok((place.name.clone(), place.born))
    }

    /// A topic that is in the catalog.
    async fn ours(&self, declared: Declared) -> Result<Place, BrokerError> {
        let name = self.names.topic(declared.topic.name());
        let topic = declared.topic.name().clone();
        let mut declared = declared;
        for _ in 0..TRIES {
            if let Some(actual) = self.actual(&topic, &name).await? {
                return Ok(Place {
                    topic: actual.of(declared.topic),
                    name,
                    born: declared.born,
                    is_foreign: declared.foreign,
                });
            }
            if declared.foreign {
                return Err(BrokerError::UnknownTopic(topic));
            }
            // It was about to be created, or somebody deleted it with other tools: another one begins.
            declared.born = new_birth();
            let value = serde_json::to_value(&declared).unwrap_or_default();
            self.change_entry(&topic, |before| before.map(|_| value.clone()))
                .await?;
            self.create(&declared.topic, &name).await?;
        }
        Err(self.failed("looking up a topic", "it is deleted all the time"))
    }

    async fn change_entry(
        &self,
        topic: &TopicName,
        make: impl Fn(Option<&serde_json::Value>) -> Option<serde_json::Value>,
    ) -> Result<bool, BrokerError> {
        let changed = self.catalog.change(&topic_entry(topic), make).await;
        changed.map_err(|error| self.failed("writing to the catalog", error))
    }

    /// A topic that is not in the catalog, and is there.
    async fn foreign(&self, topic: &TopicName, kind: Kind) -> Result<Option<Place>, BrokerError> {
        let name = self.names.topic(topic);
        // What Kafka itself keeps its books in begins so.
        if topic.reserved().is_some() || name.starts_with("__") {
            return Ok(None);
        }
        let Some(actual) = self.actual(topic, &name).await? else {
            return Ok(None);
        };
        Ok(Some(Place {
            topic: actual.foreign(topic, kind)?,
            name,
            born: 0,
            is_foreign: true,
        }))
    }

    /// What Kafka says of a topic, if it is there.
    async fn actual(&self, topic: &TopicName, name: &str) -> Result<Option<Actual>, BrokerError> {
        let failed = |error: KafkaError| self.failed("looking up a topic", error);
        let Some((partitions, replicas)) = shape(&self.asker, name).await.map_err(failed)? else {
            return Ok(None);
        };
        match self.topic_config(name).await {
            Ok(config) => Actual::new(topic, partitions, replicas, &config).map(Some),
            // It was deleted between the two.
            Err(KafkaError::AdminOp(RDKafkaErrorCode::UnknownTopicOrPartition)) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    async fn topic_config(&self, name: &str) -> Result<ConfigResource, KafkaError> {
        let which = [ResourceSpecifier::Topic(name)];
        one(self.admin.describe_configs(&which, &within()).await?)
    }

    /// The settings of a broker.
    pub(super) async fn broker_config(&self, id: i32) -> Result<ConfigResource, KafkaError> {
        broker_config(&self.admin, id).await
    }

    pub(super) async fn declare(
        &self,
        declared: &Topic,
        strategy: Strategy,
        growth: Growth,
    ) -> Result<Topic, BrokerError> {
        self.check_open()?;
        let name = declared.name();
        for _ in 0..TRIES {
            let existing = match self.declared(name).await? {
                Some(known) => Some(self.ours(known).await?),
                None => self.foreign(name, declared.kind()).await?,
            };
            let topic = existing.as_ref().map(|place| &place.topic);
            match (reconcile(declared, topic, strategy, growth)?, existing) {
                (Decision::Keep, None) => return Ok(declared.clone()),
                (Decision::Keep, Some(place)) => return self.keep(place).await,
                (Decision::Update(differences), Some(place)) => {
                    let topic = place.topic.clone().updated(&differences);
                    return self.update(&place, topic).await;
                }
                (Decision::Create | Decision::Update(_), _) => {
                    topics::check(declared)?;
                    if self.create_declared(declared).await? {
                        return Ok(self.place_now(name).await?.topic.clone());
                    }
                }
            }
        }
        Err(self.failed("declaring a topic", "it changes all the time"))
    }

    /// Takes a topic as it is. What somebody else made, and is not what it would be taken for, is noted.
    async fn keep(&self, place: Place) -> Result<Topic, BrokerError> {
        if place.is_foreign && place.topic.kind() == Kind::Plain {
            let entry = Declared {
                topic: place.topic.clone(),
                born: place.born,
                foreign: true,
            };
            let value = serde_json::to_value(entry).unwrap_or_default();
            self.change_entry(place.topic.name(), |before| {
                before.is_none().then(|| value.clone())
            })
            .await?;
        }
        let topic = place.topic.clone();
        self.places.note(topic.name(), Some(&Arc::new(place)));
        Ok(topic)
    }

    /// Notes a topic in the catalog, then makes it: if we fail in between, it is made when it is looked
    /// up. Answers whether nobody else was faster.
    async fn create_declared(&self, topic: &Topic) -> Result<bool, BrokerError> {
        let entry = Declared {
            topic: topic.clone(),
            born: new_birth(),
            foreign: false,
        };
        let value = serde_json::to_value(entry).unwrap_or_default();
        let changed = self
            .change_entry(topic.name(), |before| {
                before.is_none().then(|| value.clone())
            })
            .await?;
        if changed {
            let name = self.names.topic(topic.name());
            self.create(topic, &name).await?;
        }
        Ok(changed)
    }

    async fn create(&self, topic: &Topic, name: &str) -> Result<(), BrokerError> {
        let config = topics::config(topic, &self.options);
        let copies = topic.replicas().or(self.options.replication);
        let partitions = topic.partitions().get();
        create(&self.admin, &self.asker, name, partitions, copies, &config)
            .await
            .map_err(|error| self.failed("creating a topic", error))
    }

    async fn update(&self, existing: &Place, topic: Topic) -> Result<Topic, BrokerError> {
        if existing.is_foreign {
            return Err(foreign(existing));
        }
        topics::check(&topic)?;
        if topic.replicas() != existing.topic.replicas() {
            return Err(BrokerError::Unsupported {
                topic: topic.name().clone(),
                what: "another number of copies".to_owned(),
                instead: "what it has, or reassign its partitions with the tools of Kafka first",
            });
        }
        let failed = |error: KafkaError| self.failed("changing a topic", error);
        if topic.partitions() != existing.topic.partitions() {
            // Those who read now would hand a key to two owners at a time.
            self.check_unread(existing).await?;
            let count = topic.partitions().get() as usize;
            let more = [NewPartitions::new(&existing.name, count)];
            let grown = self.admin.create_partitions(&more, &within()).await;
            grown.and_then(done).map_err(failed)?;
            wait_for(&self.asker, &existing.name, count)
                .await
                .map_err(failed)?;
        }
        self.alter(existing, &topic).await.map_err(failed)?;
        self.wait_for_config(existing, &topic)
            .await
            .map_err(failed)?;
        let value = serde_json::to_value(Declared {
            topic: topic.clone(),
            born: existing.born,
            foreign: false,
        });
        let value = value.unwrap_or_default();
        self.change_entry(topic.name(), |_| Some(value.clone()))
            .await?;
        self.places.note(topic.name(), None);
        Ok(topic)
    }

    /// What somebody set that we know nothing of stays as it is: Kafka replaces all settings at once.
    async fn alter(&self, existing: &Place, topic: &Topic) -> Result<(), KafkaError> {
        use rdkafka::admin::ConfigSource;
        let theirs = self.topic_config(&existing.name).await?;
        let mut config: HashMap<&str, String> = theirs
            .entries
            .iter()
            .filter(|entry| entry.source == ConfigSource::DynamicTopic)
            .filter_map(|entry| Some((entry.name.as_str(), entry.value.clone()?)))
            .collect();
        config.extend(topics::config(topic, &self.options));
        let mut alter = AlterConfig::new(ResourceSpecifier::Topic(&existing.name));
        for (key, value) in &config {
            alter = alter.set(key, value);
        }
        let altered = self.admin.alter_configs(&[alter], &within()).await?;
        for result in altered {
            result.map_err(|(_, code)| KafkaError::AdminOp(code))?;
        }
        Ok(())
    }

    /// Waits until the brokers know what a topic was changed to.
    async fn wait_for_config(&self, existing: &Place, topic: &Topic) -> Result<(), KafkaError> {
        let deadline = Instant::now() + ANSWER_WITHIN;
        loop {
            let theirs = self.topic_config(&existing.name).await?;
            let is_known = topics::config(topic, &self.options)
                .iter()
                .all(|(key, value)| {
                    let known = theirs.get(key).and_then(|entry| entry.value.as_ref());
                    known == Some(value)
                });
            if is_known {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(KafkaError::AdminOp(RDKafkaErrorCode::OperationTimedOut));
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    pub(super) async fn topics(&self) -> Result<Vec<Topic>, BrokerError> {
        self.check_open()?;
        let all = self.catalog.all(TOPIC_ENTRIES).await;
        let all = all.map_err(|error| self.failed("reading the catalog", error))?;
        let mut topics = Vec::new();
        for value in all {
            let Ok(declared) = serde_json::from_value::<Declared>(value) else {
                continue;
            };
            if declared.foreign {
                continue;
            }
            topics.push(self.ours(declared).await?.topic);
        }
        topics.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(topics)
    }

    pub(super) async fn delete(&self, topic: &TopicName) -> Result<(), BrokerError> {
        let place = self.place_now(topic).await?;
        if place.is_foreign {
            return Err(foreign(&place));
        }
        let groups = self.check_unread(&place).await?;
        let failed = |error: KafkaError| self.failed("deleting a topic", error);
        let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
        if !groups.is_empty() {
            // What stays behind is about a topic that was born before, and counts for nothing.
            let _ = self.admin.delete_groups(&groups, &within()).await;
        }
        // The topic first: if we fail in between, it is made anew and can be deleted again.
        let deleted = self.admin.delete_topics(&[&place.name], &within()).await;
        match deleted.and_then(done) {
            Ok(()) | Err(KafkaError::AdminOp(RDKafkaErrorCode::UnknownTopicOrPartition)) => {}
            Err(error) => return Err(failed(error)),
        }
        self.change_entry(topic, |before| before.map(|_| serde_json::Value::Null))
            .await?;
        wait_for(&self.asker, &place.name, 0)
            .await
            .map_err(failed)?;
        self.places.note(topic, None);
        Ok(())
    }

    /// Makes sure that nobody reads a topic; answers the groups that have, by their names on the cluster.
    async fn check_unread(&self, place: &Place) -> Result<Vec<String>, BrokerError> {
        let in_use = |group: &str| BrokerError::InUseBy {
            topic: place.topic.name().clone(),
            group: group.to_owned(),
        };
        if let Some(group) = self.seats.group_at(place.topic.name()) {
            return Err(in_use(&group));
        }
        let (asker, names) = (self.asker.clone(), self.names.clone());
        let name = place.name.clone();
        let asking = blocking(move || {
            let list = asker.fetch_group_list(None, ANSWER_WITHIN)?;
            let of_topic = list.groups().iter().filter_map(|known| {
                let group = names.group_of(known.name(), &name)?;
                let is_read = !known.members().is_empty();
                Some((known.name().to_owned(), is_read.then(|| group.to_owned())))
            });
            Ok(of_topic.collect::<Vec<_>>())
        });
        let groups = asking
            .await
            .map_err(|error| self.failed("listing groups", error))?;
        if let Some(group) = groups.iter().find_map(|(_, reading)| reading.as_ref()) {
            return Err(in_use(group));
        }
        Ok(groups.into_iter().map(|(name, _)| name).collect())
    }
}

const TOPIC_ENTRIES: &str = "topic/";

fn topic_entry(topic: &TopicName) -> String {
    format!("{TOPIC_ENTRIES}{topic}")
}

/// Never zero, which stands for topics of others.
fn new_birth() -> u64 {
    rand::random_range(1..u64::MAX)
}

fn foreign(place: &Place) -> BrokerError {
    BrokerError::Foreign {
        topic: place.topic.name().clone(),
        what: format!("topic {} of Kafka", place.name),
    }
}
