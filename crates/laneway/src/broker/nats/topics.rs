//! Topics as streams.
//!
//! A topic is a stream; what it was declared to be is kept with the stream, so that every process sees
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
use crate::planted::planted;
use crate::topic::{
    Compression, Difference, Kind, Partitions, Retention, Storage, Topic, TopicName, read_stored,
};

/// Where a stream says what topic it is.
const DECLARATION: &str = "laneway-topic";
/// Where a stream says that it had another number of partitions once.
pub(super) const RESHAPED: &str = "laneway-reshaped";

/// A topic, and where it is on the server.
#[derive(Clone, Debug)]
pub(super) struct TopicHandle {
    pub(super) topic: Topic,
    pub(super) stream: String,
    /// When the stream was made, in nanoseconds since 1970.
    pub(super) born: i64,
    subjects: Subjects,
}

/// What the messages of a topic have for their subject.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Subjects {
    /// This, how many partitions there are, and the number of the partition. A stream takes only what
    /// names the number of partitions that it has: a publisher that knows another one, and so would
    /// choose the wrong partition, is refused.
    Partitions {
        prefix: String,
        each: Vec<Subject>,
        /// There are messages from when there was another number of them.
        reshaped: bool,
    },
    /// This one. The stream is foreign, and one partition.
    One(String),
    /// This, and the key of the message. The stream is foreign, and one partition.
    Keys { prefix: String, wildcard: char },
}

impl TopicHandle {
    /// The topic that a stream is, if it is one of ours.
    pub(super) fn of_ours(info: &Info, names: &Names) -> Option<Self> {
        if !names.has_stream(&info.config.name) {
            return None;
        }
        let declared = info.config.metadata.get(DECLARATION)?;
        let topic = read_stored(declared.as_bytes()).ok()?;
        let topic = as_it_is(topic, &info.config);
        let prefix = names.subject_prefix(topic.name());
        let shape = format!("{prefix}{}.", topic.partitions().get());
        let numbers = topic.partitions().iter();
        Some(Self {
            subjects: Subjects::Partitions {
                each: numbers
                    .map(|number| format!("{shape}{number}").into())
                    .collect(),
                prefix,
                reshaped: info.config.metadata.contains_key(RESHAPED),
            },
            topic,
            stream: info.config.name.clone(),
            born: born(info),
        })
    }

    /// The topic that a foreign stream is.
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

    /// Whether Laneway did not make the stream.
    pub(super) fn is_foreign(&self) -> bool {
        !matches!(self.subjects, Subjects::Partitions { .. })
    }

    /// What the subjects of a partition are like.
    pub(super) fn filter(&self, partition: u32) -> String {
        match &self.subjects {
            Subjects::Partitions {
                prefix,
                each,
                reshaped,
            } => match each.get(partition as usize) {
                Some(subject) if !reshaped => subject.to_string(),
                _ => format!("{prefix}*.{partition}"),
            },
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
            Subjects::Partitions { prefix, .. } => format!("{prefix}>"),
            _ => self.filter(0),
        }
    }

    /// The partition that a subject is of; of streams of ours only.
    pub(super) fn partition_in(subject: &str) -> Option<u32> {
        subject.rsplit('.').next()?.parse().ok()
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
    /// Of a foreign stream, by the topic that it is.
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
    let replicas = topic
        .replicas()
        .unwrap_or_else(|| options.replicas_or_default());
    let declaration = serde_json::to_string(topic).unwrap_or_default();
    let max_age = retention.max_age().unwrap_or_default();
    Config {
        name: names.stream(topic.name()),
        description: Some(format!("laneway topic {}", topic.name())),
        subjects: vec![taken(topic, names)],
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
        duplicate_window: duplicate_window(options.broker.duplicate_window, max_age),
        allow_direct: true,
        compression: topic.compression().map(|compression| match compression {
            Compression::S2 => StreamCompression::S2,
            _ => StreamCompression::None,
        }),
        metadata: HashMap::from([(DECLARATION.to_owned(), declaration)]),
        ..Config::default()
    }
}

/// What the stream of a topic takes: what names the number of partitions that it has.
fn taken(topic: &Topic, names: &Names) -> String {
    let prefix = names.subject_prefix(topic.name());
    if planted("B4") {
        return format!("{prefix}>");
    }
    format!("{prefix}{}.*", topic.partitions().get())
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
    use std::collections::BTreeMap;

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
    fn the_fixture_of_a_declaration_is_what_is_read_and_written() {
        let limits = Retention::FOREVER
            .age(Duration::from_hours(1))
            .bytes(1 << 30);
        let topic = Topic::domain("orders").partitions(8).retention(limits);
        let topic = topic.replicas(3).build().expect("valid");
        let made = config(&topic, &Names::new("laneway"), &options());
        let written: BTreeMap<_, _> = made.metadata.into_iter().collect();
        let written = serde_json::to_string(&written).expect("JSON");
        let text = fixtures::text("nats-stream-metadata-1.json", || written.clone() + "\n");
        assert_eq!(written, text.trim());
        let metadata: HashMap<String, String> = serde_json::from_str(&text).expect("metadata");
        let read = read_stored(metadata[DECLARATION].as_bytes());
        assert_eq!(read.expect("a topic"), topic);
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
        let handle = |name: &str| TopicHandle {
            topic: Topic::domain(name).partitions(1).build().expect("valid"),
            stream: "theirs".to_owned(),
            born: 0,
            subjects: Subjects::of_foreign(name),
        };
        let orders = handle("orders");
        assert_eq!(orders.subject(0, Some("a")).as_deref(), Some("orders"));
        assert_eq!(
            (orders.filter(0), orders.key_in("orders")),
            ("orders".into(), None)
        );
        let by_key = handle("orders.*");
        assert_eq!(by_key.filter(0), "orders.*");
        assert_eq!(by_key.key_in("orders.a"), Some("a"));
        assert_eq!(by_key.subject(0, Some("a")).as_deref(), Some("orders.a"));
        for key in [None, Some("a.b"), Some("*"), Some("")] {
            assert_eq!(by_key.subject(0, key), None, "{key:?}");
        }
        let deep = handle("orders.>");
        assert_eq!(deep.subject(0, Some("a.b")).as_deref(), Some("orders.a.b"));
    }

    #[test]
    fn the_streams_of_topics_do_not_share_subjects() {
        let names = Names::new("laneway");
        let subjects = |name: &str| {
            let topic = Topic::domain(name).build().expect("valid");
            config(&topic, &names, &options()).subjects
        };
        assert_eq!(subjects("a"), ["laneway.a.16.*"]);
        assert_eq!(subjects("a.b"), ["laneway.a=2Eb.16.*"]);
        assert_eq!(subjects("a.*"), ["laneway.a=2E=2A.16.*"]);
    }
}
