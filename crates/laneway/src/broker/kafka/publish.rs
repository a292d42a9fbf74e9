//! Publishing: resolved when the brokers that have to have it do, never before.

use std::time::{Duration, Instant};

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{DeliveryFuture, FutureRecord, Producer};
use tokio::time::sleep;

use super::client::ANSWER_WITHIN;
use super::cluster::blocking;
use super::message;
use super::server::Kafka;
use super::topics::TopicHandle;
use crate::broker::BrokerError;
use crate::broker::remote::Publish;
use crate::record::Record;
use crate::topic::TopicName;

/// Between two tries to put a record into a queue that is full.
const QUEUE_MAY_EMPTY: Duration = Duration::from_millis(5);

/// So often a producer looks at a topic again that it does not know.
const TRIES: u32 = 10;

impl Publish for Kafka {
    /// Publishes records to one partition; answers their offsets. The producer keeps their order, also
    /// when it has to send some again.
    async fn publish(
        &self,
        topic: &TopicName,
        partition: u32,
        records: Vec<Record>,
    ) -> Result<Vec<u64>, BrokerError> {
        let handle = self.handle(topic).await?;
        if partition >= handle.topic.partitions().get() {
            return Err(BrokerError::Reshaped {
                topic: topic.clone(),
                now: handle.topic.partitions().get(),
            });
        }
        let until = Instant::now() + self.publish_within.room;
        let mut sent = Vec::with_capacity(records.len());
        for record in &records {
            sent.push(self.send(&handle, partition, record, until).await?);
        }
        let mut offsets = Vec::with_capacity(sent.len());
        for (delivery, record) in sent.into_iter().zip(&records) {
            match delivery.await {
                Ok(Ok(delivery)) => offsets.push(u64::try_from(delivery.offset).unwrap_or(0)),
                Ok(Err((error, _))) => {
                    if is_unknown(&error) {
                        // It is gone, or another one: this tells which.
                        self.fresh_handle(topic).await?;
                    }
                    return Err(self.refused(record, &error));
                }
                Err(_) => return Err(BrokerError::Closed),
            }
        }
        Ok(offsets)
    }

    fn largest(&self) -> Option<usize> {
        Some(self.options.broker.max_message as usize)
    }
}

impl Kafka {
    /// Puts a record into the queue of the producer; waits for room.
    async fn send(
        &self,
        handle: &TopicHandle,
        partition: u32,
        record: &Record,
        until: Instant,
    ) -> Result<DeliveryFuture, BrokerError> {
        let mut message: FutureRecord<'_, str, [u8]> = FutureRecord::to(&handle.name)
            .payload(record.payload.as_ref())
            .partition(i32::try_from(partition).unwrap_or_default());
        message.key = record.key.as_deref();
        message.headers = message::headers_of(record);
        if record.timestamp_ms > 0 {
            message.timestamp = Some(record.timestamp_ms);
        }
        let mut tries = 0;
        loop {
            match self.producer.send_result(message) {
                Ok(delivery) => return Ok(delivery),
                // Later it would be sent after its publisher was told of an error.
                Err((error, _)) if Instant::now() > until => {
                    return Err(self.refused(record, &error));
                }
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), again)) => {
                    message = again;
                    sleep(QUEUE_MAY_EMPTY).await;
                    self.check_open()?;
                }
                // The topic has grown, and the producer does not know yet.
                Err((error, again)) if is_unknown(&error) && tries < TRIES => {
                    tries += 1;
                    message = again;
                    self.learn(&handle.name).await;
                }
                Err((error, _)) => return Err(self.refused(record, &error)),
            }
        }
    }

    /// Has the producer look at a topic again.
    async fn learn(&self, name: &str) {
        let (producer, name) = (self.producer.clone(), name.to_owned());
        let learning = blocking(move || {
            let client = producer.client();
            client.fetch_metadata(Some(&name), ANSWER_WITHIN).map(drop)
        });
        if let Err(error) = learning.await {
            tracing::debug!(%error, "looking at a topic failed");
        }
        sleep(QUEUE_MAY_EMPTY).await;
    }

    fn refused(&self, record: &Record, error: &KafkaError) -> BrokerError {
        match error {
            KafkaError::MessageProduction(RDKafkaErrorCode::MessageSizeTooLarge) => {
                BrokerError::TooLarge {
                    size: record.size(),
                    most: self.options.broker.max_message as usize,
                }
            }
            // A request may have been under way, and its answer not.
            KafkaError::MessageProduction(RDKafkaErrorCode::MessageTimedOut) => {
                let within = self.publish_within.delivery;
                let detail = format!(
                    "no broker has acknowledged it within {within:?}; it is not sent any more, but may have \
                     been published all the same"
                );
                self.failed("publishing", detail)
            }
            error => self.failed("publishing", error),
        }
    }
}

fn is_unknown(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{UnknownPartition, UnknownTopic, UnknownTopicOrPartition};
    let code = error.rdkafka_error_code();
    code.is_some_and(|code| {
        [UnknownPartition, UnknownTopic, UnknownTopicOrPartition].contains(&code)
    })
}
