//! What can go wrong on the bus.

use std::time::Duration;

use crate::broker::BrokerError;
use crate::envelope;
use crate::headers::HeaderError;
use crate::lanes::{OptionsError, StartError, TopicError};
use crate::topic::{self, Kind, TopicName};

/// Why the bus could not do something. Nothing of it happened, unless it says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address is not one that the bus knows.
    #[error("{url:?} is not an address of a bus: give memory:, file:DIRECTORY or nats://HOST:PORT")]
    Address {
        /// What was given.
        url: String,
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
    #[error(transparent)]
    Delay(#[from] laneway_delay::Error),
    /// A server keeps the delayed event.
    #[error("delayed event {id} is kept by a server: ask that for it, under this id")]
    DelayedElsewhere {
        /// The id of the event there.
        id: String,
    },
    /// The bus is closed.
    #[error("the bus is closed")]
    Closed,
}

fn for_kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Domain => "publish_envelope and subscribe_envelope",
        Kind::Plain => "publish and subscribe",
    }
}
