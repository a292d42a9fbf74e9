//! A declaration in configuration files and in the stores of brokers.

use std::fmt;
use std::time::Duration;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::declaration::{Compression, Kind, Storage, Topic, TopicBuilder};
use super::error::Error;
use super::retention::Retention;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    name: String,
    kind: Kind,
    storage: Option<Storage>,
    partitions: Option<u32>,
    retention: Option<RetentionConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compression: Option<Compression>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replicas: Option<u8>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RetentionConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    age: Option<Age>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<Size>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
}

/// The fields that a declaration may have.
#[cfg(feature = "nats")]
const FIELDS: [&str; 7] = [
    "name",
    "kind",
    "storage",
    "partitions",
    "retention",
    "compression",
    "replicas",
];
#[cfg(feature = "nats")]
const RETENTION_FIELDS: [&str; 3] = ["age", "bytes", "count"];

/// Reads a declaration that a broker has stored. In a configuration file an unknown field is a mistake; here a
/// later build has written it, and an older process must not stop at that.
#[cfg(feature = "nats")]
pub(crate) fn read_stored(json: &[u8]) -> Result<Topic, serde_json::Error> {
    let mut fields: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(json)?;
    fields.retain(|name, _| FIELDS.contains(&name.as_str()));
    if let Some(serde_json::Value::Object(retention)) = fields.get_mut("retention") {
        retention.retain(|name, _| RETENTION_FIELDS.contains(&name.as_str()));
    }
    serde_json::from_value(serde_json::Value::Object(fields))
}

impl TryFrom<Config> for Topic {
    type Error = Error;

    fn try_from(config: Config) -> Result<Self, Error> {
        let mut builder = TopicBuilder::new(&config.name, config.kind);
        if let Some(storage) = config.storage {
            builder = builder.storage(storage);
        }
        if let Some(partitions) = config.partitions {
            builder = builder.partitions(partitions);
        }
        if let Some(retention) = config.retention {
            builder = builder.retention(retention.into());
        }
        builder.compression = config.compression;
        builder.replicas = config.replicas;
        // What a broker has stored reads back, whatever its name; declaring it is refused later.
        builder.build_stored()
    }
}

impl From<Topic> for Config {
    fn from(topic: Topic) -> Self {
        Self {
            name: topic.name.into(),
            kind: topic.kind,
            storage: Some(topic.storage),
            partitions: Some(topic.partitions.get()),
            retention: Some(topic.retention.into()),
            compression: topic.compression,
            replicas: topic.replicas,
        }
    }
}

impl From<RetentionConfig> for Retention {
    fn from(config: RetentionConfig) -> Self {
        let mut retention = Self::FOREVER;
        if let Some(Age(age)) = config.age {
            retention = retention.age(age);
        }
        if let Some(Size(bytes)) = config.bytes {
            retention = retention.bytes(bytes);
        }
        if let Some(count) = config.count {
            retention = retention.count(count);
        }
        retention
    }
}

impl From<Retention> for RetentionConfig {
    fn from(retention: Retention) -> Self {
        Self {
            age: retention.max_age().map(Age),
            bytes: retention.max_bytes().map(Size),
            count: retention.max_count(),
        }
    }
}

/// A duration such as `7d`.
struct Age(Duration);

impl Serialize for Age {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&laneway_units::format_duration(self.0))
    }
}

impl<'de> Deserialize<'de> for Age {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        laneway_units::parse_duration(&text)
            .map(Self)
            .map_err(serde::de::Error::custom)
    }
}

