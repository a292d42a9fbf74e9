//! Topics of the bus as topics of Kafka.
//!
//! What Kafka knows of a topic (partitions, retention, compression) is taken from there, where it may
//! have been changed with other tools. What it does not know (the kind, where it should be kept) is in
//! the catalog.

use std::time::Duration;

use rdkafka::admin::ConfigResource;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::client;
use super::options::KafkaOptions;
use crate::broker::BrokerError;
use crate::topic::{Compression, Difference, Kind, Partitions, Retention, Topic, TopicName};

/// A topic, and where it is on the cluster.
#[derive(Clone, Debug)]
pub(super) struct TopicHandle {
    pub(super) topic: Topic,
    /// What it is called there.
    pub(super) name: String,
    /// Tells topics of one name apart, that follow one another.
    pub(super) born: u64,
    /// Whether Laneway did not make it.
    pub(super) is_foreign: bool,
}

/// What the catalog says of a topic.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Declared {
    #[serde(deserialize_with = "known_of_topic")]
    pub(super) topic: Topic,
    pub(super) born: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) foreign: bool,
    /// Noted, and about to be made: no topic of this birth has been seen yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) pending: bool,
    /// The number of partitions that it is about to have: until then no process publishes events to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) growing: Option<u32>,
    /// What a later version of this program has to say; kept when the entry is changed.
    #[serde(flatten)]
    pub(super) later: Map<String, Value>,
}

impl Declared {
    /// A topic that is to be made, or one of others that is noted.
    pub(super) fn new(topic: Topic, born: u64, foreign: bool) -> Self {
        Self {
            topic,
            born,
            foreign,
            pending: !foreign,
            growing: None,
            later: Map::new(),
        }
    }

    pub(super) fn read(value: &Value) -> Result<Self, serde_json::Error> {
        Self::deserialize(value)
    }

    pub(super) fn write(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Whether an entry says the same of which topic it is.
    pub(super) fn is_same_birth(&self, entry: Option<&Value>) -> bool {
        let entry = entry.and_then(|value| Self::read(value).ok());
        entry.is_some_and(|entry| (entry.born, entry.pending) == (self.born, self.pending))
    }
}

/// The parts of a declaration. A configuration file may have no others; an entry that a later version
/// wrote may, and they are passed over.
const OF_TOPIC: [&str; 7] = [
    "name",
    "kind",
    "storage",
    "partitions",
    "retention",
    "compression",
    "replicas",
];
const OF_RETENTION: [&str; 3] = ["age", "bytes", "count"];

fn known_of_topic<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Topic, D::Error> {
    let mut topic = Map::deserialize(deserializer)?;
    topic.retain(|key, _| OF_TOPIC.contains(&key.as_str()));
    if let Some(Value::Object(retention)) = topic.get_mut("retention") {
        retention.retain(|key, _| OF_RETENTION.contains(&key.as_str()));
    }
    Topic::deserialize(Value::Object(topic)).map_err(D::Error::custom)
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

    /// A foreign topic, taken for one of this kind.
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
        ("max.message.bytes", options.broker.max_message.to_string()),
    ];
    if let Some(compression) = topic.compression() {
        let name = match compression {
            Compression::None => "uncompressed",
            other => client::compression(other),
        };
        config.push((COMPRESSION, name.to_owned()));
    }
    if let Some(copies) = options.broker.min_in_sync {
        config.push(("min.insync.replicas", copies.to_string()));
    }
    config
}

#[cfg(test)]
mod tests {
    use rdkafka::admin::{ConfigEntry, ConfigSource, OwnedResourceSpecifier};

    use super::*;

    #[test]
    fn the_fixture_of_an_entry_is_what_is_read_and_written() {
        let topic = Topic::domain("orders")
            .partitions(8)
            .build()
            .expect("a topic");
        let declared = Declared::new(topic.clone(), 7, false);
        let written = declared.write().to_string();
        let text = fixtures::text("kafka-topic-entry-1.json", || written.clone() + "\n");
        assert_eq!(written, text.trim());
        let value = serde_json::from_str(&text).expect("JSON");
        let read = Declared::read(&value).expect("an entry");
        assert_eq!((read.topic, read.born, read.pending), (topic, 7, true));
    }

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
    fn an_entry_of_a_later_version_is_read_and_keeps_what_is_not_known() {
        let entry = serde_json::json!({
            "version": 7,
            "topic": {
                "name": "orders", "kind": "domain", "partitions": 4, "tiered": true,
                "retention": { "age": "7d", "segments": 3 },
            },
            "born": 5,
            "owner": { "team": "shop" },
        });
        let declared = Declared::read(&entry).expect("it can be read");
        assert_eq!(declared.topic.partitions().get(), 4);
        assert_eq!((declared.born, declared.pending), (5, false));
        let written = declared.write();
        assert_eq!(written["version"], 7);
        assert_eq!(written["owner"]["team"], "shop");
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
