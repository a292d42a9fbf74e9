//! What is asked of the cluster itself: topics and settings, each call with a deadline.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::admin::{
    AdminClient, AdminOptions, ConfigResource, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tokio::time::sleep;

use super::client::{ANSWER_WITHIN, Telling};
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

/// How many partitions and copies a topic has, if it is there.
pub(super) async fn shape(
    asker: &Arc<BaseConsumer<Telling>>,
    name: &str,
) -> Result<Option<(usize, usize)>, KafkaError> {
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
        let replicas = topic
            .partitions()
            .first()
            .map(|first| first.replicas().len());
        // One that is being made has partitions that nobody leads yet.
        let is_led = topic.partitions().iter().all(|part| part.leader() >= 0);
        let partitions = topic.partitions().len();
        Ok((is_led && partitions > 0).then(|| (partitions, replicas.unwrap_or(0))))
    })
    .await
}

/// Makes a topic, and waits until it can be used.
pub(super) async fn create(
    admin: &AdminClient<Telling>,
    asker: &Arc<BaseConsumer<Telling>>,
    name: &str,
    partitions: u32,
    copies: Option<u8>,
    config: &[(&str, String)],
) -> Result<(), KafkaError> {
    let copies = copies.map_or(-1, i32::from);
    let count = i32::try_from(partitions).unwrap_or(1);
    let mut topic = NewTopic::new(name, count, TopicReplication::Fixed(copies));
    for (key, value) in config {
        topic = topic.set(key, value);
    }
    let made = admin.create_topics(&[topic], &within()).await;
    match made.and_then(done) {
        Ok(()) | Err(KafkaError::AdminOp(RDKafkaErrorCode::TopicAlreadyExists)) => {}
        Err(error) => return Err(error),
    }
    wait_for(asker, name, partitions as usize).await
}

/// Waits until a topic has so many partitions, and each of them a leader; or until it is gone.
pub(super) async fn wait_for(
    asker: &Arc<BaseConsumer<Telling>>,
    name: &str,
    partitions: usize,
) -> Result<(), KafkaError> {
    let deadline = Instant::now() + ANSWER_WITHIN;
    loop {
        let there = shape(asker, name).await?.map_or(0, |(count, _)| count);
        if (partitions == 0) == (there == 0) && there >= partitions {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(KafkaError::MetadataFetch(
                RDKafkaErrorCode::OperationTimedOut,
            ));
        }
        sleep(LOOK_AGAIN).await;
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
        ("max.message.bytes", options.max_message.to_string()),
    ];
    if let Some(copies) = options.min_in_sync {
        config.push(("min.insync.replicas", copies.to_string()));
    }
    create(admin, asker, name, 1, options.replication, &config).await
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
