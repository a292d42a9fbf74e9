//! A cluster with the bus's topics: what all parts of the broker share.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ConfigResource, ResourceSpecifier};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{FutureProducer, Producer};
use tokio::time::sleep;

use super::catalog::Catalog;
use super::client::{self, ANSWER_WITHIN, PublishWithin, Telling};
use super::cluster::{
    LOOK_AGAIN, blocking, broker_config, done, ensure_catalog, one, shape, wait_for, within,
};
#[cfg(feature = "log")]
use super::follow_client::FollowClients;
use super::groups::group_entries;
use super::growth::Growing;
use super::mark::Owner;
use super::names::Names;
use super::options::KafkaOptions;
use super::peek::Lookers;
use super::statistics::Gauges;
use super::topics::{self, Actual, Declared, TopicHandle};
use crate::broker::BrokerError;
use crate::broker::log_limiter::LogLimiter;
use crate::broker::remote::Topics;
use crate::broker::subscriptions::Subscriptions;
use crate::broker::topic_cache::TopicCache;
use crate::planted::planted;
use crate::topic::{Decision, Growth, Kind, Partitions, Strategy, Topic, TopicName, reconcile};

/// Two processes may declare a topic at the same moment, one of them looks again.
pub(super) const TRIES: usize = 10;

/// What was given to the producer gets this long when the bus is closed.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);

/// A Kafka cluster, with the topics of a bus.
pub(crate) struct Kafka {
    pub(super) options: KafkaOptions,
    pub(super) names: Names,
    pub(super) telling: Telling,
    pub(super) producer: FutureProducer<Telling>,
    pub(super) publish_within: PublishWithin,
    pub(super) admin: Arc<AdminClient<Telling>>,
    /// Asks for metadata and offsets; reads nothing.
    pub(super) asker: Arc<BaseConsumer<Telling>>,
    pub(super) catalog: Catalog,
    pub(super) lookers: Lookers,
    /// Clients that follow logs.
    #[cfg(feature = "log")]
    pub(super) follow_clients: FollowClients,
    /// Clients that know what groups have committed, by group.
    observers: Mutex<HashMap<String, Arc<BaseConsumer<Telling>>>>,
    /// Topics that were looked up.
    topic_cache: TopicCache<TopicHandle>,
    /// Those that are about to have more partitions.
    pub(super) growing: Growing,
    /// What this process reads.
    pub(super) subscriptions: Subscriptions,
    /// This process, as others see it.
    pub(super) owner: Owner,
    closed: AtomicBool,
}

/// Clients that observe groups which this process is no member of; when there are more, the others go.
const MOST_OBSERVERS: usize = 16;

