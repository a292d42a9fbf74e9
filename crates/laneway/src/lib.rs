//! An event bus that handles every key strictly in order, and all keys in parallel.
//!
//! Domain events of one aggregate are handled one at a time and in the order in which they were published, also under
//! failures, retries, restarts and rebalances; those of different aggregates in parallel. What was published is handled
//! at least once. Plain messages go to any free worker, at most once. The same program runs on an embedded log
//! (`memory:`, `file:DIR`), on NATS `JetStream` and on Apache Kafka.
//!
//! # Example
//!
//! ```
//! use laneway::{Bus, Envelope};
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let bus = Bus::open("memory:").await?;
//!
//! // Events of one order run one after the other; orders run in parallel.
//! let (done, mut handled) = tokio::sync::mpsc::unbounded_channel();
//! bus.subscribe_envelope("orders", move |event| {
//!     let done = done.clone();
//!     async move {
//!         // An error is retried in place; later events of this order wait, all others go on.
//!         done.send(format!("{} {}", event.aggregate_id(), event.event_type()))?;
//!         Ok(())
//!     }
//! })
//! .await?;
//!
//! for step in ["OrderPlaced", "OrderPaid"] {
//!     let event = Envelope::builder("order-1", step).json(&serde_json::json!({ "total": 42 }))?;
//!     bus.publish_envelope("orders", &event).await?; // on `file:` it is on disk when this resolves
//! }
//! assert_eq!(handled.recv().await.as_deref(), Some("order-1 OrderPlaced"));
//! assert_eq!(handled.recv().await.as_deref(), Some("order-1 OrderPaid"));
//!
//! bus.close(Duration::from_secs(5)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # The way of an event
//!
//! 1. [`Bus::publish_envelope`] chooses the partition by the aggregate id and appends the event. It resolves when the broker
//!    has it durably.
//! 2. One reader per partition that is assigned to this process hands events to [`lanes`]: one FIFO per key, driven by a
//!    shared pool of supervised workers. A full lane is backpressure for its key alone.
//! 3. A handler that fails is called again after a wait ([`retry::RetryPolicy`]). When its attempts are used up, the event
//!    becomes a dead letter ([`DeadLetters`]), or its key is parked ([`Parked`]), or the subscription stops ([`Exhausted`]).
//! 4. What is handled or durably put aside is *settled*; the position of the group ([`settle`]) is committed to the broker. The
//!    next owner of the partition goes on from there.
//!
//! # What this is not
//!
//! - No exactly once. A handler may see an event again after a crash: make it idempotent by the event id, or fence its
//!   writes by [`Context::epoch`].
//! - No order across keys, and none for plain messages.
//! - No schema registry, no transactions over several topics, no stream processing.
//!
//! # Limits
//!
//! | | |
//! |---|---|
//! | aggregate id | 1 to 256 bytes of `A-Za-z0-9:_-./` |
//! | partition read ahead of its lowest unsettled event | 100,000 offsets |
//! | events of one key in memory | 1,000 (`lane_bound`); the rest waits in the broker |
//! | size of a record | what the broker takes; one that cannot be put aside whole is put aside by reference |
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `bus` | [`Bus`], subscriptions, dead letters, parked keys |
//! | `broker` | where records live: `memory:`, `file:`, NATS, Kafka |
//! | [`lanes`] | the engine that keeps every key in order; usable without a bus |
//! | [`envelope`] | the wire format of domain events; `CloudEvents` both ways |
//! | [`topic`] | names, kinds, partitions, retention, and what to do when a topic is another one than declared |
//! | [`settle`] | which deliveries are done: pure |
//! | [`retry`] | how often a failure is tried again, and after how long: pure |
//! | `log` | partitions as logs of raw records, for programs that keep their decisions in one: a feature, see below |
//! | [`record`], [`headers`], [`trace`] | what a broker carries, and the W3C trace context in it |
//! | `doctor`, `testing` | features, see below |
//! | `supervise` | tasks in the background are started again when they panic |
//! | `time`, `planted` | the wall clock; faults of the past, for fault runs |
//!
//! # Features
//!
//! `memory:` is always there. With default features neither librdkafka nor a NATS client is compiled; an address whose
//! feature is missing is refused by [`Error::FeatureOff`], which names it.
//!
//! | feature | what it adds |
//! |---|---|
//! | `file` (default) | `file:` addresses: topics on disk |
//! | `nats` | `nats://` addresses: NATS `JetStream` |
//! | `kafka` | `kafka://` addresses: Apache Kafka; compiles librdkafka |
//! | `kafka-tls` | TLS and SCRAM for them; compiles OpenSSL |
//! | `delay` | `Bus::publish_after` and `Bus::publish_at` |
//! | `log` | the module `log`: `Bus::log`, partitions as logs of raw records |
//! | `metrics` | `Bus::register_metrics`: figures for Prometheus |
//! | `testing` | the module `testing`, for tests of handlers |
//! | `doctor` | the module `doctor`: looks at a server and says what to change |

mod broker;
mod bus;
#[cfg(feature = "doctor")]
pub mod doctor;
pub mod envelope;
pub mod headers;
#[cfg(feature = "log")]
pub mod log;
mod planted;
pub mod record;
pub mod settle;
mod supervise;
#[cfg(feature = "testing")]
pub mod testing;
mod time;
pub mod topic;
pub mod trace;

#[cfg(feature = "metrics")]
use laneway_lanes::exposition;
use laneway_lanes::fnv;

#[cfg(feature = "kafka")]
pub use broker::kafka::{KafkaOptions, KafkaProtocol, KafkaSasl};
#[cfg(feature = "nats")]
pub use broker::nats::{NatsConnection, NatsOptions};
#[cfg(any(feature = "kafka", feature = "nats"))]
pub use broker::options::{BrokerOptions, BrokerOptionsError, Tls};
pub use broker::{BrokerError, Lag, Start};
pub use bus::{
    Bus, BusBuilder, Context, DeadLetters, Error, Event, EventBatchHandler, EventHandler,
    Exhausted, Health, Letter, Message, MessageHandler, Outgoing, Parked, RateLimit, Receipt,
    State, Subscription, SubscriptionBuilder, SubscriptionHealth, SubscriptionStats,
};
#[cfg(feature = "delay")]
pub use bus::{BusSink, DELAY_TOPIC, Delayed};
pub use envelope::Envelope;
#[doc(inline)]
pub use laneway_lanes as lanes;
pub use laneway_lanes::Failure;
pub use laneway_lanes::retry;

/// The times of envelopes.
pub use jiff::Timestamp;
/// Figures are registered with this version of it: see `Bus::register_metrics`.
#[cfg(feature = "metrics")]
pub use prometheus_client;

/// Ways into what is private, for the fuzz targets.
#[cfg(all(fuzzing, feature = "file"))]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::broker::embedded::file::probe::probe as file_store;
}

/// Ways into what is private, for the fault runs.
#[doc(hidden)]
pub mod breaking {
    #[cfg(feature = "file")]
    pub use crate::broker::embedded::FileLimits;
    pub use crate::bus::{BusLimits, contents, position, write_positions};
}

/// The programs in the guides compile, and those with a `main` run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/bus.md")]
#[doc = include_str!("../../../docs/delay.md")]
#[doc = include_str!("../../../docs/lanes.md")]
#[doc = include_str!("../../../docs/migrating-from-jxt-core.md")]
#[cfg_attr(feature = "kafka", doc = include_str!("../../../docs/kafka.md"))]
#[cfg_attr(feature = "nats", doc = include_str!("../../../docs/nats.md"))]
struct Guides;