/// A size such as `10GiB`, or a number of bytes.
struct Size(u64);

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&laneway_units::format_size(self.0))
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SizeVisitor;

        impl Visitor<'_> for SizeVisitor {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as 10GiB or a number of bytes")
            }

            fn visit_u64<E>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(bytes))
            }

            fn visit_i64<E: serde::de::Error>(self, bytes: i64) -> Result<Size, E> {
                u64::try_from(bytes)
                    .map(Size)
                    .map_err(|_| E::custom(laneway_units::Error::Size(bytes.to_string())))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Size, E> {
                laneway_units::parse_size(text).map(Size).map_err(E::custom)
            }
        }

        deserializer.deserialize_any(SizeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Topic, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn name_and_kind_are_enough() {
        assert_eq!(
            read(r#"{"name":"orders","kind":"domain"}"#),
            Ok(Topic::domain("orders").build().expect("valid"))
        );
    }

    #[test]
    fn a_declaration_is_written_in_full_and_reads_back() {
        let topic = Topic::plain("news")
            .high_throughput()
            .build()
            .expect("valid");
        let json = serde_json::to_string(&topic).expect("serializable");
        assert_eq!(
            json,
            r#"{"name":"news","kind":"plain","storage":"memory","partitions":64,"retention":{"age":"1h","bytes":"256MiB"},"compression":"lz4"}"#
        );
        assert_eq!(read(&json), Ok(topic));
    }

    #[test]
    fn no_limits_and_no_retention_are_different() {
        let forever = read(r#"{"name":"a","kind":"domain","retention":{}}"#).expect("valid");
        assert_eq!(forever.retention(), Retention::FOREVER);
        let default = read(r#"{"name":"a","kind":"domain"}"#).expect("valid");
        assert_ne!(default.retention(), Retention::FOREVER);
    }

    #[test]
    fn every_key_is_read() {
        let json = r#"{"name":"a","kind":"plain","storage":"file","partitions":3,"retention":{"age":"1d","bytes":"1KiB","count":5},"compression":"s2","replicas":2}"#;
        let topic = read(json).expect("valid");
        let retention = Retention::FOREVER
            .age(Duration::from_hours(24))
            .bytes(1024)
            .count(5);
        let expected = Topic::plain("a")
            .storage(Storage::File)
            .partitions(3)
            .retention(retention)
            .compression(Compression::S2)
            .replicas(2);
        assert_eq!(topic, expected.build().expect("valid"));
        assert_eq!(topic.replicas(), Some(2));
        assert_eq!(topic.retention().max_count(), Some(5));
        assert_eq!(topic.retention().to_string(), "1d, 1KiB, 5 messages");
        assert_eq!(serde_json::to_string(&topic).expect("serializable"), json);
    }

    #[test]
    fn durations_of_a_topic_are_those_of_the_table() {
        let age = |text: &str| {
            read(&format!(
                r#"{{"name":"a","kind":"plain","retention":{{"age":{text:?}}}}}"#
            ))
        };
        // A retention of nothing is refused for another reason.
        for (text, millis) in laneway_units::table::DURATIONS.into_iter().skip(1) {
            let topic = age(text).expect(text);
            let read = topic.retention().max_age();
            assert_eq!(read, Some(Duration::from_millis(millis)), "{text}");
        }
        for text in laneway_units::table::NOT_DURATIONS {
            let refusal = laneway_units::Error::Duration(text.to_owned()).to_string();
            let error = age(text).expect_err(text);
            assert!(error.starts_with(&refusal), "{error}");
        }
    }

    #[test]
    fn sizes_may_be_numbers() {
        let topic = read(r#"{"name":"a","kind":"plain","retention":{"bytes":1000}}"#);
        assert_eq!(topic.expect("valid").retention().max_bytes(), Some(1000));
    }

    #[test]
    fn bad_configuration_is_refused_and_explained() {
        for (json, expected) in [
            (r#"{"kind":"domain"}"#, "missing field `name`"),
            (r#"{"name":"a"}"#, "missing field `kind`"),
            (r#"{"name":"a","kind":"queue"}"#, "unknown variant `queue`"),
            (
                r#"{"name":"a","kind":"plain","shards":3}"#,
                "unknown field `shards`",
            ),
            (
                r#"{"name":"a","kind":"plain","retention":{"days":3}}"#,
                "unknown field `days`",
            ),
            (
                r#"{"name":"a","kind":"plain","partitions":0}"#,
                "partitions is 0: use 1 to 1024",
            ),
            (
                r#"{"name":"a","kind":"plain","partitions":-1}"#,
                "invalid value",
            ),
            (r#"{"name":"a b","kind":"plain"}"#, "name has ' ' at byte 1"),
            (
                r#"{"name":"a","kind":"plain","retention":{"age":"soon"}}"#,
                "\"soon\" is not a duration: write whole numbers",
            ),
            (
                r#"{"name":"a","kind":"plain","retention":{"bytes":-1}}"#,
                "\"-1\" is not a size",
            ),
            (
                r#"{"name":"a","kind":"plain","retention":{"count":0}}"#,
                "retention.count is 0, which keeps nothing",
            ),
            (
                r#"{"name":"a","kind":"plain","compression":"rar"}"#,
                "unknown variant `rar`",
            ),
            (
                r#"{"name":"a","kind":"plain","replicas":0}"#,
                "replicas is 0",
            ),
        ] {
            let error = read(json).expect_err(json);
            assert!(error.contains(expected), "{json}: {error}");
        }
    }
}
