//! As a program does it that has no bus: the client of Kafka, and nothing around it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use bytes::Bytes;
use laneway::Envelope;
use laneway::topic::{Partitions, partition_of};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{Header, Message, OwnedHeaders};
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord};

use super::place::{servers, unique};
use crate::bus::load::Events;
use crate::contenders::parallel_consumer::{self, Task};
use crate::frame::Sample;
use crate::served::UNANSWERED;
use crate::workload::Work;

const PARTITIONS: u32 = 8;

/// A commit goes out after so many messages.
const COMMIT_EVERY: usize = 1000;

const WITHIN: Duration = Duration::from_mins(2);

fn client() -> Result<ClientConfig> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", servers()?);
    Ok(config)
}

fn producer() -> Result<FutureProducer> {
    let producer = client()?
        .set("enable.idempotence", "true")
        .set("compression.type", "lz4")
        .set("linger.ms", "1")
        .create()?;
    Ok(producer)
}

/// A topic that is there while it is measured.
struct Topic {
    name: String,
    admin: AdminClient<DefaultClientContext>,
}

impl Topic {
    async fn new() -> Result<Self> {
        let admin: AdminClient<DefaultClientContext> = client()?.create()?;
        let name = unique("bare");
        let partitions = i32::try_from(PARTITIONS)?;
        let topic = NewTopic::new(&name, partitions, TopicReplication::Fixed(1));
        for made in admin.create_topics(&[topic], &AdminOptions::new()).await? {
            made.map_err(|(_, code)| anyhow!("no topic: {code}"))?;
        }
        Ok(Self { name, admin })
    }

    async fn delete(self) -> Result<()> {
        let names = [self.name.as_str()];
        self.admin
            .delete_topics(&names, &AdminOptions::new())
            .await?;
        Ok(())
    }
}

/// Polls, decodes, and commits once in a while.
pub(super) async fn consume(keys: u32, per_key: u32) -> Result<Sample> {
    let topic = Topic::new().await?;
    publish_all(&producer()?, &topic.name, keys, per_key).await?;
    let count = (keys * per_key) as usize;
    let name = topic.name.clone();
    let config = client()?;
    let polling = tokio::task::spawn_blocking(move || poll(config, &name, count));
    let elapsed = polling.await??;
    topic.delete().await?;
    Ok(Sample::rate(count, elapsed))
}

/// What Confluent's Parallel Consumer makes of the same messages, in order per key.
pub(super) async fn parallel_consumer(keys: u32, per_key: u32, work: Work) -> Result<Sample> {
    let topic = Topic::new().await?;
    publish_all(&producer()?, &topic.name, keys, per_key).await?;
    let task = Task {
        servers: servers()?,
        topic: topic.name.clone(),
        group: topic.name.clone(),
        events: (keys * per_key) as usize,
        work,
    };
    let sample = parallel_consumer::handle(task).await?;
    topic.delete().await?;
    Ok(sample)
}

fn poll(mut config: ClientConfig, topic: &str, count: usize) -> Result<Duration> {
    let started = Instant::now();
    let consumer: BaseConsumer = config
        .set("group.id", topic)
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .set("partition.assignment.strategy", "cooperative-sticky")
        .create()?;
    consumer.subscribe(&[topic])?;
    let mut seen = 0;
    while seen < count {
        if started.elapsed() > WITHIN {
            bail!("{seen} of {count} came");
        }
        let Some(message) = consumer.poll(Duration::from_millis(100)) else {
            continue;
        };
        let message = message?;
        let payload = message.payload().context("a message without a body")?;
        Envelope::decode(Bytes::copy_from_slice(payload))?;
        seen += 1;
        if seen % COMMIT_EVERY == 0 {
            consumer.commit_consumer_state(CommitMode::Async)?;
        }
    }
    let elapsed = started.elapsed();
    consumer.commit_consumer_state(CommitMode::Sync)?;
    Ok(elapsed)
}

/// Publishes one after the other, and waits for the report of an earlier one.
pub(super) async fn publish(keys: u32, per_key: u32) -> Result<Sample> {
    let topic = Topic::new().await?;
    let producer = producer()?;

    let started = Instant::now();
    publish_all(&producer, &topic.name, keys, per_key).await?;
    let elapsed = started.elapsed();

    topic.delete().await?;
    Ok(Sample::rate((keys * per_key) as usize, elapsed))
}

async fn publish_all(
    producer: &FutureProducer,
    topic: &str,
    keys: u32,
    per_key: u32,
) -> Result<()> {
    let events = Events::new()?;
    let partitions = Partitions::new(PARTITIONS)?;
    let mut unanswered: VecDeque<DeliveryFuture> = VecDeque::with_capacity(UNANSWERED);
    for sequence in 0..per_key {
        for key in 0..keys {
            let event = events.event(key, sequence)?;
            if unanswered.len() == UNANSWERED
                && let Some(answer) = unanswered.pop_front()
            {
                answered(answer).await?;
            }
            unanswered.push_back(send(producer, topic, &event, partitions)?);
        }
    }
    for answer in unanswered {
        answered(answer).await?;
    }
    Ok(())
}

async fn answered(answer: DeliveryFuture) -> Result<()> {
    answer.await?.map_err(|(error, _)| error)?;
    Ok(())
}

/// All that the bus sends, too.
fn send(
    producer: &FutureProducer,
    topic: &str,
    event: &Envelope,
    partitions: Partitions,
) -> Result<DeliveryFuture> {
    let key = event.aggregate_id().as_str();
    let version = event.event_version().to_string();
    let mut headers = OwnedHeaders::new_with_capacity(4);
    for (key, value) in [
        ("X-Event-ID", event.event_id()),
        ("X-Aggregate-ID", key),
        ("X-Event-Type", event.event_type()),
        ("X-Event-Version", version.as_str()),
    ] {
        headers = headers.insert(Header {
            key,
            value: Some(value),
        });
    }
    let payload = event.encode();
    let record = FutureRecord::to(topic)
        .key(key)
        .payload(payload.as_ref())
        .partition(i32::try_from(partition_of(key, partitions))?)
        .headers(headers);
    producer
        .send_result(record)
        .map_err(|(error, _)| error.into())
}
