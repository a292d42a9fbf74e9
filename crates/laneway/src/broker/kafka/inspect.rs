//! What can be seen of a cluster, for the doctor.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::admin::AdminClient;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::metadata::MetadataBroker;

use super::client::{self, ANSWER_WITHIN, Telling};
use super::cluster::{blocking, broker_config};
use super::names::Names;
use super::options::KafkaOptions;
use super::statistics::Gauges;
use crate::broker::BrokerError;
use crate::broker::log_limiter::LogLimiter;

/// What was seen of a cluster.
pub(crate) struct Seen {
    pub(crate) brokers: usize,
    /// The settings of one of them, by their names.
    pub(crate) settings: HashMap<String, String>,
    /// How many copies new topics would have, if it was said.
    pub(crate) replicas: Option<u8>,
    /// How many of them must have a record, if it was said.
    pub(crate) min_in_sync: Option<u8>,
    /// How long a member may be silent, if we decide.
    pub(crate) session: Duration,
    pub(crate) topics: Vec<SeenTopic>,
    pub(crate) round_trip: Duration,
}

/// A topic in our namespace.
pub(crate) struct SeenTopic {
    pub(crate) name: String,
    /// The fewest that a partition has.
    pub(crate) replicas: usize,
    /// Partitions that have fewer copies in sync than they should.
    pub(crate) out_of_sync: usize,
}

/// Looks at the cluster that options lead to. Makes nothing there.
pub(crate) async fn inspect(options: KafkaOptions) -> Result<Seen, BrokerError> {
    options.check()?;
    let at = options.server_list();
    let failed = |doing| {
        let at = at.clone();
        move |error: KafkaError| BrokerError::Server {
            server: at,
            doing,
            detail: error.to_string(),
        }
    };
    let telling = Telling {
        gauges: Gauges::default(),
        who: "doctor".into(),
        trouble: Arc::default(),
        limiter: LogLimiter::default(),
    };
    let asker: BaseConsumer<Telling> = client::asker(&options)
        .create_with_context(telling.clone())
        .map_err(failed("connecting"))?;
    let admin: AdminClient<Telling> = client::common(&options)
        .create_with_context(telling)
        .map_err(failed("connecting"))?;
    let asker = Arc::new(asker);
    let prefix = Names::new(options.namespace.as_deref()).prefix().to_owned();
    let asking = blocking(move || {
        // The first one connects.
        asker.fetch_metadata(None, ANSWER_WITHIN)?;
        let began = Instant::now();
        let metadata = asker.fetch_metadata(None, ANSWER_WITHIN)?;
        let round_trip = began.elapsed();
        let of_ours = metadata
            .topics()
            .iter()
            .filter(|topic| topic.name().starts_with(&prefix) && !topic.name().starts_with("__"));
        let topics = of_ours.map(|topic| {
            let partitions = topic.partitions();
            SeenTopic {
                name: topic.name().to_owned(),
                replicas: partitions
                    .iter()
                    .map(|part| part.replicas().len())
                    .min()
                    .unwrap_or(0),
                out_of_sync: partitions
                    .iter()
                    .filter(|part| part.isr().len() < part.replicas().len())
                    .count(),
            }
        });
        let topics: Vec<_> = topics.collect();
        let brokers: Vec<i32> = metadata.brokers().iter().map(MetadataBroker::id).collect();
        Ok((brokers, topics, round_trip))
    });
    let (brokers, topics, round_trip) = asking.await.map_err(failed("asking for metadata"))?;
    let config = match brokers.first() {
        Some(id) => {
            let config = broker_config(&admin, *id).await;
            config.map_err(failed("asking for settings"))?.entries
        }
        None => Vec::new(),
    };
    let settings = config
        .into_iter()
        .filter_map(|entry| Some((entry.name, entry.value?)));
    Ok(Seen {
        brokers: brokers.len(),
        settings: settings.collect(),
        replicas: options.replicas,
        min_in_sync: options.broker.min_in_sync,
        session: options.session_or_default(),
        topics,
        round_trip,
    })
}
