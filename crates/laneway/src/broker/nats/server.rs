//! A server with the bus's topics: what all parts of the broker share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::context::{
    CreateStreamErrorKind, GetStreamByNameErrorKind, GetStreamErrorKind,
};
use async_nats::jetstream::stream::{Config, Info, Stream};
use async_nats::jetstream::{Context, ErrorCode};
use futures_util::TryStreamExt;
use tokio::sync::Mutex;

use super::bucket::Bucket;
use super::connect::{self, Connection, Link, Purpose, call, retry_placement};
use super::error::NatsError;
use super::names::{self, Names};
use super::options::NatsOptions;
use super::topics::{self, TopicHandle};
use crate::broker::BrokerError;
use crate::broker::log_limiter::LogLimiter;
use crate::broker::remote::Topics;
use crate::broker::subscriptions::Subscriptions;
use crate::broker::topic_cache::TopicCache;
use crate::topic::{
    Compression, Decision, Growth, Partitions, Storage, Strategy, Topic, TopicName, read_stored,
    reconcile,
};

/// Members that said nothing for this long are forgotten; those that live say something every second
/// or so. What members leave behind goes away with it.
const MEMBERS_FORGOTTEN_AFTER: Duration = Duration::from_hours(1);

/// Two processes may declare a topic at the same moment, one of them looks again.
const TRIES: usize = 5;

/// A NATS server, or several of them, with the topics of a bus.
pub(crate) struct Nats {
    pub(super) options: NatsOptions,
    pub(super) names: Names,
    pub(super) client: Client,
    pub(super) context: Context,
    pub(super) link: Link,
    /// What partitions are read over; made by the first that is.
    readers: Mutex<Option<Arc<Connection>>>,
    /// What groups have settled, by topic, group and partition.
    pub(super) groups: Bucket,
    /// Who is there, by topic, group and member.
    pub(super) members: Bucket,
    /// Topics that were looked up.
    topic_cache: TopicCache<TopicHandle>,
    /// For failures that repeat.
    pub(super) limiter: LogLimiter,
    /// What this process reads.
    pub(super) subscriptions: Subscriptions,
    closed: AtomicBool,
}

