//! How a bus is set up.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use super::call_timeout::CallTimeout;
#[cfg(feature = "delay")]
use super::delayed::Backend;
use super::error::Error;
use super::limits::BusLimits;
use super::progress::Progress;
use super::rate::{Limiter, RateLimit};
use super::{Bus, Shared};
use crate::broker::Broker;
#[cfg(any(feature = "kafka", feature = "nats"))]
use crate::broker::BrokerError;
use crate::broker::embedded::Embedded;
#[cfg(feature = "file")]
use crate::broker::embedded::{FileLimits, FileStore};
#[cfg(feature = "kafka")]
use crate::broker::kafka::{self, KafkaOptions};
#[cfg(feature = "nats")]
use crate::broker::nats::{self, NatsOptions};
use crate::broker::subscriptions::Subscriptions;
use crate::lanes::{Engine, Options};
use crate::topic::Strategy;

/// Sets up a [`Bus`]. See [`Bus::builder`].
///
/// ```
/// use laneway::Bus;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let bus = Bus::builder()
///     .deadline(Duration::from_secs(5)) // of every call to the broker
///     .open("memory:")
///     .await?;
/// bus.close(Duration::from_secs(1)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "end with open"]
pub struct BusBuilder {
    lanes: Options,
    strategy: Strategy,
    deadline: Duration,
    rate: Option<RateLimit>,
    #[cfg(feature = "file")]
    file_limits: FileLimits,
    limits: BusLimits,
}

impl Default for BusBuilder {
    fn default() -> Self {
        Self {
            lanes: Options::default(),
            strategy: Strategy::default(),
            deadline: Duration::from_secs(30),
            rate: None,
            #[cfg(feature = "file")]
            file_limits: FileLimits::default(),
            limits: BusLimits::default(),
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

    /// The sizes at which something happens on disk. For fault runs, which make them tiny.
    #[cfg(feature = "file")]
    #[doc(hidden)]
    pub fn file_limits(mut self, limits: FileLimits) -> Self {
        self.file_limits = limits;
        self
    }

    /// The sizes at which something happens in the bus. For tests, which make them tiny.
    #[doc(hidden)]
    pub fn bus_limits(mut self, limits: BusLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Opens the bus.
    ///
    /// # Errors
    /// When the address is unknown, the options make no sense, or the broker fails.
    pub async fn open(self, url: &str) -> Result<Bus, Error> {
        let broker: Arc<dyn Broker> = match url.split_once(':') {
            Some(("memory", "")) => Arc::new(Embedded::in_memory().await?),
            #[cfg(feature = "file")]
            Some(("file", directory)) if !directory.is_empty() => {
                return self.open_directory(directory).await;
            }
            #[cfg(not(feature = "file"))]
            Some(("file", _)) => return Err(Error::FeatureOff { feature: "file" }),
            #[cfg(feature = "kafka")]
            Some(("kafka", rest)) if rest.starts_with("//") => {
                let options = KafkaOptions::parse(url).map_err(BrokerError::from)?;
                return self.open_kafka(options).await;
            }
            #[cfg(not(feature = "kafka"))]
            Some(("kafka", _)) => return Err(Error::FeatureOff { feature: "kafka" }),
            #[cfg(not(feature = "nats"))]
            Some(("nats", _)) => return Err(Error::FeatureOff { feature: "nats" }),
            #[cfg(feature = "nats")]
            Some(("nats", rest)) if rest.starts_with("//") => {
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

    #[cfg(feature = "file")]
    async fn open_directory(self, directory: &str) -> Result<Bus, Error> {
        let store = FileStore::open(directory, self.file_limits).await?;
        let every = self.file_limits.retain_every;
        let broker = Arc::new(Embedded::over_every(Arc::new(store), every).await?);
        #[cfg(feature = "delay")]
        {
            let bus = self.over_with(broker, Backend::in_directory(directory))?;
            bus.shared.delays.resume(&bus).await?;
            Ok(bus)
        }
        #[cfg(not(feature = "delay"))]
        {
            if std::path::Path::new(directory).join("delayed").exists() {
                tracing::warn!(
                    directory,
                    "delayed events in this directory are not published: this program was built without the \
                     feature `delay` of laneway"
                );
            }
            self.over(broker)
        }
    }

    /// Opens the bus on Kafka, set up by more than an address can say.
    ///
    /// # Errors
    /// When the options make no sense, no broker answers, or it does not do what it is asked.
    #[cfg(feature = "kafka")]
    pub async fn open_kafka(self, options: KafkaOptions) -> Result<Bus, Error> {
        let opening = Box::pin(kafka::open(options, self.deadline));
        let broker = CallTimeout(self.deadline)
            .with("connecting", opening)
            .await?;
        self.over(Arc::new(broker))
    }

    /// Opens the bus on NATS, set up by more than an address can say.
    ///
    /// # Errors
    /// When the options make no sense, no server answers, or it does not do what it is asked.
    #[cfg(feature = "nats")]
    pub async fn open_nats(self, options: NatsOptions) -> Result<Bus, Error> {
        // In a box: connecting is a large future, and every open would be as large.
        let opening = Box::pin(nats::open(options));
        let broker = CallTimeout(self.deadline)
            .with("connecting", opening)
            .await?;
        self.over(Arc::new(broker))
    }

    pub(super) fn over(self, broker: Arc<dyn Broker>) -> Result<Bus, Error> {
        #[cfg(feature = "delay")]
        let delays = if broker.is_shared() {
            Backend::elsewhere()
        } else {
            Backend::in_memory()
        };
        self.over_with(
            broker,
            #[cfg(feature = "delay")]
            delays,
        )
    }

    fn over_with(
        self,
        broker: Arc<dyn Broker>,
        #[cfg(feature = "delay")] delays: Backend,
    ) -> Result<Bus, Error> {
        let lane_options = self.lanes.topic_options();
        let engine = Engine::start(self.lanes)?;
        Ok(Bus {
            shared: Arc::new(Shared {
                broker,
                engine,
                lane_options,
                strategy: self.strategy,
                call_timeout: CallTimeout(self.deadline),
                limits: self.limits,
                limiter: self.rate.map(Limiter::new),
                topics: RwLock::default(),
                letters: Mutex::default(),
                guards: Subscriptions::default(),
                subscriptions: Mutex::default(),
                progress: Progress::default(),
                #[cfg(feature = "delay")]
                delays,
                #[cfg(feature = "metrics")]
                runtime: tokio::runtime::Handle::current(),
                closed: AtomicBool::new(false),
                drained: AtomicBool::new(false),
            }),
        })
    }
}
