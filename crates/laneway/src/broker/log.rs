//! What a broker does for [`crate::log`]: topics whose partitions are logs that lose nothing.

use std::ops::Range;

use super::{BoxFuture, BrokerError, Reader};
use crate::topic::{Strategy, Topic, TopicName};

/// Why a log cannot be opened or followed, although the broker is well. Nothing is skipped or begun anew silently: the
/// caller decides what becomes of what it knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The topic exists with settings under which it may lose records, or that are not its own.
    #[error(
        "topic {topic} cannot be a log: it has {found}, and a log needs {wanted}. Change it with the tools of the \
         broker, or use another name"
    )]
    Settings {
        /// The topic.
        topic: TopicName,
        /// What the topic has.
        found: String,
        /// What a log needs.
        wanted: String,
    },
    /// Records that were to be read next have been trimmed.
    #[error(
        "partition {partition} of {topic} was to be read from {from}, and what is before {first} was trimmed"
    )]
    Trimmed {
        /// The topic.
        topic: TopicName,
        /// The partition.
        partition: u32,
        /// Where it was to be read from.
        from: u64,
        /// Where the log begins.
        first: u64,
    },
    /// The partition ends before the offset that was to be read next: it has lost its end.
    #[error("partition {partition} of {topic} was to be read from {from}, and ends at {end}")]
    Shortened {
        /// The topic.
        topic: TopicName,
        /// The partition.
        partition: u32,
        /// Where it was to be read from.
        from: u64,
        /// One past the last record.
        end: u64,
    },
    /// The topic was deleted, or was deleted and made anew.
    #[error("topic {topic} is not the one that was opened: that was {was}, and now {}", told(now.as_deref()))]
    OtherTopic {
        /// The topic.
        topic: TopicName,
        /// The identity that was opened.
        was: String,
        /// The identity of the topic of that name now, if there is one.
        now: Option<String>,
    },
}

fn told(now: Option<&str>) -> String {
    now.map_or_else(
        || "there is none of that name".to_owned(),
        |now| format!("it is {now}"),
    )
}

/// What brokers do for logs. Appending is [`publish`](super::Broker::publish).
pub(crate) trait Logs: Send + Sync {
    /// Makes or checks the topic of a log, which has no retention; answers its identity.
    fn open<'a>(
        &'a self,
        topic: &'a Topic,
        strategy: Strategy,
    ) -> BoxFuture<'a, Result<String, BrokerError>>;

    /// The identity of the topic that there is now.
    fn identity<'a>(
        &'a self,
        topic: &'a TopicName,
    ) -> BoxFuture<'a, Result<Option<String>, BrokerError>>;

    /// The first offset that a partition has, and the one behind its last, by the word of its leader.
    fn bounds<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
    ) -> BoxFuture<'a, Result<Range<u64>, BrokerError>>;

    /// Removes what is before an offset, which must not be behind the end.
    fn trim<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        before: u64,
    ) -> BoxFuture<'a, Result<(), BrokerError>>;

    /// Reads a partition from an offset on, without a group. After an error the reader can be asked again, and goes on
    /// where it was. A [`Fault`] is answered again and again.
    fn follow(&self, log: LogPartition, from: u64) -> Box<dyn Reader>;
}

/// A partition of the log that was opened.
#[derive(Clone, Debug)]
pub(crate) struct LogPartition {
    pub(crate) topic: TopicName,
    pub(crate) identity: String,
    pub(crate) partition: u32,
}

impl LogPartition {
    /// Whether the topic is still the one that was opened.
    pub(crate) fn check(&self, now: Option<String>) -> Result<(), Fault> {
        if now.as_ref() == Some(&self.identity) {
            return Ok(());
        }
        Err(Fault::OtherTopic {
            topic: self.topic.clone(),
            was: self.identity.clone(),
            now,
        })
    }

    pub(crate) fn trimmed(&self, from: u64, first: u64) -> Fault {
        Fault::Trimmed {
            topic: self.topic.clone(),
            partition: self.partition,
            from,
            first,
        }
    }

    pub(crate) fn shortened(&self, from: u64, end: u64) -> Fault {
        Fault::Shortened {
            topic: self.topic.clone(),
            partition: self.partition,
            from,
            end,
        }
    }
}