impl Nats {
    pub(super) async fn open(options: NatsOptions) -> Result<Self, BrokerError> {
        options.check()?;
        let at = options.server_list();
        let opening = async {
            let connection = connect::connect(&options, Purpose::Everything).await?;
            let context = &connection.context;
            let names = Names::new(options.namespace_or_default());
            let groups = Bucket::open(
                context,
                names.groups_bucket(),
                "laneway: what groups have settled",
                options.replicas_or_default(),
                Duration::ZERO,
            );
            let members = Bucket::open(
                context,
                names.members_bucket(),
                "laneway: members of groups",
                options.replicas_or_default(),
                MEMBERS_FORGOTTEN_AFTER,
            );
            let (groups, members) = (groups.await?, members.await?);
            Ok((connection, names, groups, members))
        };
        let (connection, names, groups, members) =
            opening.await.map_err(|error: NatsError| error.at(&at))?;
        let Connection {
            client,
            context,
            link,
        } = connection;
        Ok(Self {
            options,
            names,
            client,
            context,
            link,
            readers: Mutex::default(),
            groups,
            members,
            topic_cache: TopicCache::default(),
            limiter: LogLimiter::default(),
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

    /// Answers every later call with [`BrokerError::Closed`].
    pub(super) fn refuse_calls(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// The connection that partitions are read over. There is another one if its client is gone: some
    /// headers make it panic.
    pub(super) async fn readers(&self) -> Result<Arc<Connection>, BrokerError> {
        let mut readers = self.readers.lock().await;
        if let Some(connection) = readers.as_ref().filter(|one| !one.link.is_over()) {
            return Ok(connection.clone());
        }
        self.check_open()?;
        let connecting = connect::connect(&self.options, Purpose::Reading).await;
        let connection = connecting.map_err(|error| self.failed_with(error))?;
        Ok(readers.insert(Arc::new(connection)).clone())
    }

    /// Ends the connections.
    pub(super) async fn hang_up(&self) {
        let readers = self.readers.lock().await.take();
        if let Some(readers) = readers {
            let _ = readers.client.drain().await;
        }
        let _ = self.client.drain().await;
    }

    /// The error that users see.
    pub(super) fn failed(&self, doing: &'static str, error: impl std::fmt::Display) -> BrokerError {
        NatsError::new(doing, error).at(&self.options.server_list())
    }

    pub(super) fn failed_with(&self, error: NatsError) -> BrokerError {
        error.at(&self.options.server_list())
    }

    /// The topic, as it was when it was last looked up.
    pub(super) async fn handle(&self, topic: &TopicName) -> Result<Arc<TopicHandle>, BrokerError> {
        self.check_open()?;
        match self.topic_cache.get(topic) {
            Some(handle) => Ok(handle),
            None => self.fresh_handle(topic).await,
        }
    }

    /// The topic, as it is now.
    pub(super) async fn fresh_handle(
        &self,
        topic: &TopicName,
    ) -> Result<Arc<TopicHandle>, BrokerError> {
        let found = self.find(topic).await?;
        found.ok_or_else(|| BrokerError::UnknownTopic(topic.clone()))
    }

    /// Looks a topic up.
    pub(super) async fn find(
        &self,
        topic: &TopicName,
    ) -> Result<Option<Arc<TopicHandle>>, BrokerError> {
        self.check_open()?;
        let handle = match self.stream_info(&self.names.stream(topic)).await? {
            Some(info) => Some(self.ours(topic, &info)?),
            None => match self.forgotten(topic).await? {
                Some(handle) => Some(handle),
                None => self.foreign(topic).await?,
            },
        };
        let handle = handle.map(Arc::new);
        if let Some(handle) = &handle
            && self.topic_cache.get(topic).is_none()
        {
            self.tell_of_others(handle).await;
        }
        self.topic_cache.note(topic, handle.as_ref());
        Ok(handle)
    }

    /// Warns, once, of a foreign stream that has the topic for a subject: the stream that was made first decides which
    /// one the topic is, and the two sides may not read what the other publishes.
    async fn tell_of_others(&self, handle: &TopicHandle) {
        let topic = handle.topic.name();
        if handle.is_foreign() {
            tracing::warn!(%topic, stream = handle.stream,
                "the topic is a foreign stream: it has one partition, and the retention that the stream was made with");
            return;
        }
        if !names::may_be_foreign(topic.as_str()) || topic.reserved().is_some() {
            return;
        }
        if let Ok(theirs) = self.context.stream_by_subject(topic.as_str()).await {
            tracing::warn!(%topic, stream = handle.stream, theirs,
                "a foreign stream has the name of the topic for a subject: what is published there \
                 is not in the topic, and what is published to the topic is not there");
        }
    }

    fn ours(&self, topic: &TopicName, info: &Info) -> Result<TopicHandle, BrokerError> {
        let handle = TopicHandle::of_ours(info, &self.names)
            .filter(|handle| handle.topic.name() == topic)
            .ok_or_else(|| BrokerError::Damaged {
                what: format!("stream {}", info.config.name),
                detail: format!("its metadata does not say that it is topic {topic}"),
            })?;
        let subjects = topics::config(&handle.topic, &self.names, &self.options).subjects;
        if info.config.subjects != subjects {
            let error = format!(
                "stream {} has the subjects {:?}, and {topic} needs {subjects:?}: an earlier build made it, or it was \
                 changed with other tools. Delete it, or use another namespace",
                info.config.name, info.config.subjects
            );
            return Err(self.failed("looking up a topic", error));
        }
        Ok(handle)
    }

    /// A topic in memory, which the server forgot when it restarted, with all that was in it. It is
    /// still declared.
    async fn forgotten(&self, topic: &TopicName) -> Result<Option<TopicHandle>, BrokerError> {
        let entry = self.groups.read(&names::topic_key(topic)).await;
        let Some(declared) = entry.map_err(|error| self.failed_with(error))?.value else {
            return Ok(None);
        };
        let Ok(declared) = read_stored(&declared) else {
            return Ok(None);
        };
        let config = topics::config(&declared, &self.names, &self.options);
        match self.create_stream(config).await? {
            Some(info) => self.ours(topic, &info).map(Some),
            // Another process has made it meanwhile.
            None => match self.stream_info(&self.names.stream(topic)).await? {
                Some(info) => self.ours(topic, &info).map(Some),
                None => Ok(None),
            },
        }
    }

    /// A foreign stream whose messages have the topic for their subject.
    async fn foreign(&self, topic: &TopicName) -> Result<Option<TopicHandle>, BrokerError> {
        if !names::may_be_foreign(topic.as_str()) || topic.reserved().is_some() {
            return Ok(None);
        }
        let stream = match self.context.stream_by_subject(topic.as_str()).await {
            Ok(stream) => stream,
            Err(error) => match error.kind() {
                GetStreamByNameErrorKind::NotFound | GetStreamByNameErrorKind::InvalidSubject => {
                    return Ok(None);
                }
                // Not to be taken for an answer: the topic would be made a second time.
                _ => return Err(self.failed("looking up a stream", error)),
            },
        };
        let info = self.stream_info(&stream).await?;
        Ok(info.and_then(|info| TopicHandle::of_foreign(topic, &info)))
    }

    pub(super) async fn stream_info(&self, stream: &str) -> Result<Option<Info>, BrokerError> {
        match call(|| self.context.get_stream(stream)).await {
            Ok(stream) => Ok(Some(stream.cached_info().clone())),
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(cause)
                    if cause.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    Ok(None)
                }
                _ => Err(self.failed("looking up a stream", error)),
            },
        }
    }

    /// The stream of a topic, without asking for it.
    pub(super) async fn stream(&self, handle: &TopicHandle) -> Result<Stream<()>, BrokerError> {
        let stream = self.context.get_stream_no_info(&handle.stream).await;
        stream.map_err(|error| self.failed("naming a stream", error))
    }

    /// Makes a stream; nothing if there is one of that name, which is something else.
    pub(super) async fn create_stream(&self, config: Config) -> Result<Option<Info>, BrokerError> {
        match retry_placement(|| self.context.create_stream(config.clone())).await {
            Ok(stream) => Ok(Some(stream.cached_info().clone())),
            Err(error) => match error.kind() {
                CreateStreamErrorKind::JetStream(cause)
                    if cause.error_code() == ErrorCode::STREAM_NAME_EXIST =>
                {
                    Ok(None)
                }
                _ => Err(self.failed("creating a stream", error)),
            },
        }
    }
}

impl Topics for Nats {
    /// How many partitions a topic had when it was last looked up.
    fn partitions(&self, topic: &TopicName) -> Option<Partitions> {
        let handle = self.topic_cache.get(topic)?;
        Some(handle.topic.partitions())
    }

    async fn declare(
        &self,
        declared: &Topic,
        strategy: Strategy,
        growth: Growth,
    ) -> Result<Topic, BrokerError> {
        let has = |compression| matches!(compression, Compression::None | Compression::S2);
        let declared = &declared.where_there_is(has);
        for _ in 0..TRIES {
            let existing = self.find(declared.name()).await?;
            let topic = existing.as_ref().map(|handle| &handle.topic);
            match (reconcile(declared, topic, strategy, growth)?, existing) {
                (Decision::Keep, existing) => {
                    return Ok(
                        existing.map_or_else(|| declared.clone(), |handle| handle.topic.clone())
                    );
                }
                (Decision::Update(differences), Some(existing)) => {
                    let topic = existing.topic.clone().updated(&differences);
                    return self.update(&existing, topic).await;
                }
                (Decision::Create | Decision::Update(_), _) => {
                    check_compression(declared)?;
                    let config = topics::config(declared, &self.names, &self.options);
                    if let Some(info) = self.create_stream(config).await? {
                        return self.created(declared, &info).await;
                    }
                }
            }
        }
        let error = "it changes all the time";
        Err(self.failed("declaring a topic", error))
    }

    async fn describe(&self, topic: &TopicName) -> Result<Option<Topic>, BrokerError> {
        let handle = self.find(topic).await?;
        Ok(handle.map(|handle| handle.topic.clone()))
    }

    async fn topics(&self) -> Result<Vec<Topic>, BrokerError> {
        self.check_open()?;
        let streams: Vec<Info> = self
            .context
            .streams()
            .try_collect()
            .await
            .map_err(|error| self.failed("listing streams", error))?;
        let mut topics: Vec<Topic> = streams
            .iter()
            .filter_map(|info| TopicHandle::of_ours(info, &self.names))
            .map(|handle| handle.topic)
            .collect();
        topics.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(topics)
    }

    async fn delete(&self, topic: &TopicName) -> Result<(), BrokerError> {
        let handle = self.fresh_handle(topic).await?;
        if handle.is_foreign() {
            return Err(BrokerError::Foreign {
                topic: topic.clone(),
                what: format!("stream {}", handle.stream),
            });
        }
        self.check_unread(topic).await?;
        // What is kept about it first: if we fail in between, it can be deleted again.
        let failed = |error| self.failed_with(error);
        self.groups
            .purge(&names::topic_key(topic))
            .await
            .map_err(failed)?;
        self.groups
            .purge(&names::all_of_topic(topic))
            .await
            .map_err(failed)?;
        let deleted = self.context.delete_stream(&handle.stream).await;
        deleted.map_err(|error| self.failed("deleting a stream", error))?;
        self.topic_cache.note(topic, None);
        Ok(())
    }
}

impl Nats {
    async fn created(&self, declared: &Topic, info: &Info) -> Result<Topic, BrokerError> {
        self.remember(declared).await?;
        let handle = Arc::new(self.ours(declared.name(), info)?);
        self.topic_cache.note(declared.name(), Some(&handle));
        Ok(handle.topic.clone())
    }

    /// Keeps the declaration of a topic whose stream does not survive the server.
    async fn remember(&self, topic: &Topic) -> Result<(), BrokerError> {
        if topic.storage() == Storage::File {
            return Ok(());
        }
        let declared = serde_json::to_vec(topic).unwrap_or_default();
        let key = names::topic_key(topic.name());
        for _ in 0..TRIES {
            let entry = self.groups.read(&key).await;
            let entry = entry.map_err(|error| self.failed_with(error))?;
            let writing = self
                .groups
                .write(&key, declared.clone().into(), entry.revision);
            if writing.await.is_ok() {
                return Ok(());
            }
        }
        Err(self.failed("declaring a topic", "its declaration could not be kept"))
    }

    async fn update(&self, existing: &TopicHandle, topic: Topic) -> Result<Topic, BrokerError> {
        if existing.is_foreign() {
            return Err(BrokerError::Foreign {
                topic: topic.name().clone(),
                what: format!("stream {}", existing.stream),
            });
        }
        check_compression(&topic)?;
        if topic.partitions() != existing.topic.partitions() {
            // The members that read now would never look into the new partitions.
            self.check_unread(topic.name()).await?;
        }
        let wanted = topics::config(&topic, &self.names, &self.options);
        let Some(info) = self.stream_info(&existing.stream).await? else {
            return Err(BrokerError::UnknownTopic(topic.name().clone()));
        };
        // Settings that Laneway does not know stay as they are.
        let config = Config {
            max_age: wanted.max_age,
            max_bytes: wanted.max_bytes,
            max_messages: wanted.max_messages,
            subjects: wanted.subjects,
            num_replicas: topic
                .replicas()
                .map_or(info.config.num_replicas, usize::from),
            compression: wanted.compression.or(info.config.compression),
            duplicate_window: wanted.duplicate_window,
            metadata: {
                let mut metadata = info.config.metadata;
                metadata.extend(wanted.metadata);
                if topic.partitions() != existing.topic.partitions() {
                    metadata.insert(topics::RESHAPED.to_owned(), "true".to_owned());
                }
                metadata
            },
            ..info.config
        };
        let updated = self.context.update_stream(config).await;
        let info = updated.map_err(|error| self.failed("changing a stream", error))?;
        self.created(&topic, &info).await
    }
}

fn check_compression(topic: &Topic) -> Result<(), BrokerError> {
    match topic.compression() {
        None | Some(Compression::None | Compression::S2) => Ok(()),
        Some(other) => Err(BrokerError::Unsupported {
            topic: topic.name().clone(),
            what: format!("compression {other}"),
            instead: "s2 or none",
        }),
    }
}
