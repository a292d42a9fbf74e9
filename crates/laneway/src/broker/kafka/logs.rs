//! Logs of raw records: topics without retention.

use std::ops::Range;
use std::sync::Arc;

use rdkafka::admin::ConfigResource;
use rdkafka::topic_partition_list::Offset;

use super::cluster::{blocking, within};
use super::follower::LogFollower;
use super::ledger::{edges, list};
use super::server::Kafka;
use crate::broker::log::{Fault, LogPartition, Logs};
use crate::broker::remote::Topics;
use crate::broker::{BoxFuture, BrokerError, Reader};
use crate::topic::{Growth, Strategy, Topic, TopicName};

/// What a topic must be set to, so that it loses nothing.
const SETTINGS: [(&str, &str); 4] = [
    ("cleanup.policy", "delete"),
    ("retention.ms", "-1"),
    ("retention.bytes", "-1"),
    ("unclean.leader.election.enable", "false"),
];

impl Logs for Arc<Kafka> {
    fn open<'a>(
        &'a self,
        topic: &'a Topic,
        strategy: Strategy,
    ) -> BoxFuture<'a, Result<String, BrokerError>> {
        Box::pin(async move {
            self.declare(topic, strategy, Growth::Refused).await?;
            let handle = self.fresh_handle(topic.name()).await?;
            if handle.is_foreign {
                // It has no birth, so one that is made anew could not be told from it.
                return Err(BrokerError::Foreign {
                    topic: topic.name().clone(),
                    what: format!("topic {} of Kafka", handle.name),
                });
            }
            let config = self.topic_config(&handle.name).await;
            let config = config.map_err(|error| self.failed("opening a log", error))?;
            check(topic.name(), &config)?;
            Ok(identity_of(handle.born))
        })
    }

    /// As the catalog says, for the price of one question.
    fn identity<'a>(
        &'a self,
        topic: &'a TopicName,
    ) -> BoxFuture<'a, Result<Option<String>, BrokerError>> {
        Box::pin(async move {
            self.check_open()?;
            let declared = self.declared(topic).await?;
            Ok(declared.map(|declared| identity_of(declared.born)))
        })
    }

    fn bounds<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
    ) -> BoxFuture<'a, Result<Range<u64>, BrokerError>> {
        Box::pin(async move {
            let handle = self.handle(topic).await?;
            let asker = self.asker.clone();
            let asking = blocking(move || {
                let ends = edges(&asker, &handle, [partition], Offset::End)?;
                let begins = edges(&asker, &handle, [partition], Offset::Beginning)?;
                Ok((begins, ends))
            });
            match asking.await {
                Ok((begins, ends)) => {
                    let end = ends.get(&partition).copied().unwrap_or(0);
                    let begin = begins.get(&partition).copied().unwrap_or(0);
                    // It may have been trimmed between the two questions.
                    Ok(begin..end.max(begin))
                }
                Err(error) => {
                    // It may be gone altogether.
                    self.fresh_handle(topic).await?;
                    Err(self.failed("asking for the bounds of a log", error))
                }
            }
        })
    }

    fn trim<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        before: u64,
    ) -> BoxFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move {
            let handle = self.handle(topic).await?;
            let before = Offset::Offset(i64::try_from(before).unwrap_or(i64::MAX));
            let failed = |error| self.failed("trimming a log", error);
            let offsets = list(&handle, [partition], before).map_err(failed)?;
            let deleted = self.admin.delete_records(&offsets, &within()).await;
            for element in deleted.map_err(failed)?.elements() {
                element.error().map_err(failed)?;
            }
            Ok(())
        })
    }

    fn follow(&self, log: LogPartition, from: u64) -> Box<dyn Reader> {
        Box::new(LogFollower::new(self.clone(), log, from))
    }
}

/// What tells topics of one name apart.
pub(super) fn identity_of(born: u64) -> String {
    format!("{born:016x}")
}

/// That a topic loses nothing.
fn check(topic: &TopicName, config: &ConfigResource) -> Result<(), Fault> {
    let value = |name| config.get(name).and_then(|entry| entry.value.as_deref());
    // A setting that the cluster does not tell of is one that it does not have.
    let others = SETTINGS
        .iter()
        .filter(|(name, wanted)| value(name).is_some_and(|value| value != *wanted));
    let (found, wanted): (Vec<_>, Vec<_>) = others
        .map(|(name, wanted)| {
            let found = value(name).unwrap_or_default();
            (format!("{name}={found}"), format!("{name}={wanted}"))
        })
        .unzip();
    if found.is_empty() {
        return Ok(());
    }
    Err(Fault::Settings {
        topic: topic.clone(),
        found: found.join(", "),
        wanted: wanted.join(", "),
    })
}
