//! Publishing: resolved when the brokers that have to have it do, never before.

use std::time::Duration;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{DeliveryFuture, FutureRecord, Producer};
use tokio::time::sleep;

use super::client::ANSWER_WITHIN;
use super::cluster::blocking;
use super::message;
use super::server::Server;
use super::topics::Place;
use crate::broker::BrokerError;
use crate::record::Record;
use crate::topic::TopicName;

/// Between two tries to put a record into a queue that is full. How long that may go on is up to the
/// caller.
const QUEUE_MAY_EMPTY: Duration = Duration::from_millis(5);

/// So often a producer looks at a topic again that it does not know.
const TRIES: u32 = 10;

impl Server {
    /// Publishes records to one partition; answers their offsets. The producer keeps their order, also
    /// when it has to send some again.
    pub(super) async fn publish(
        &self,
        topic: &TopicName,
        partition: u32,
        records: Vec<Record>,
    ) -> Result<Vec<u64>, BrokerError> {
        let place = self.place(topic).await?;
        if partition >= place.topic.partitions().get() {
            return Err(BrokerError::UnknownTopic(topic.clone()));
        }
        let mut sent = Vec::with_capacity(records.len());
        for record in &records {
            sent.push(self.send(&place, partition, record).await?);
        }
        let mut offsets = Vec::with_capacity(sent.len());
        for (delivery, record) in sent.into_iter().zip(&records) {
            match delivery.await {
                Ok(Ok(delivery)) => offsets.push(u64::try_from(delivery.offset).unwrap_or(0)),
                Ok(Err((error, _))) => {
                    if is_unknown(&error) {
                        // It is gone, or another one: this tells which.
                        self.place_now(topic).await?;
                    }
                    return Err(self.refused(record, &error));
                }
                Err(_) => return Err(BrokerError::Closed),
            }
        }
        Ok(offsets)
    }

    /// Puts a record into the queue of the producer; waits for room.
    async fn send(
        &self,
        place: &Place,
        partition: u32,
        record: &Record,
    ) -> Result<DeliveryFuture, BrokerError> {
        let mut message: FutureRecord<'_, str, [u8]> = FutureRecord::to(&place.name)
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
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), again)) => {
                    message = again;
                    sleep(QUEUE_MAY_EMPTY).await;
                    self.check_open()?;
                }
                // The topic has grown, and the producer does not know yet.
                Err((error, again)) if is_unknown(&error) && tries < TRIES => {
                    tries += 1;
                    message = again;
                    self.learn(&place.name).await;
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
                    most: self.options.max_message as usize,
                }
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
