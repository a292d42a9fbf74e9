//! Topics as streams.
//!
//! A topic is a stream; what it was declared to be is kept with the stream, so that everybody sees
//! the same. What can be changed behind our back (by the server's own tools) is taken from the stream
//! itself.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::Subject;
use async_nats::jetstream::stream::{
    Compression as StreamCompression, Config, Info, RetentionPolicy, StorageType,
};

use super::names::{self, Names};
use super::options::NatsOptions;
use crate::topic::{
    Compression, Difference, Kind, Partitions, Retention, Storage, Topic, TopicName,
};

/// Where a stream says what topic it is.
const DECLARATION: &str = "laneway-topic";

/// A topic, and where it is on the server.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) topic: Topic,
    pub(super) stream: String,
    /// When the stream was made, in nanoseconds since 1970.
    pub(super) born: i64,
    subjects: Subjects,
}

/// What the messages of a topic have for their subject.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Subjects {
    /// This, and the number of the partition.
    Partitions { prefix: String, each: Vec<Subject> },
    /// This one. The stream is somebody else's, and one partition.
    One(String),
    /// This, and the key of the message. The stream is somebody else's, and one partition.
    Keys { prefix: String, wildcard: char },
}

impl Place {
    /// The topic that a stream is, if it is one of ours.
    pub(super) fn of_ours(info: &Info, names: &Names) -> Option<Self> {
        if !names.has_stream(&info.config.name) {
            return None;
        }
        let declared = info.config.metadata.get(DECLARATION)?;
        let topic: Topic = serde_json::from_str(declared).ok()?;
        let topic = as_it_is(topic, &info.config);
        let prefix = names.subject_prefix(topic.name());
        let numbers = topic.partitions().iter();
        Some(Self {
            subjects: Subjects::Partitions {
                each: numbers
                    .map(|number| format!("{prefix}{number}").into())
                    .collect(),
                prefix,
            },
            topic,
            stream: info.config.name.clone(),
            born: born(info),
        })
    }

    /// The topic that a stream is that somebody else made.
    pub(super) fn of_foreign(name: &TopicName, info: &Info) -> Option<Self> {
        if info.config.metadata.contains_key(DECLARATION) {
            return None;
        }
        let subjects = Subjects::of_foreign(name.as_str());
        let is_named = info
            .config
            .subjects
            .iter()
            .any(|subject| subject == name.as_str());
        if !is_named && !matches!(subjects, Subjects::One(_)) {
            // It has some of what the pattern names, perhaps, and perhaps not all of it.
            return None;
        }
        let storage = storage(info.config.storage);
        let builder = match storage {
            Storage::File => Topic::domain(name.as_str()),
            Storage::Memory => Topic::plain(name.as_str()),
        };
        let topic = builder
            .partitions(Partitions::ONE.get())
            .retention(retention(&info.config))
            .build()
            .ok()?;
        Some(Self {
            topic,
            stream: info.config.name.clone(),
            born: born(info),
            subjects,
        })
    }

    /// Whether somebody else made the stream.
    pub(super) fn is_foreign(&self) -> bool {
        !matches!(self.subjects, Subjects::Partitions { .. })
    }

    /// What the subjects of a partition are like.
    pub(super) fn filter(&self, partition: u32) -> String {
        match &self.subjects {
            Subjects::Partitions { prefix, .. } => format!("{prefix}{partition}"),
            Subjects::One(subject) => subject.clone(),
            Subjects::Keys { prefix, wildcard } => format!("{prefix}{wildcard}"),
        }
    }

    /// The subject that a record is published to; nothing if its key cannot be in one.
    pub(super) fn subject(&self, partition: u32, key: Option<&str>) -> Option<Subject> {
        match &self.subjects {
            // Made once: it is the same for all that is published there.
            Subjects::Partitions { each, .. } => each.get(partition as usize).cloned(),
            Subjects::One(subject) => Some(subject.as_str().into()),
            Subjects::Keys { prefix, wildcard } => {
                let key = key?;
                let fits = names::is_subject(key) && (*wildcard == '>' || !key.contains('.'));
                fits.then(|| format!("{prefix}{key}").into())
            }
        }
    }

