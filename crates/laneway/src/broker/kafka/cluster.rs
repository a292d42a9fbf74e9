//! What is asked of the cluster itself: topics and settings, each call with a deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::admin::{
    AdminClient, AdminOptions, ConfigResource, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tokio::time::sleep;

use super::client::{ANSWER_WITHIN, Telling};
use super::ledger::is_passing;
use super::options::KafkaOptions;

/// Between two looks whether all brokers know of a change.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The settings of a broker.
pub(super) async fn broker_config(
    admin: &AdminClient<Telling>,
    id: i32,
) -> Result<ConfigResource, KafkaError> {
    let which = [ResourceSpecifier::Broker(id)];
    one(admin.describe_configs(&which, &within()).await?)
}

pub(super) fn within() -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(ANSWER_WITHIN))
        .operation_timeout(Some(ANSWER_WITHIN))
}

/// What was done to one topic.
pub(super) fn done(
    results: Vec<Result<String, (String, RDKafkaErrorCode)>>,
) -> Result<(), KafkaError> {
    for result in results {
        result.map_err(|(_, code)| KafkaError::AdminOp(code))?;
    }
    Ok(())
}

pub(super) fn one(
    results: Vec<Result<ConfigResource, RDKafkaErrorCode>>,
) -> Result<ConfigResource, KafkaError> {
    let first = results.into_iter().next();
    let first = first.ok_or(KafkaError::AdminOp(RDKafkaErrorCode::InvalidConfig))?;
    first.map_err(KafkaError::AdminOp)
}

/// Does what blocks its thread.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, KafkaError> + Send + 'static,
) -> Result<T, KafkaError> {
    let working = tokio::task::spawn_blocking(work);
    working.await.unwrap_or(Err(KafkaError::Canceled))
}

/// What the cluster says of a topic that is there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) partitions: usize,
    /// How many copies there are of each.
    pub(super) replicas: usize,
    /// Whether each partition has a leader. One that has none is there all the same: its brokers are down,
    /// or it was just made.
    pub(super) is_led: bool,
}

/// What a topic looks like, if the broker that is asked has heard of it. A topic that was just made may
/// not be known to all of them: [`Plan::is_absent`] knows for sure.
pub(super) async fn shape(
    asker: &Arc<BaseConsumer<Telling>>,
    name: &str,
) -> Result<Option<Shape>, KafkaError> {
    let (asker, name) = (asker.clone(), name.to_owned());
    blocking(move || {
        // What the client has to tell is told when it is asked for.
        while asker.poll(Duration::ZERO).is_some() {}
        let metadata = asker.fetch_metadata(Some(&name), ANSWER_WITHIN)?;
        let topic = metadata.topics().iter().find(|topic| topic.name() == name);
        let Some(topic) = topic else {
            return Ok(None);
        };
        if let Some(error) = topic.error() {
            return match error.into() {
                RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic => {
                    Ok(None)
                }
                code => Err(KafkaError::MetadataFetch(code)),
            };
        }
        let partitions = topic.partitions();
        let Some(first) = partitions.first() else {
            // It is being made.
            let code = RDKafkaErrorCode::LeaderNotAvailable;
            return Err(KafkaError::MetadataFetch(code));
        };
        Ok(Some(Shape {
            partitions: partitions.len(),
            replicas: first.replicas().len(),
            is_led: partitions.iter().all(|part| part.leader() >= 0),
        }))
    })
    .await
}

/// A topic that is to be made.
#[derive(Clone, Copy)]
pub(super) struct Plan<'a> {
    pub(super) name: &'a str,
    pub(super) partitions: u32,
    pub(super) copies: Option<u8>,
    pub(super) config: &'a [(&'a str, String)],
}

impl Plan<'_> {
    /// Asks the controller to make it, or only whether it would; answers whether it was not there.
    async fn ask(
        &self,
        admin: &AdminClient<Telling>,
        options: &AdminOptions,
    ) -> Result<bool, KafkaError> {
        let copies = self.copies.map_or(-1, i32::from);
        let count = i32::try_from(self.partitions).unwrap_or(1);
        let mut topic = NewTopic::new(self.name, count, TopicReplication::Fixed(copies));
        for (key, value) in self.config {
            topic = topic.set(key, value);
        }
        match admin.create_topics(&[topic], options).await.and_then(done) {
            Ok(()) => Ok(true),
            Err(KafkaError::AdminOp(RDKafkaErrorCode::TopicAlreadyExists)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether there is no such topic. Unlike the brokers, the controller knows.
    pub(super) async fn is_absent(&self, admin: &AdminClient<Telling>) -> Result<bool, KafkaError> {
        self.ask(admin, &within().validate_only(true)).await
    }

    /// Makes the topic unless it is there, and waits until it can be used.
    pub(super) async fn create(
        &self,
        admin: &AdminClient<Telling>,
        asker: &Arc<BaseConsumer<Telling>>,
    ) -> Result<(), KafkaError> {
        if self.ask(admin, &within()).await? {
            wait_for(asker, self.name, self.partitions as usize).await
        } else {
            // Whether it has leaders is up to its brokers, which may be down.
            wait_until(asker, self.name, |shape| shape.is_some()).await
        }
    }
}

/// Waits until a topic has so many partitions, and each of them a leader; or until it is gone.
pub(super) async fn wait_for(
    asker: &Arc<BaseConsumer<Telling>>,
    name: &str,
    partitions: usize,
) -> Result<(), KafkaError> {
    wait_until(asker, name, |shape| match shape {
        None => partitions == 0,
        Some(shape) => partitions > 0 && shape.is_led && shape.partitions >= partitions,
    })
    .await
}

/// Waits until a topic looks so.
pub(super) async fn wait_until(
    asker: &Arc<BaseConsumer<Telling>>,
    name: &str,
    is_so: impl Fn(Option<Shape>) -> bool,
) -> Result<(), KafkaError> {
    let deadline = Instant::now() + ANSWER_WITHIN;
    loop {
        match shape(asker, name).await {
            Ok(shape) if is_so(shape) => return Ok(()),
            Err(error) if !is_passing(&error) => return Err(error),
            _ if Instant::now() > deadline => {
                return Err(KafkaError::MetadataFetch(
                    RDKafkaErrorCode::OperationTimedOut,
                ));
            }
            _ => sleep(LOOK_AGAIN).await,
        }
    }
}

/// The topic with what the bus keeps about others: compacted, in small segments so that it stays small.
pub(super) async fn ensure_catalog(
    admin: &AdminClient<Telling>,
    asker: &Arc<BaseConsumer<Telling>>,
    options: &KafkaOptions,
    name: &str,
) -> Result<(), KafkaError> {
    if shape(asker, name).await?.is_some() {
        return Ok(());
    }
    let mut config = vec![
        ("cleanup.policy", "compact".to_owned()),
        ("segment.bytes", (4 << 20).to_string()),
        ("max.message.bytes", options.broker.max_message.to_string()),
    ];
    if let Some(copies) = options.broker.min_in_sync {
        config.push(("min.insync.replicas", copies.to_string()));
    }
    let plan = Plan {
        name,
        partitions: 1,
        copies: options.replicas,
        config: &config,
    };
    plan.create(admin, asker).await
}
