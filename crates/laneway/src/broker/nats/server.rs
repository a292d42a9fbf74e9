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

use super::bucket::Bucket;
use super::connect::{self, Link, ask, place};
use super::error::Trouble;
use super::names::{self, Names};
use super::options::NatsOptions;
use super::topics::{self, Place};
use crate::broker::BrokerError;
use crate::broker::places::Places;
use crate::broker::seats::Seats;
use crate::topic::{Compression, Decision, Growth, Storage, Strategy, Topic, TopicName, reconcile};

/// Members that said nothing for this long are forgotten; those that live say something every second
/// or so. What members leave behind goes away with it.
const MEMBERS_FORGOTTEN_AFTER: Duration = Duration::from_hours(1);

/// Two processes may declare a topic at the same moment, one of them looks again.
const TRIES: usize = 5;

pub(super) struct Server {
    pub(super) options: NatsOptions,
    pub(super) names: Names,
    pub(super) client: Client,
    pub(super) context: Context,
    pub(super) link: Link,
    /// What groups have settled, by topic, group and partition.
    pub(super) groups: Bucket,
    /// Who is there, by topic, group and member.
    pub(super) members: Bucket,
    /// Topics that were looked up.
    places: Places<Place>,
    /// What this process reads.
    pub(super) seats: Seats,
    closed: AtomicBool,
}

