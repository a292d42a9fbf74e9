//! What a topic is declared to be.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::config::Config;
use super::error::Error;
use super::name::TopicName;
use super::partitions::Partitions;
use super::retention::Retention;

/// What a topic is for, which decides how it is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Domain events: envelopes, in order per aggregate, at least once.
    Domain,
    /// Plain messages: bytes, in any order, at most once.
    Plain,
}

impl Kind {
    /// Where messages of this kind are kept unless the topic says otherwise.
    #[must_use]
    pub const fn default_storage(self) -> Storage {
        match self {
            Self::Domain => Storage::File,
            Self::Plain => Storage::Memory,
        }
    }
}

/// Where a broker keeps the messages of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// On disk.
    File,
    /// In memory, gone with the broker.
    Memory,
}

/// How a broker compresses the messages of a topic. A broker that does not have the one that is
/// declared refuses the declaration; one that a preset asks for is left out there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// Not at all.
    None,
    /// LZ4: fast, moderate.
    Lz4,
    /// Zstandard: slower, small.
    Zstd,
    /// S2, which is what NATS has.
    S2,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Domain => "domain",
            Self::Plain => "plain",
        })
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "file",
            Self::Memory => "memory",
        })
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
            Self::S2 => "s2",
        })
    }
}

/// The declaration of a topic. Made by [`Topic::domain`] or [`Topic::plain`], or read from
/// configuration, which may leave out everything but `name` and `kind`:
///
/// ```
/// # use laneway::topic::{Storage, Topic};
/// let topic: Topic = serde_json::from_str(
///     r#"{
///         "name": "shop.orders",
///         "kind": "domain",
///         "partitions": 32,
///         "retention": { "age": "30d", "bytes": "10GiB" },
///         "compression": "zstd",
///         "replicas": 3
///     }"#,
/// )?;
/// assert_eq!(topic.storage(), Storage::File);
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// `"retention": {}` keeps messages forever. Unknown keys are refused. Written out, a declaration
/// is complete, so that it means the same after defaults have changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Config", into = "Config")]
pub struct Topic {
    pub(super) name: TopicName,
    pub(super) kind: Kind,
    pub(super) storage: Storage,
    pub(super) partitions: Partitions,
    pub(super) retention: Retention,
    pub(super) compression: Option<Compression>,
    pub(super) compression_from_preset: FromPreset,
    pub(super) replicas: Option<u8>,
}

/// Whether the compression comes from a preset: a broker that does not have it does without. Topics that
/// differ in nothing else are the same.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FromPreset(pub(super) bool);

impl PartialEq for FromPreset {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for FromPreset {}

impl Topic {
    /// A topic for domain events: on disk, 16 partitions, kept for 7 days unless changed.
    pub fn domain(name: impl AsRef<str>) -> TopicBuilder {
        TopicBuilder::new(name.as_ref(), Kind::Domain)
    }

    /// A topic for plain messages: in memory, 16 partitions, kept for an hour and up to 256 MiB unless
    /// changed.
    pub fn plain(name: impl AsRef<str>) -> TopicBuilder {
        TopicBuilder::new(name.as_ref(), Kind::Plain)
    }

    /// The topic next to another one where the bus keeps what it puts aside: in one partition, so
    /// that there is one order, and until somebody deals with it.
    pub(crate) fn beside(name: TopicName) -> Self {
        Self {
            name,
            kind: Kind::Domain,
            storage: Storage::File,
            partitions: Partitions::ONE,
            retention: Retention::FOREVER,
            compression: None,
            compression_from_preset: FromPreset(false),
            replicas: None,
        }
    }

