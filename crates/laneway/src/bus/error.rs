//! What can go wrong on the bus.

use std::fmt;
use std::time::Duration;

use crate::broker::BrokerError;
use crate::envelope;
use crate::headers::HeaderError;
use crate::lanes::{OptionsError, StartError, TopicError};
use crate::topic::{self, Kind, TopicName};

/// Why the bus could not do something. Nothing of it happened, unless it says otherwise.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is not one that the bus knows.
    #[error(
        "{url:?} is not an address of a bus: give memory:, file:DIRECTORY, nats://HOST:PORT or \
         kafka://HOST:PORT"
    )]
    Address {
        /// What was given.
        url: String,
    },
    /// There is no server behind the address.
    #[error(
        "{url:?} has no server that could be examined: give nats://HOST:PORT or kafka://HOST:PORT"
    )]
    NoServer {
        /// What was given.
        url: String,
    },
    /// The library was built without what the address asks for.
    #[error(
        "this program was built without the feature `{feature}`, which `{}` addresses need: add it to the \
         features of laneway in Cargo.toml, or build with `--features {feature}`",
        beginning(.feature)
    )]
    FeatureOff {
        /// The feature.
        feature: &'static str,
    },
    /// The name or declaration of a topic cannot be meant.
    #[error(transparent)]
    Topic(#[from] topic::Error),
    /// The envelope cannot be sent.
    #[error(transparent)]
    Envelope(#[from] envelope::Error),
    /// A header cannot be sent.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// A topic is for domain events or for plain messages, not for both.
    #[error("topic {topic} is a {is} topic, not a {used_as} topic: use {} for it", for_kind(*.is))]
    WrongKind {
        /// The topic.
        topic: TopicName,
        /// What it is.
        is: Kind,
        /// What it was taken for.
        used_as: Kind,
    },
    /// Topics for dead letters and parked events belong to their topic.
    #[error("{0} belongs to {base}: use dead_letters or parked of that topic", base = .0.base())]
    Reserved(TopicName),
    /// A setting was made that plain topics do not have.
    #[error(
        "{setting} is a setting for domain topics, and topic {topic} is a plain topic, whose messages are \
         tried once, in any order: leave {setting} out, or declare a domain topic"
    )]
    OnlyForEvents {
        /// The topic.
        topic: TopicName,
        /// The setting.
        setting: &'static str,
    },
    /// A group cannot be called that.
    #[error(
        "group {group:?} cannot be a name: give 1 to 255 visible ASCII characters without @, not beginning with laneway-"
    )]
    Group {
        /// What was given.
        group: String,
    },
    /// A group handles a topic in one place.
    #[error(
        "topic {topic} already has a subscription of group {group}: close that one first, or use another group"
    )]
    AlreadySubscribed {
        /// The topic.
        topic: TopicName,
        /// The group.
        group: String,
    },
    /// It took longer than it may. A publish may still happen.
    #[error("{doing} took longer than {limit:?}")]
    TimedOut {
        /// What was being done.
        doing: &'static str,
        /// How long it may take.
        limit: Duration,
    },
    /// The rate limit would let them through later than a call may take. They were not published.
    #[error(
        "the rate limit lets {count} through in more than {limit:?}: publish fewer at once, or allow a \
         higher rate or a later deadline"
    )]
    RateLimited {
        /// How many were to be published.
        count: u32,
        /// How long a call may take.
        limit: Duration,
    },
    /// The options for the workers cannot be meant.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The engine could not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The engine would not take the topic.
    #[error(transparent)]
    Engine(#[from] TopicError),
    /// The broker could not do it.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// A delayed event could not be kept, moved or taken back.
    #[cfg(feature = "delay")]
    #[error(transparent)]
    Delay(#[from] laneway_delay::Error),
    /// A server keeps the delayed event.
    #[cfg(feature = "delay")]
    #[error("delayed event {id} is kept by a server: ask that for it, under this id")]
    DelayedElsewhere {
        /// The id of the event there.
        id: String,
    },
    /// There is nothing to release.
    #[error(
        "group {group} has no parked event of key {key:?} in topic {topic}: see keys() for those that are \
         parked"
    )]
    NotParked {
        /// The topic.
        topic: TopicName,
        /// The group.
        group: String,
        /// The key.
        key: String,
    },
    /// A letter was put aside by reference, and what it refers to is gone.
    #[error("letter {id} cannot be replayed: {detail}. Drop it")]
    LetterMissing {
        /// The letter.
        id: u64,
        /// What became of its record.
        detail: String,
    },
    /// The bus is closed.
    #[error("the bus is closed")]
    Closed,
}

/// The same words as by `Display`: a `main` that returns an error shows it this way.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn for_kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Domain => "publish_envelope and subscribe_envelope",
        Kind::Plain => "publish and subscribe",
    }
}

/// What addresses begin with that need a feature.
fn beginning(feature: &str) -> String {
    let slashes = if feature == "file" { "" } else { "//" };
    format!("{feature}:{slashes}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_main_returns_reads_like_a_sentence() {
        let error: Box<dyn std::error::Error> = Box::new(Error::Broker(BrokerError::InUse {
            directory: "data".into(),
        }));
        let shown = format!("{error:?}");
        assert!(
            shown.starts_with("data is in use by another process"),
            "{shown}"
        );
    }

    #[test]
    fn a_missing_feature_is_named_with_the_addresses_that_need_it() {
        for (feature, addresses) in [("file", "`file:`"), ("nats", "`nats://`")] {
            let shown = Error::FeatureOff { feature }.to_string();
            assert!(shown.contains(addresses), "{shown}");
            assert!(shown.contains(&format!("--features {feature}`")), "{shown}");
        }
    }

    #[cfg(not(all(feature = "kafka", feature = "nats")))]
    #[tokio::test]
    async fn an_address_whose_feature_is_missing_names_the_feature() {
        let missing = [
            ("kafka", cfg!(feature = "kafka")),
            ("nats", cfg!(feature = "nats")),
        ];
        for (expected, _) in missing.into_iter().filter(|(_, is_there)| !is_there) {
            let opened = crate::Bus::open(&format!("{expected}://localhost:1")).await;
            match opened.err() {
                Some(Error::FeatureOff { feature }) => assert_eq!(feature, expected),
                other => panic!("{other:?}"),
            }
        }
    }
}