impl Server {
    pub(super) async fn open(options: NatsOptions) -> Result<Self, BrokerError> {
        options.check()?;
        let at = options.server_list();
        let opening = async {
            let (client, context, link) = connect::connect(&options).await?;
            let names = Names::new(&options.namespace);
            let groups = Bucket::open(
                &context,
                names.groups_bucket(),
                "laneway: what groups have settled",
                options.replicas,
                Duration::ZERO,
            );
            let members = Bucket::open(
                &context,
                names.members_bucket(),
                "laneway: members of groups",
                options.replicas,
                MEMBERS_FORGOTTEN_AFTER,
            );
            let (groups, members) = (groups.await?, members.await?);
            Ok((client, context, link, names, groups, members))
        };
        let (client, context, link, names, groups, members) =
            opening.await.map_err(|trouble: Trouble| trouble.at(&at))?;
        Ok(Self {
            options,
            names,
            client,
            context,
            link,
            groups,
            members,
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

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// The error that users see.
    pub(super) fn failed(&self, doing: &'static str, error: impl std::fmt::Display) -> BrokerError {
        Trouble::new(doing, error).at(&self.options.server_list())
    }

    pub(super) fn trouble(&self, trouble: Trouble) -> BrokerError {
        trouble.at(&self.options.server_list())
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

    /// Looks a topic up.
    pub(super) async fn find(&self, topic: &TopicName) -> Result<Option<Arc<Place>>, BrokerError> {
        self.check_open()?;
        let place = match self.stream_info(&self.names.stream(topic)).await? {
            Some(info) => Some(self.ours(topic, &info)?),
            None => match self.forgotten(topic).await? {
                Some(place) => Some(place),
                None => self.foreign(topic).await?,
            },
        };
        let place = place.map(Arc::new);
        self.places.note(topic, place.as_ref());
        Ok(place)
    }

    fn ours(&self, topic: &TopicName, info: &Info) -> Result<Place, BrokerError> {
        Place::of_ours(info, &self.names)
            .filter(|place| place.topic.name() == topic)
            .ok_or_else(|| BrokerError::Damaged {
                what: format!("stream {}", info.config.name),
                detail: format!("its metadata does not say that it is topic {topic}"),
            })
    }

    /// A topic in memory, which the server forgot when it restarted, with all that was in it. It is
    /// still declared.
    async fn forgotten(&self, topic: &TopicName) -> Result<Option<Place>, BrokerError> {
        let entry = self.groups.read(&names::topic_key(topic)).await;
        let Some(declared) = entry.map_err(|trouble| self.trouble(trouble))?.value else {
            return Ok(None);
        };
        let Ok(declared) = serde_json::from_slice::<Topic>(&declared) else {
            return Ok(None);
        };
        let config = topics::config(&declared, &self.names, &self.options);
        match self.create_stream(config).await? {
            Some(info) => self.ours(topic, &info).map(Some),
            // Somebody else was faster.
            None => match self.stream_info(&self.names.stream(topic)).await? {
                Some(info) => self.ours(topic, &info).map(Some),
                None => Ok(None),
            },
        }
    }

    /// A stream of somebody else whose messages have the topic for their subject.
    async fn foreign(&self, topic: &TopicName) -> Result<Option<Place>, BrokerError> {
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
        Ok(info.and_then(|info| Place::of_foreign(topic, &info)))
    }

    pub(super) async fn stream_info(&self, stream: &str) -> Result<Option<Info>, BrokerError> {
        match ask(|| self.context.get_stream(stream)).await {
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
    pub(super) async fn stream(&self, place: &Place) -> Result<Stream<()>, BrokerError> {
        let stream = self.context.get_stream_no_info(&place.stream).await;
        stream.map_err(|error| self.failed("naming a stream", error))
    }

    /// Makes a stream; nothing if there is one of that name, which is something else.
    async fn create_stream(&self, config: Config) -> Result<Option<Info>, BrokerError> {
        match place(|| self.context.create_stream(config.clone())).await {
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

    pub(super) async fn declare(
        &self,
        declared: &Topic,
        strategy: Strategy,
        growth: Growth,
    ) -> Result<Topic, BrokerError> {
        for _ in 0..TRIES {
            let existing = self.find(declared.name()).await?;
            let topic = existing.as_ref().map(|place| &place.topic);
            match (reconcile(declared, topic, strategy, growth)?, existing) {
                (Decision::Keep, existing) => {
                    return Ok(
                        existing.map_or_else(|| declared.clone(), |place| place.topic.clone())
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

    async fn created(&self, declared: &Topic, info: &Info) -> Result<Topic, BrokerError> {
        self.remember(declared).await?;
        let place = Arc::new(self.ours(declared.name(), info)?);
        self.places.note(declared.name(), Some(&place));
        Ok(place.topic.clone())
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
            let entry = entry.map_err(|trouble| self.trouble(trouble))?;
            let writing = self
                .groups
                .write(&key, declared.clone().into(), entry.revision);
            if writing.await.is_ok() {
                return Ok(());
            }
        }
        Err(self.failed("declaring a topic", "its declaration could not be kept"))
    }

    async fn update(&self, existing: &Place, topic: Topic) -> Result<Topic, BrokerError> {
        if existing.is_foreign() {
            return Err(BrokerError::Foreign {
                topic: topic.name().clone(),
                what: format!("stream {}", existing.stream),
            });
        }
        check_compression(&topic)?;
        if topic.partitions() != existing.topic.partitions() {
            // Those who read now would never look into the new partitions.
            self.check_unread(topic.name()).await?;
        }
        let wanted = topics::config(&topic, &self.names, &self.options);
        let Some(info) = self.stream_info(&existing.stream).await? else {
            return Err(BrokerError::UnknownTopic(topic.name().clone()));
        };
        // What somebody set that we know nothing of stays as it is.
        let config = Config {
            max_age: wanted.max_age,
            max_bytes: wanted.max_bytes,
            max_messages: wanted.max_messages,
            num_replicas: topic
                .replicas()
                .map_or(info.config.num_replicas, usize::from),
            compression: wanted.compression.or(info.config.compression),
            duplicate_window: wanted.duplicate_window,
            metadata: {
                let mut metadata = info.config.metadata;
                metadata.extend(wanted.metadata);
                metadata
            },
            ..info.config
        };
        let updated = self.context.update_stream(config).await;
        let info = updated.map_err(|error| self.failed("changing a stream", error))?;
        self.created(&topic, &info).await
    }

    pub(super) async fn topics(&self) -> Result<Vec<Topic>, BrokerError> {
        self.check_open()?;
        let streams: Vec<Info> = self
            .context
            .streams()
            .try_collect()
            .await
            .map_err(|error| self.failed("listing streams", error))?;
        let mut topics: Vec<Topic> = streams
            .iter()
            .filter_map(|info| Place::of_ours(info, &self.names))
            .map(|place| place.topic)
            .collect();
        topics.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(topics)
    }

    pub(super) async fn delete(&self, topic: &TopicName) -> Result<(), BrokerError> {
        let place = self.place_now(topic).await?;
        if place.is_foreign() {
            return Err(BrokerError::Foreign {
                topic: topic.clone(),
                what: format!("stream {}", place.stream),
            });
        }
        self.check_unread(topic).await?;
        // What is kept about it first: if we fail in between, it can be deleted again.
        let trouble = |trouble| self.trouble(trouble);
        self.groups
            .purge(&names::topic_key(topic))
            .await
            .map_err(trouble)?;
        self.groups
            .purge(&names::all_of_topic(topic))
            .await
            .map_err(trouble)?;
        let deleted = self.context.delete_stream(&place.stream).await;
        deleted.map_err(|error| self.failed("deleting a stream", error))?;
        self.places.note(topic, None);
        Ok(())
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