    /// All subjects, as a pattern.
    pub(super) fn pattern(&self) -> String {
        match &self.subjects {
            Subjects::Partitions { prefix, .. } => format!("{prefix}*"),
            _ => self.filter(0),
        }
    }

    /// The key in a subject: the last resort for a message that says it nowhere else.
    pub(super) fn key_in<'a>(&self, subject: &'a str) -> Option<&'a str> {
        match &self.subjects {
            Subjects::Keys { .. } => subject.rsplit('.').next(),
            _ => None,
        }
    }

    /// Whether events that are published twice are told apart by their ids.
    pub(super) fn knows_duplicates(&self) -> bool {
        self.topic.kind() == Kind::Domain
    }
}

impl Subjects {
    /// Of a stream that somebody else made, by the topic that it is.
    fn of_foreign(topic: &str) -> Self {
        for wildcard in ['*', '>'] {
            if let Some(prefix) = topic.strip_suffix(wildcard) {
                return Self::Keys {
                    prefix: prefix.to_owned(),
                    wildcard,
                };
            }
        }
        Self::One(topic.to_owned())
    }
}

/// When a stream was made.
pub(super) fn born(info: &Info) -> i64 {
    i64::try_from(info.created.unix_timestamp_nanos()).unwrap_or_default()
}

/// The stream that a topic is to be.
pub(super) fn config(topic: &Topic, names: &Names, options: &NatsOptions) -> Config {
    let retention = topic.retention();
    let limit =
        |limit: Option<u64>| limit.map_or(-1, |most| i64::try_from(most).unwrap_or(i64::MAX));
    let replicas = topic.replicas().unwrap_or(options.replicas);
    let declaration = serde_json::to_string(topic).unwrap_or_default();
    let max_age = retention.max_age().unwrap_or_default();
    Config {
        name: names.stream(topic.name()),
        description: Some(format!("laneway topic {}", topic.name())),
        subjects: vec![format!("{}*", names.subject_prefix(topic.name()))],
        storage: match topic.storage() {
            Storage::File => StorageType::File,
            Storage::Memory => StorageType::Memory,
        },
        retention: RetentionPolicy::Limits,
        max_age,
        max_bytes: limit(retention.max_bytes()),
        max_messages: limit(retention.max_count()),
        max_messages_per_subject: -1,
        max_consumers: -1,
        num_replicas: usize::from(replicas),
        duplicate_window: duplicate_window(options.duplicate_window, max_age),
        allow_direct: true,
        compression: topic.compression().map(|compression| match compression {
            Compression::S2 => StreamCompression::S2,
            _ => StreamCompression::None,
        }),
        metadata: HashMap::from([(DECLARATION.to_owned(), declaration)]),
        ..Config::default()
    }
}

/// The server will not know ids for longer than it keeps messages; nothing means its own default.
fn duplicate_window(wanted: Duration, max_age: Duration) -> Duration {
    let least = Duration::from_millis(100);
    match max_age {
        Duration::ZERO => wanted.max(least),
        age => wanted.clamp(least.min(age), age),
    }
}

/// A declared topic as its stream is: what can be changed may not be what it was.
fn as_it_is(topic: Topic, config: &Config) -> Topic {
    let mut differences = vec![
        Difference::Storage {
            declared: storage(config.storage),
            existing: topic.storage(),
        },
        Difference::Retention {
            declared: retention(config),
            existing: topic.retention(),
        },
    ];
    if let (Some(_), Ok(replicas)) = (topic.replicas(), u8::try_from(config.num_replicas)) {
        differences.push(Difference::Replicas {
            declared: replicas,
            existing: topic.replicas(),
        });
    }
    topic.updated(&differences)
}

fn storage(storage: StorageType) -> Storage {
    match storage {
        StorageType::File => Storage::File,
        StorageType::Memory => Storage::Memory,
    }
}