impl Kafka {
    pub(super) async fn open(
        options: KafkaOptions,
        publish_within: PublishWithin,
    ) -> Result<Self, BrokerError> {
        options.check()?;
        let at = options.server_list();
        let telling = Telling {
            gauges: Gauges::default(),
            who: "producer".into(),
            trouble: Arc::default(),
            limiter: LogLimiter::default(),
        };
        let failed = |doing, error: KafkaError| {
            let trouble = telling.trouble.lock().take();
            let trouble = trouble.map_or_else(String::new, |trouble| format!(": {trouble}"));
            BrokerError::Server {
                server: at.clone(),
                doing,
                detail: format!("{error}{trouble}"),
            }
        };
        let connecting = |error| failed("connecting", error);
        let producer: FutureProducer<Telling> = client::producer(&options, publish_within)
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
        // Read now, so that the first call does not have to wait for all of it.
        let read = catalog.read_on().await;
        read.map_err(|error| failed("reading the catalog", error))?;
        Ok(Self {
            lookers: Lookers::new(options.clone(), telling.clone()),
            owner: Owner::new(options.broker.instance.as_deref()),
            publish_within,
            options,
            names,
            telling,
            producer,
            admin: Arc::new(admin),
            asker,
            catalog,
            #[cfg(feature = "log")]
            follow_clients: FollowClients::default(),
            observers: Mutex::default(),
            topic_cache: TopicCache::default(),
            growing: Growing::default(),
            subscriptions: Subscriptions::default(),
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
    pub(super) async fn shut_down(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let observers = std::mem::take(&mut *self.observers.lock());
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
        let mut observers = self.observers.lock();
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
    pub(super) async fn handle(&self, topic: &TopicName) -> Result<Arc<TopicHandle>, BrokerError> {
        self.check_open()?;
        match self.topic_cache.get(topic) {
            Some(handle) => Ok(handle),
            None => self.fresh_handle(topic).await,
        }
    }

    /// All topics that were looked up.
    pub(super) fn known_topics(&self) -> Vec<Arc<TopicHandle>> {
        self.topic_cache.all()
    }

    /// The topic, as it is now.
    pub(super) async fn fresh_handle(
        &self,
        topic: &TopicName,
    ) -> Result<Arc<TopicHandle>, BrokerError> {
        let found = self.find(topic).await?;
        found.ok_or_else(|| BrokerError::UnknownTopic(topic.clone()))
    }

    /// Looks a topic up. A foreign one counts as a domain topic, unless it was declared to
    /// be a plain one.
    pub(super) async fn find(
        &self,
        topic: &TopicName,
    ) -> Result<Option<Arc<TopicHandle>>, BrokerError> {
        loop {
            self.growing.wait(topic).await;
            let handle = self.look_up(topic).await?;
            if self.growing.to(topic).is_none() {
                return Ok(handle);
            }
        }
    }

    /// The same, as it is now, also if it is about to grow.
    pub(super) async fn look_up(
        &self,
        topic: &TopicName,
    ) -> Result<Option<Arc<TopicHandle>>, BrokerError> {
        self.check_open()?;
        let declared = self.declared(topic).await?;
        self.note_growth(topic);
        let handle = match declared {
            Some(declared) => Some(self.ours(declared).await?),
            None => self.foreign(topic, Kind::Domain).await?,
        };
        let handle = handle.map(Arc::new);
        self.topic_cache.note(topic, handle.as_ref());
        Ok(handle)
    }

    pub(super) async fn declared(
        &self,
        topic: &TopicName,
    ) -> Result<Option<Declared>, BrokerError> {
        let entry = topic_entry(topic);
        let read = self.catalog.read(&entry).await;
        let Some(value) = read.map_err(|error| self.failed("reading the catalog", error))? else {
            return Ok(None);
        };
        let declared = Declared::read(&value).map_err(|error| BrokerError::Damaged {
            what: format!("entry {entry} of the catalog"),
            detail: error.to_string(),
        });
        declared.map(Some)
    }

    /// What the catalog said of a topic when it was last read.
    pub(super) fn last_declared(&self, topic: &TopicName) -> Option<Declared> {
        let value = self.catalog.known(&topic_entry(topic))?;
        Declared::read(&value).ok()
    }

    /// What a topic is called on the cluster, and when it was born. As the catalog says, for the price of
    /// one question.
    pub(super) async fn birth(&self, topic: &TopicName) -> Result<(String, u64), BrokerError> {
        self.check_open()?;
        if let Some(declared) = self.declared(topic).await? {
            return Ok((self.names.topic(topic), declared.born));
        }
        let handle = self.fresh_handle(topic).await?;
        Ok((handle.name.clone(), handle.born))
    }

    pub(super) async fn change_entry(
        &self,
        topic: &TopicName,
        make: impl Fn(Option<&serde_json::Value>) -> Option<serde_json::Value>,
    ) -> Result<bool, BrokerError> {
        let changed = self.catalog.change(&topic_entry(topic), make).await;
        changed.map_err(|error| self.failed("writing to the catalog", error))
    }

    /// A topic that is not in the catalog, and is there.
    async fn foreign(
        &self,
        topic: &TopicName,
        kind: Kind,
    ) -> Result<Option<TopicHandle>, BrokerError> {
        let name = self.names.topic(topic);
        // What Kafka itself keeps its books in begins so.
        if topic.reserved().is_some() || name.starts_with("__") {
            return Ok(None);
        }
        let Some(actual) = self.actual(topic, &name).await? else {
            return Ok(None);
        };
        Ok(Some(TopicHandle {
            topic: actual.foreign(topic, kind)?,
            name,
            born: 0,
            is_foreign: true,
        }))
    }

    /// What Kafka says of a topic, if it is there.
    pub(super) async fn actual(
        &self,
        topic: &TopicName,
        name: &str,
    ) -> Result<Option<Actual>, BrokerError> {
        let failed = |error: KafkaError| self.failed("looking up a topic", error);
        let Some(shape) = shape(&self.asker, name).await.map_err(failed)? else {
            return Ok(None);
        };
        if planted("A3") && !shape.is_led {
            return Ok(None);
        }
        match self.topic_config(name).await {
            Ok(config) => Actual::new(topic, shape.partitions, shape.replicas, &config).map(Some),
            // It was deleted between the two.
            Err(KafkaError::AdminOp(RDKafkaErrorCode::UnknownTopicOrPartition)) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    pub(super) async fn topic_config(&self, name: &str) -> Result<ConfigResource, KafkaError> {
        let which = [ResourceSpecifier::Topic(name)];
        // The client asks the controller as it last heard of it. With KRaft that is any broker, which may have just died.
        let options = AdminOptions::new().request_timeout(Some(ANSWER_WITHIN / CONFIG_TRIES));
        let mut tries = 1;
        loop {
            let described = self.admin.describe_configs(&which, &options).await;
            match described.and_then(one) {
                Err(error) if is_lost(&error) && tries < CONFIG_TRIES => {
                    tries += 1;
                    let (admin, name) = (self.admin.clone(), name.to_owned());
                    let limit = ANSWER_WITHIN / CONFIG_TRIES;
                    // Metadata say who the controller is now.
                    let asking = move || admin.inner().fetch_metadata(Some(&name), limit).map(drop);
                    let _ = blocking(asking).await;
                }
                described => return described,
            }
        }
    }

    /// The settings of a broker.
    pub(super) async fn broker_config(&self, id: i32) -> Result<ConfigResource, KafkaError> {
        broker_config(&self.admin, id).await
    }
}

impl Topics for Kafka {
    /// How many partitions a topic had when it was last looked up.
    fn partitions(&self, topic: &TopicName) -> Option<Partitions> {
        // Of one that grows, what it will have: a publisher that goes by another number has to look it up.
        let growing = self.growing.to(topic);
        growing.or_else(|| Some(self.topic_cache.get(topic)?.topic.partitions()))
    }

    async fn declare(
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
            let topic = existing.as_ref().map(|handle| &handle.topic);
            match (reconcile(declared, topic, strategy, growth)?, existing) {
                (Decision::Keep, None) => return Ok(declared.clone()),
                (Decision::Keep, Some(handle)) => return self.keep(handle).await,
                (Decision::Update(differences), Some(handle)) => {
                    let topic = handle.topic.clone().updated(&differences);
                    return self.update(&handle, topic).await;
                }
                (Decision::Create | Decision::Update(_), _) => {
                    topics::check(declared)?;
                    if let Some(made) = self.create_declared(declared).await? {
                        return Ok(made);
                    }
                }
            }
        }
        Err(self.failed("declaring a topic", "it changes all the time"))
    }

    async fn describe(&self, topic: &TopicName) -> Result<Option<Topic>, BrokerError> {
        let handle = self.find(topic).await?;
        Ok(handle.map(|handle| handle.topic.clone()))
    }

    async fn topics(&self) -> Result<Vec<Topic>, BrokerError> {
        self.check_open()?;
        let all = self.catalog.all(TOPIC_ENTRIES).await;
        let all = all.map_err(|error| self.failed("reading the catalog", error))?;
        let mut topics = Vec::new();
        for value in all {
            let Ok(declared) = Declared::read(&value) else {
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

    async fn delete(&self, topic: &TopicName) -> Result<(), BrokerError> {
        let handle = self.fresh_handle(topic).await?;
        if handle.is_foreign {
            return Err(foreign(&handle));
        }
        let groups = self.check_unread(&handle).await?;
        let failed = |error: KafkaError| self.failed("deleting a topic", error);
        let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
        if !groups.is_empty() {
            // What stays behind is about a topic that was born before, and counts for nothing.
            let _ = self.admin.delete_groups(&groups, &within()).await;
        }
        // The topic first: if we fail in between, it is made anew and can be deleted again.
        let deleted = self.admin.delete_topics(&[&handle.name], &within()).await;
        match deleted.and_then(done) {
            Ok(()) | Err(KafkaError::AdminOp(RDKafkaErrorCode::UnknownTopicOrPartition)) => {}
            Err(error) => return Err(failed(error)),
        }
        // Unless another process has found it gone, and begun another one.
        let is_it = |entry: &serde_json::Value| {
            Declared::read(entry).is_ok_and(|entry| entry.born == handle.born)
        };
        let removed = self.change_entry(topic, |before| {
            before.filter(|entry| is_it(entry))?;
            Some(serde_json::Value::Null)
        });
        if removed.await? {
            for entry in self.catalog.names(&group_entries(&handle)) {
                let forgetting = self
                    .catalog
                    .change(&entry, |before| before.map(|_| serde_json::Value::Null));
                // What stays behind is about a topic that was born before, too.
                let _ = forgetting.await;
            }
            wait_for(&self.asker, &handle.name, 0)
                .await
                .map_err(failed)?;
        }
        self.topic_cache.note(topic, None);
        Ok(())
    }
}

impl Kafka {
    /// Takes a topic as it is. A foreign one that is not what it would be taken for is noted.
    async fn keep(&self, handle: TopicHandle) -> Result<Topic, BrokerError> {
        if handle.is_foreign && handle.topic.kind() == Kind::Plain {
            let value = Declared::new(handle.topic.clone(), handle.born, true).write();
            self.change_entry(handle.topic.name(), |before| {
                before.is_none().then(|| value.clone())
            })
            .await?;
        }
        let topic = handle.topic.clone();
        self.topic_cache.note(topic.name(), Some(&Arc::new(handle)));
        Ok(topic)
    }

    async fn update(&self, existing: &TopicHandle, topic: Topic) -> Result<Topic, BrokerError> {
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
            self.grow(existing, topic.partitions()).await?;
        }
        self.alter(existing, &topic).await.map_err(failed)?;
        self.wait_for_config(existing, &topic)
            .await
            .map_err(failed)?;
        self.change_entry(topic.name(), |before| {
            let declared = before.and_then(|value| Declared::read(value).ok())?;
            let topic = topic.clone();
            let growing = None;
            let changed = Declared {
                topic,
                growing,
                ..declared
            };
            Some(changed.write())
        })
        .await?;
        self.topic_cache.note(topic.name(), None);
        self.note_growth(topic.name());
        Ok(topic)
    }

    /// Settings that Laneway does not know stay as they are: Kafka replaces all of them at once.
    async fn alter(&self, existing: &TopicHandle, topic: &Topic) -> Result<(), KafkaError> {
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
    async fn wait_for_config(
        &self,
        existing: &TopicHandle,
        topic: &Topic,
    ) -> Result<(), KafkaError> {
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

    /// An error if a group reads the topic; answers the groups that have, by their names on the cluster.
    async fn check_unread(&self, handle: &TopicHandle) -> Result<Vec<String>, BrokerError> {
        let in_use = |group: &str| BrokerError::InUseBy {
            topic: handle.topic.name().clone(),
            group: group.to_owned(),
        };
        if let Some(group) = self.subscriptions.group_reading(handle.topic.name()) {
            return Err(in_use(&group));
        }
        let (asker, names) = (self.asker.clone(), self.names.clone());
        let name = handle.name.clone();
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

/// So often the configuration of a topic is asked for, within the time that one answer may take.
const CONFIG_TRIES: u32 = 3;

/// Whether the broker that was asked did not answer.
fn is_lost(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{BrokerTransportFailure, OperationTimedOut, RequestTimedOut};
    // `rdkafka_error_code` knows nothing of this kind.
    matches!(
        error,
        KafkaError::AdminOp(BrokerTransportFailure | OperationTimedOut | RequestTimedOut)
    )
}

const TOPIC_ENTRIES: &str = "topic/";

fn topic_entry(topic: &TopicName) -> String {
    format!("{TOPIC_ENTRIES}{topic}")
}

fn foreign(handle: &TopicHandle) -> BrokerError {
    BrokerError::Foreign {
        topic: handle.topic.name().clone(),
        what: format!("topic {} of Kafka", handle.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_does_not_answer_is_told_from_one_that_refuses() {
        assert!(is_lost(&KafkaError::AdminOp(
            RDKafkaErrorCode::OperationTimedOut
        )));
        assert!(is_lost(&KafkaError::AdminOp(
            RDKafkaErrorCode::BrokerTransportFailure
        )));
        assert!(!is_lost(&KafkaError::AdminOp(
            RDKafkaErrorCode::UnknownTopicOrPartition
        )));
    }
}
