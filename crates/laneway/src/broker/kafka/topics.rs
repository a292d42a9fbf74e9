//! Topics of the bus as topics of Kafka.
//!
//! What Kafka knows of a topic (partitions, retention, compression) is taken from there, where it may
//! have been changed with other tools. What it does not know (the kind, where it should be kept) is in
//! the catalog.

use std::time::Duration;

use rdkafka::admin::ConfigResource;
use serde::{Deserialize, Serialize};

use super::client;
use super::options::KafkaOptions;
use crate::broker::BrokerError;
use crate::topic::{Compression, Difference, Kind, Partitions, Retention, Topic, TopicName};

/// A topic, and where it is on the cluster.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) topic: Topic,
    /// What it is called there.
    pub(super) name: String,
    /// Tells topics of one name apart, that follow one another.
    pub(super) born: u64,
    /// Whether somebody else made it.
    pub(super) is_foreign: bool,
}

/// What the catalog says of a topic.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Declared {
    pub(super) topic: Topic,
    pub(super) born: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) foreign: bool,
}

/// What Kafka says of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Actual {
    pub(super) partitions: Partitions,
    pub(super) replicas: u8,
    retention_ms: Option<u64>,
    /// For each partition.
    retention_bytes: Option<u64>,
    compression: Option<Compression>,
}

const RETENTION_MS: &str = "retention.ms";
const RETENTION_BYTES: &str = "retention.bytes";
const COMPRESSION: &str = "compression.type";

impl Actual {
    pub(super) fn new(
        name: &TopicName,
        partitions: usize,
        replicas: usize,
        config: &ConfigResource,
    ) -> Result<Self, BrokerError> {
        let partitions = u32::try_from(partitions).ok();
        let partitions = partitions.and_then(|count| Partitions::new(count).ok());
        let limit = |key: &str| {
            let value = config.get(key)?.value.as_ref()?;
            value.parse::<u64>().ok()
        };
        let compression = config
            .get(COMPRESSION)
            .and_then(|entry| entry.value.as_deref());
        Ok(Self {
            partitions: partitions.ok_or_else(|| BrokerError::Unsupported {
                topic: name.clone(),
                what: "another number of partitions".to_owned(),
                instead: "1 to 1024 partitions",
            })?,
            replicas: u8::try_from(replicas).unwrap_or(u8::MAX),
            retention_ms: limit(RETENTION_MS),
            retention_bytes: limit(RETENTION_BYTES),
            compression: match compression {
                Some("lz4") => Some(Compression::Lz4),
                Some("zstd") => Some(Compression::Zstd),
                Some("uncompressed") => Some(Compression::None),
                _ => None,
            },
        })
    }

    /// The retention that this is, given what it was declared to be: limits are for all partitions
    /// together, and do not divide evenly.
    fn retention(&self, declared: Option<Retention>) -> Retention {
        let mut retention = Retention::FOREVER;
        if let Some(age) = self.retention_ms {
            retention = retention.age(Duration::from_millis(age));
        }
        let declared = declared.and_then(|declared| declared.max_bytes());
        let is_declared = |bytes: &u64| Some(each(*bytes, self.partitions)) == self.retention_bytes;
        if let Some(bytes) = declared.filter(is_declared) {
            retention = retention.bytes(bytes);
        } else if let Some(bytes) = self.retention_bytes {
            let all = bytes.saturating_mul(u64::from(self.partitions.get()));
            retention = retention.bytes(all);
        }
        retention
    }

    /// A declared topic as it is: what can be changed may not be what it was.
    pub(super) fn of(&self, declared: Topic) -> Topic {
        let mut differences = vec![
            Difference::Partitions {
                declared: self.partitions,
                existing: declared.partitions(),
            },
            Difference::Retention {
                declared: self.retention(Some(declared.retention())),
                existing: declared.retention(),
            },
        ];
        if let (Some(_), Some(compression)) = (declared.compression(), self.compression) {
            differences.push(Difference::Compression {
                declared: compression,
                existing: declared.compression(),
            });
        }
        if declared.replicas().is_some() {
            differences.push(Difference::Replicas {
                declared: self.replicas,
                existing: declared.replicas(),
            });
        }
        declared.updated(&differences)
    }