fn retention(config: &Config) -> Retention {
    let mut retention = Retention::FOREVER;
    if config.max_age > Duration::ZERO {
        retention = retention.age(config.max_age);
    }
    let limit = |most: i64| u64::try_from(most).ok().filter(|most| *most > 0);
    if let Some(bytes) = limit(config.max_bytes) {
        retention = retention.bytes(bytes);
    }
    if let Some(count) = limit(config.max_messages) {
        retention = retention.count(count);
    }
    retention
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> NatsOptions {
        NatsOptions::new(["localhost:4222"])
    }

    fn there_and_back(topic: &Topic, change: impl FnOnce(&mut Config)) -> Topic {
        let names = Names::new("laneway");
        let mut config = config(topic, &names, &options());
        change(&mut config);
        let declared: Topic = serde_json::from_str(&config.metadata[DECLARATION]).expect("ours");
        as_it_is(declared, &config)
    }

    #[test]
    fn a_stream_is_the_topic_that_it_was_made_for() {
        let limits = Retention::FOREVER.bytes(1 << 30).count(7);
        for topic in [
            Topic::domain("shop.orders").partitions(7),
            Topic::plain("news").storage(Storage::File),
            Topic::domain("a").retention(limits).replicas(1),
            Topic::domain("b").retention(Retention::FOREVER),
            Topic::domain("c").compression(Compression::S2),
        ] {
            let topic = topic.build().expect("valid");
            assert_eq!(there_and_back(&topic, |_| {}), topic);
        }
    }

    #[test]
    fn what_was_changed_on_the_server_is_seen() {
        let topic = Topic::domain("orders").build().expect("valid");
        let hour = Duration::from_hours(1);
        let changed = there_and_back(&topic, |config| {
            config.max_age = hour;
            config.storage = StorageType::Memory;
        });
        assert_eq!(changed.retention(), Retention::FOREVER.age(hour));
        assert_eq!(changed.storage(), Storage::Memory);
        assert_eq!(changed.partitions(), topic.partitions());
    }

    #[test]
    fn ids_are_known_no_longer_than_messages_are_kept() {
        let minute = Duration::from_mins(1);
        assert_eq!(duplicate_window(minute, Duration::ZERO), minute);
        assert_eq!(
            duplicate_window(minute, Duration::from_secs(1)),
            Duration::from_secs(1)
        );
        assert!(duplicate_window(Duration::ZERO, Duration::ZERO) > Duration::ZERO);
    }

    #[test]
    fn a_key_in_a_subject_is_found_and_written() {
        let place = |name: &str| Place {
            topic: Topic::domain(name).partitions(1).build().expect("valid"),
            stream: "theirs".to_owned(),
            born: 0,
            subjects: Subjects::of_foreign(name),
        };
        let orders = place("orders");
        assert_eq!(orders.subject(0, Some("a")).as_deref(), Some("orders"));
        assert_eq!(
            (orders.filter(0), orders.key_in("orders")),
            ("orders".into(), None)
        );
        let by_key = place("orders.*");
        assert_eq!(by_key.filter(0), "orders.*");
        assert_eq!(by_key.key_in("orders.a"), Some("a"));
        assert_eq!(by_key.subject(0, Some("a")).as_deref(), Some("orders.a"));
        for key in [None, Some("a.b"), Some("*"), Some("")] {
            assert_eq!(by_key.subject(0, key), None, "{key:?}");
        }
        let deep = place("orders.>");
        assert_eq!(deep.subject(0, Some("a.b")).as_deref(), Some("orders.a.b"));
    }

    #[test]
    fn the_streams_of_topics_do_not_share_subjects() {
        let names = Names::new("laneway");
        let subjects = |name: &str| {
            let topic = Topic::domain(name).build().expect("valid");
            config(&topic, &names, &options()).subjects
        };
        assert_eq!(subjects("a"), ["laneway.a.*"]);
        assert_eq!(subjects("a.b"), ["laneway.a=2Eb.*"]);
        assert_eq!(subjects("a.*"), ["laneway.a=2E=2A.*"]);
    }
}
