//! Logs of raw records: streams without limits.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};

use super::connect::call;
use super::follower::LogFollower;
use super::server::Nats;
use super::topics::{self, TopicHandle};
use crate::broker::log::{Fault, LogPartition, Logs};
use crate::broker::{BoxFuture, BrokerError, Reader};
use crate::topic::{Decision, Growth, Strategy, Topic, TopicName, reconcile};

/// Two processes may make a log at the same moment, one of them looks again.
const TRIES: usize = 5;

impl Logs for Arc<Nats> {
    fn open<'a>(
        &'a self,
        topic: &'a Topic,
        strategy: Strategy,
    ) -> BoxFuture<'a, Result<String, BrokerError>> {
        Box::pin(self.open_log(topic, strategy))
    }

    fn identity<'a>(
        &'a self,
        topic: &'a TopicName,
    ) -> BoxFuture<'a, Result<Option<String>, BrokerError>> {
        Box::pin(async move {
            let handle = self.find(topic).await?;
            Ok(handle.as_deref().map(identity_of))
        })
    }

    fn bounds<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
    ) -> BoxFuture<'a, Result<Range<u64>, BrokerError>> {
        Box::pin(self.log_bounds(topic, partition))
    }

    fn trim<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        before: u64,
    ) -> BoxFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move {
            let handle = self.handle(topic).await?;
            self.note_trim(&handle, partition, before).await?;
            let stream = self.stream(&handle).await?;
            let purge = || {
                let filter = handle.filter(partition);
                stream.purge().filter(filter).sequence(before).into_future()
            };
            let purged = call(purge).await;
            purged
                .map(drop)
                .map_err(|error| self.failed("trimming a log", error))
        })
    }

    fn follow(&self, log: LogPartition, from: u64) -> Box<dyn Reader> {
        Box::new(LogFollower::new(self.clone(), log, from))
    }
}

impl Nats {
    async fn open_log(&self, topic: &Topic, strategy: Strategy) -> Result<String, BrokerError> {
        for _ in 0..TRIES {
            let existing = self.find(topic.name()).await?;
            let found = existing.as_ref().map(|handle| &handle.topic);
            let decision = reconcile(topic, found, strategy, Growth::Refused)?;
            if let Some(handle) = existing {
                if handle.is_foreign() {
                    return Err(BrokerError::Foreign {
                        topic: topic.name().clone(),
                        what: format!("stream {}", handle.stream),
                    });
                }
                if let Some(info) = self.stream_info(&handle.stream).await? {
                    check(topic.name(), &info.config)?;
                    return Ok(identity_of(&handle));
                }
            } else if decision == Decision::Create {
                let config = topics::config(topic, &self.names, &self.options);
                let config = Config {
                    discard: DiscardPolicy::New,
                    ..config
                };
                // If it is there by now, it is looked at as any other.
                self.create_stream(config).await?;
            }
        }
        Err(self.failed("opening a log", "it changes all the time"))
    }

    async fn log_bounds(
        &self,
        topic: &TopicName,
        partition: u32,
    ) -> Result<Range<u64>, BrokerError> {
        let handle = self.handle(topic).await?;
        let mark = self.trimmed_before(&handle, partition).await?;
        // First the end: what is appended meanwhile is behind it.
        let info = self.stream_info(&handle.stream).await?;
        let info = info.ok_or_else(|| BrokerError::UnknownTopic(topic.clone()))?;
        let first = self.first_from(&handle, partition, mark).await?;
        let filter = handle.filter(partition);
        let last = call(|| self.last_in(&handle.stream, &filter)).await;
        let last = last.map_err(|error| self.failed("asking for the bounds of a log", error))?;
        Ok(match first {
            Some(first) if first.offset <= last => first.offset..last + 1,
            // Nothing of it: whatever comes is behind all that the stream has.
            _ => {
                let end = mark.max(info.state.last_sequence + 1);
                end..end
            }
        })
    }
}

/// What tells streams of one name apart.
pub(super) fn identity_of(handle: &TopicHandle) -> String {
    handle.born.to_string()
}

/// That a stream loses nothing, whatever is published to it.
fn check(topic: &TopicName, config: &Config) -> Result<(), Fault> {
    let wanted = "file storage, retention limits, discard new, and no limit of age, bytes, messages or messages per subject";
    let is_so = config.storage == StorageType::File
        && config.retention == RetentionPolicy::Limits
        && config.discard == DiscardPolicy::New
        && config.max_age == Duration::ZERO
        && config.max_bytes <= 0
        && config.max_messages <= 0
        && config.max_messages_per_subject <= 0;
    if is_so {
        return Ok(());
    }
    Err(Fault::Settings {
        topic: topic.clone(),
        found: format!(
            "{:?} storage, retention {:?}, discard {:?}, max_age {:?}, max_bytes {}, max_messages {}, \
             max_messages_per_subject {}",
            config.storage,
            config.retention,
            config.discard,
            config.max_age,
            config.max_bytes,
            config.max_messages,
            config.max_messages_per_subject
        ),
        wanted: wanted.to_owned(),
    })
}