    /// The topic for a broker that has this compression: what a preset asks for and is not there is left
    /// out.
    pub(crate) fn where_there_is(&self, has: impl Fn(Compression) -> bool) -> Self {
        let mut topic = self.clone();
        if self.compression_from_preset.0 {
            topic.compression = topic.compression.filter(|compression| has(*compression));
        }
        topic
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &TopicName {
        &self.name
    }

    /// What it is for.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where its messages are kept.
    #[must_use]
    pub fn storage(&self) -> Storage {
        self.storage
    }

    /// How many partitions it has.
    #[must_use]
    pub fn partitions(&self) -> Partitions {
        self.partitions
    }

    /// How long it keeps its messages.
    #[must_use]
    pub fn retention(&self) -> Retention {
        self.retention
    }

    /// How it is compressed, or nothing for the broker's default.
    #[must_use]
    pub fn compression(&self) -> Option<Compression> {
        self.compression
    }

    /// How many copies the broker keeps, or nothing for its default.
    #[must_use]
    pub fn replicas(&self) -> Option<u8> {
        self.replicas
    }
}

/// Collects what a [`Topic`] is declared to be; [`build`](TopicBuilder::build) checks it.
#[derive(Debug, Clone)]
#[must_use = "call build to get the topic"]
pub struct TopicBuilder {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) storage: Storage,
    pub(super) partitions: u32,
    pub(super) retention: Retention,
    pub(super) compression: Option<Compression>,
    pub(super) compression_from_preset: FromPreset,
    pub(super) replicas: Option<u8>,
}

impl TopicBuilder {
    /// Where its messages are kept, if not where its kind says.
    pub fn storage(mut self, storage: Storage) -> Self {
        self.storage = storage;
        self
    }

    /// How many partitions it has, 1 to 1024.
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.partitions = partitions;
        self
    }

    /// How long it keeps its messages.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// How it is compressed, if not as the broker does by default.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = Some(compression);
        self.compression_from_preset = FromPreset(false);
        self
    }

    /// How many copies the broker keeps, if not its default.
    pub fn replicas(mut self, replicas: u8) -> Self {
        self.replicas = Some(replicas);
        self
    }

    /// Checks the declaration.
    ///
    /// # Errors
    /// If the name is invalid or reserved, or a number is out of range.
    pub fn build(self) -> Result<Topic, Error> {
        let topic = self.build_stored()?;
        match topic.name.reserved() {
            Some(suffix) => Err(Error::NameReserved { suffix }),
            None => Ok(topic),
        }
    }

    /// The same for what a broker has: the bus keeps topics of reserved names there.
    pub(super) fn build_stored(self) -> Result<Topic, Error> {
        let name = TopicName::new(self.name)?;
        if self.replicas == Some(0) {
            return Err(Error::NoReplicas);
        }
        self.retention.check()?;
        Ok(Topic {
            name,
            kind: self.kind,
            storage: self.storage,
            partitions: Partitions::new(self.partitions)?,
            retention: self.retention,
            compression: self.compression,
            compression_from_preset: self.compression_from_preset,
            replicas: self.replicas,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_follows_the_kind_unless_said_otherwise() {
        let build = |builder: TopicBuilder| builder.build().expect("valid");
        assert_eq!(build(Topic::domain("a")).storage(), Storage::File);
        assert_eq!(build(Topic::plain("a")).storage(), Storage::Memory);
        let plain = build(Topic::plain("a").storage(Storage::File));
        assert_eq!(
            (plain.kind(), plain.storage()),
            (Kind::Plain, Storage::File)
        );
    }

    #[test]
    fn every_rule_is_checked_by_build() {
        let domain = || Topic::domain("orders");
        for (builder, error) in [
            (Topic::domain(""), Error::NameEmpty),
            (
                Topic::domain("a b"),
                Error::NameCharacter {
                    character: ' ',
                    at: 1,
                },
            ),
            (
                Topic::plain("orders.dead"),
                Error::NameReserved {
                    suffix: super::super::Reserved::Dead,
                },
            ),
            (domain().partitions(0), Error::Partitions(0)),
            (domain().partitions(1025), Error::Partitions(1025)),
            (domain().replicas(0), Error::NoReplicas),
            (
                domain().retention(Retention::FOREVER.bytes(0)),
                Error::KeepsNothing("bytes"),
            ),
            (
                domain().retention(Retention::FOREVER.count(0)),
                Error::KeepsNothing("count"),
            ),
            (
                domain().retention(Retention::FOREVER.age(std::time::Duration::ZERO)),
                Error::KeepsNothing("age"),
            ),
        ] {
            assert_eq!(builder.build(), Err(error));
        }
    }

    #[test]
    fn a_reserved_name_says_what_it_is_reserved_for() {
        let error = Topic::domain("orders.parked")
            .build()
            .expect_err("reserved");
        assert_eq!(
            error.to_string(),
            "name ends in .parked, where the bus keeps events of keys that wait for release: \
             choose another ending"
        );
    }
}
