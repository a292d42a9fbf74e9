//! An event bus that handles every key strictly in order, and all keys in parallel.

mod broker;
mod bus;
pub mod doctor;
pub mod envelope;
mod exposition;
mod fnv;
pub mod headers;
pub mod lanes;
pub mod record;
pub mod retry;
pub mod settle;
pub mod testing;
pub mod topic;
pub mod trace;

#[cfg(feature = "kafka")]
pub use broker::kafka::{KafkaOptions, KafkaOptionsError, KafkaProtocol, KafkaSasl};
#[cfg(feature = "nats")]
pub use broker::nats::{NatsConnection, NatsOptions, NatsOptionsError};
pub use broker::{BrokerError, Lag, Start};
pub use bus::{
    Bus, BusBuilder, BusSink, Context, DELAY_TOPIC, DeadLetters, Delayed, Error, Event,
    EventBatchHandler, EventHandler, Exhausted, Health, Letter, Message, MessageHandler, Outgoing,
    Parked, RateLimit, Receipt, State, Subscription, SubscriptionBuilder, SubscriptionFigures,
    SubscriptionHealth,
};
pub use envelope::Envelope;
pub use lanes::Failure;

/// Ways into what is private, for the fuzz targets.
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::broker::embedded::file::probe::probe as file_store;
}

/// The programs in the guides compile, and those with a `main` run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/bus.md")]
#[doc = include_str!("../../../docs/delay.md")]
#[doc = include_str!("../../../docs/lanes.md")]
#[doc = include_str!("../../../docs/migrating-from-jxt-core.md")]
#[cfg_attr(feature = "kafka", doc = include_str!("../../../docs/kafka.md"))]
#[cfg_attr(feature = "nats", doc = include_str!("../../../docs/nats.md"))]
struct Guides;
