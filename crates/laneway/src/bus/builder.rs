//! How a bus is set up.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use tokio::runtime::Handle;

use super::delayed::Home;
use super::error::Error;
use super::patience::Patience;
use super::progress::Progress;
use super::rate::{Limiter, RateLimit};
use super::{Bus, Shared};
use crate::broker::Broker;
#[cfg(any(feature = "kafka", feature = "nats"))]
use crate::broker::BrokerError;
use crate::broker::embedded::{Embedded, FileStore};
#[cfg(feature = "kafka")]
use crate::broker::kafka::{Kafka, KafkaOptions};
#[cfg(feature = "nats")]
use crate::broker::nats::{Nats, NatsOptions};
use crate::lanes::{Engine, Options, StartError};
use crate::topic::Strategy;

/// Sets up a [`Bus`]. See [`Bus::builder`].
#[derive(Clone, Debug)]
#[must_use = "end with open"]
pub struct BusBuilder {
    lanes: Options,
    strategy: Strategy,
    deadline: Duration,
    rate: Option<RateLimit>,
}

impl Default for BusBuilder {
    fn default() -> Self {
        Self {
            lanes: Options::default(),
            strategy: Strategy::default(),
            deadline: Duration::from_secs(30),
            rate: None,
        }
    }
}

impl BusBuilder {
    /// The workers, and how lanes are kept.
    pub fn lanes(mut self, lanes: Options) -> Self {
        self.lanes = lanes;
        self
    }

    /// What happens to topics that are declared or first used.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// How long a call to the broker may take (30 s unless changed).
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How fast may be published.
    pub fn publish_rate(mut self, rate: RateLimit) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Opens the bus.
    ///
    /// # Errors
    /// When the address is unknown, the options make no sense, or the broker fails.
    pub async fn open(self, url: &str) -> Result<Bus, Error> {
        let broker: Arc<dyn Broker> = match url.split_once(':') {
            Some(("memory", "")) => Arc::new(Embedded::in_memory().await?),
            Some(("file", directory)) if !directory.is_empty() => {
                let store = FileStore::open(directory).await?;
                let broker = Arc::new(Embedded::over(Arc::new(store)).await?);
                let bus = self.over_with(broker, Home::in_directory(directory))?;
                bus.shared.delays.resume(&bus).await?;
                return Ok(bus);
            }
            #[cfg(feature = "kafka")]
            Some(("kafka", _)) => {
                let options = KafkaOptions::parse(url).map_err(BrokerError::from)?;
                return self.open_kafka(options).await;
            }
            #[cfg(feature = "nats")]
            Some(("nats", _)) => {
                let options = NatsOptions::parse(url).map_err(BrokerError::from)?;
                return self.open_nats(options).await;
            }
            _ => {
                return Err(Error::Address {
                    url: url.to_owned(),
                });
            }
        };
        self.over(broker)
    }

    /// Opens the bus on Kafka, set up by more than an address can say.
    ///
    /// # Errors
    /// When the options make no sense, no broker answers, or it does not do what it is asked.
    #[cfg(feature = "kafka")]
    pub async fn open_kafka(self, options: KafkaOptions) -> Result<Bus, Error> {
        let opening = Box::pin(Kafka::open(options));
        let broker = Patience(self.deadline).with("connecting", opening).await?;
        self.over(Arc::new(broker))
    }

    /// Opens the bus on NATS, set up by more than an address can say.
    ///
    /// # Errors
    /// When the options make no sense, no server answers, or it does not do what it is asked.
    #[cfg(feature = "nats")]
    pub async fn open_nats(self, options: NatsOptions) -> Result<Bus, Error> {
        // In a box: connecting is a large future, and every open would be as large.
        let opening = Box::pin(Nats::open(options));
        let broker = Patience(self.deadline).with("connecting", opening).await?;
        self.over(Arc::new(broker))
    }

    pub(super) fn over(self, broker: Arc<dyn Broker>) -> Result<Bus, Error> {
        let delays = if broker.is_shared() {
            Home::elsewhere()
        } else {
            Home::in_memory()
        };
        self.over_with(broker, delays)
    }

    fn over_with(self, broker: Arc<dyn Broker>, delays: Home) -> Result<Bus, Error> {
        let lane_options = self.lanes.topic_options();
        let runtime = Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        let engine = Engine::start(self.lanes)?;
        Ok(Bus {
            shared: Arc::new(Shared {
                broker,
                engine,
                lane_options,
                strategy: self.strategy,
                patience: Patience(self.deadline),
                limiter: self.rate.map(Limiter::new),
                topics: RwLock::default(),
                letters: Mutex::default(),
                places: Mutex::default(),
                subscriptions: Mutex::default(),
                progress: Progress::default(),
                delays,
                runtime,
                closed: AtomicBool::new(false),
            }),
        })
    }
}