    /// A topic that somebody else made, taken for one of this kind.
    pub(super) fn foreign(&self, name: &TopicName, kind: Kind) -> Result<Topic, BrokerError> {
        let builder = match kind {
            Kind::Domain => Topic::domain(name.as_str()),
            Kind::Plain => Topic::plain(name.as_str()),
        };
        let topic = builder
            .partitions(self.partitions.get())
            .retention(self.retention(None))
            .build();
        topic.map_err(|_| BrokerError::UnknownTopic(name.clone()))
    }
}

/// The limit for each partition, so that all together have at least this much.
fn each(bytes: u64, partitions: Partitions) -> u64 {
    bytes.div_ceil(u64::from(partitions.get()))
}

/// Whether Kafka can do what is declared.
pub(super) fn check(topic: &Topic) -> Result<(), BrokerError> {
    let unsupported = |what, instead| {
        Err(BrokerError::Unsupported {
            topic: topic.name().clone(),
            what,
            instead,
        })
    };
    if topic.compression() == Some(Compression::S2) {
        return unsupported("compression s2".to_owned(), "lz4, zstd or none");
    }
    if let Some(count) = topic.retention().max_count() {
        let what = format!("a retention of {count} messages");
        return unsupported(what, "a retention by age or bytes");
    }
    Ok(())
}

/// The settings that a topic is created with, or changed to.
pub(super) fn config(topic: &Topic, options: &KafkaOptions) -> Vec<(&'static str, String)> {
    let retention = topic.retention();
    let limit = |limit: Option<u64>| limit.map_or_else(|| "-1".to_owned(), |most| most.to_string());
    let age = retention.max_age().map(|age| {
        let millis = age.as_millis();
        u64::try_from(millis).unwrap_or(i64::MAX as u64)
    });
    let bytes = retention.max_bytes();
    let bytes = bytes.map(|bytes| each(bytes, topic.partitions()));
    let mut config = vec![
        ("cleanup.policy", "delete".to_owned()),
        (RETENTION_MS, limit(age)),
        (RETENTION_BYTES, limit(bytes)),
        ("max.message.bytes", options.max_message.to_string()),
    ];
    if let Some(compression) = topic.compression() {
        let name = match compression {
            Compression::None => "uncompressed",
            other => client::compression(other),
        };
        config.push((COMPRESSION, name.to_owned()));
    }
    if let Some(copies) = options.min_in_sync {
        config.push(("min.insync.replicas", copies.to_string()));
    }
    config
}

#[cfg(test)]
mod tests {
    use rdkafka::admin::{ConfigEntry, ConfigSource, OwnedResourceSpecifier};

    use super::*;

    fn there_and_back(topic: &Topic) -> Topic {
        let options = KafkaOptions::new(["localhost:9092"]);
        let entries = config(topic, &options).into_iter();
        let resource = ConfigResource {
            specifier: OwnedResourceSpecifier::Topic(topic.name().to_string()),
            entries: entries
                .map(|(name, value)| ConfigEntry {
                    name: name.to_owned(),
                    value: Some(value),
                    source: ConfigSource::DynamicTopic,
                    is_read_only: false,
                    is_default: false,
                    is_sensitive: false,
                })
                .collect(),
        };
        let partitions = topic.partitions().get() as usize;
        let actual = Actual::new(topic.name(), partitions, 1, &resource);
        actual.expect("it can be read").of(topic.clone())
    }

    #[test]
    fn a_topic_of_kafka_is_the_topic_that_it_was_made_for() {
        for topic in [
            Topic::domain("shop.orders").partitions(7),
            Topic::plain("news"),
            Topic::domain("a")
                .retention(Retention::FOREVER.bytes(100))
                .partitions(3),
            Topic::domain("b").retention(Retention::FOREVER).replicas(1),
            Topic::domain("c").compression(Compression::Zstd),
            Topic::domain("d").compression(Compression::None),
        ] {
            let topic = topic.build().expect("valid");
            assert_eq!(there_and_back(&topic), topic);
        }
    }

    #[test]
    fn what_kafka_does_not_have_is_refused() {
        for (topic, expected) in [
            (Topic::domain("a").compression(Compression::S2), "lz4"),
            (
                Topic::domain("a").retention(Retention::FOREVER.count(5)),
                "age or bytes",
            ),
        ] {
            let refused = check(&topic.build().expect("valid")).expect_err("refused");
            assert!(refused.to_string().contains(expected), "{refused}");
        }
    }
}
