//! Publishing: resolved when the server has it, never before.

use std::pin::pin;
use std::time::Duration;

use async_nats::Subject;
use async_nats::jetstream::context::{PublishAckFuture, PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;

use super::message;
use super::server::Server;
use super::topics::Place;
use crate::broker::BrokerError;
use crate::record::Record;
use crate::topic::TopicName;

/// After the connection was renewed an answer on the old one comes soon, or not at all.
const LATE_ANSWER: Duration = Duration::from_millis(500);

/// Between two tries to publish an event that the server recognises.
const TRY_AGAIN: Duration = Duration::from_millis(100);

impl Server {
    /// Publishes records to one partition; answers their sequences.
    ///
    /// One connection keeps their order. If it breaks in between, what was sent on the old one may be
    /// missing while what was sent on the new one is there; then this is an error.
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
        let knows_duplicates = place.knows_duplicates() && !self.options.duplicate_window.is_zero();
        if let [record] = &records[..] {
            let id = id_of(record, knows_duplicates);
            let sequence = self.publish_one(&place, partition, record, id).await?;
            return Ok(vec![sequence]);
        }
        let number = self.link.number();
        let mut answers = Vec::with_capacity(records.len());
        let mut refused = None;
        // Each is let go as soon as it is sent: a batch is not kept in memory twice.
        for record in records {
            let subject = self.subject(&place, partition, &record)?;
            let id = id_of(&record, knows_duplicates);
            match self.send(subject, &record, id).await {
                Ok(answer) => answers.push(answer),
                Err(error) => {
                    // What comes after it would overtake it.
                    refused = Some(self.refused(&record, &error));
                    break;
                }
            }
        }
        let mut late = pin!(self.late(number));
        let mut sequences = Vec::with_capacity(answers.len());
        // The server answers in order. With the last answer the others are there, and nobody has to be woken
        // for each of them.
        let last = match answers.pop() {
            Some(answer) => Some(self.sequence(topic, answer, late.as_mut()).await?),
            None => None,
        };
        for answer in answers {
            sequences.push(self.sequence(topic, answer, late.as_mut()).await?);
        }
        sequences.extend(last);
        refused.map_or(Ok(sequences), Err)
    }

    /// What the server answers, until it is too late.
    async fn sequence(
        &self,
        topic: &TopicName,
        answer: PublishAckFuture,
        late: impl Future<Output = ()>,
    ) -> Result<u64, BrokerError> {
        let answer = answer_or(answer, late).await;
        if let Err(error) = &answer
            && error.kind() == PublishErrorKind::StreamNotFound
        {
            self.place_now(topic).await?;
        }
        answer.map_err(|error| self.failed("publishing", error))
    }

    /// Publishes one record. One that the server recognises is sent again until it has it, since that
    /// can do no harm; the caller decides how long that may take.
    async fn publish_one(
        &self,
        place: &Place,
        partition: u32,
        record: &Record,
        id: Option<&str>,
    ) -> Result<u64, BrokerError> {
        let subject = self.subject(place, partition, record)?;
        let mut found_again = false;
        loop {
            let number = self.link.number();
            let sent = self.send(subject.clone(), record, id).await;
            let error = match sent {
                Ok(sent) => match answer_or(sent, pin!(self.late(number))).await {
                    Ok(sequence) => return Ok(sequence),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            let again = match error.kind() {
                PublishErrorKind::StreamNotFound => {
                    // It is gone, or the server is not ready: this tells which, and makes topics in
                    // memory anew that a restart took.
                    self.place_now(place.topic.name()).await?;
                    !std::mem::replace(&mut found_again, true) || id.is_some()
                }
                PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe => id.is_some(),
                _ => false,
            };
            if !again {
                return Err(self.refused(record, &error));
            }
            tokio::time::sleep(TRY_AGAIN).await;
            self.check_open()?;
        }
    }

    fn subject(
        &self,
        place: &Place,
        partition: u32,
        record: &Record,
    ) -> Result<Subject, BrokerError> {
        let subject = place.subject(partition, record.key.as_deref());
        subject.ok_or_else(|| {
            let key = record.key.as_deref().unwrap_or_default();
            let error = format!(
                "key {key:?} cannot be in a subject of {}",
                place.topic.name()
            );
            self.failed("publishing", error)
        })
    }

    async fn send(
        &self,
        subject: Subject,
        record: &Record,
        id: Option<&str>,
    ) -> Result<PublishAckFuture, PublishError> {
        let headers = message::headers_of(record, id);
        let mut message = PublishMessage::build().payload(record.payload.clone());
        if !headers.is_empty() {
            message = message.headers(headers);
        }
        self.context.send_publish(subject, message).await
    }

    /// When an answer to what was sent on a connection comes no more.
    async fn late(&self, number: u64) {
        self.link.clone().renewed_since(number).await;
        tokio::time::sleep(LATE_ANSWER).await;
    }

    fn refused(&self, record: &Record, error: &PublishError) -> BrokerError {
        match error.kind() {
            PublishErrorKind::MaxPayloadExceeded => BrokerError::TooLarge {
                size: record.size(),
                most: self.client.max_payload(),
            },
            _ => self.failed("publishing", error),
        }
    }
}

/// The id by which the server knows a record again, if it knows any.
fn id_of(record: &Record, knows_duplicates: bool) -> Option<&str> {
    message::message_id(record).filter(|_| knows_duplicates)
}

/// Waits for the answer, until it comes no more.
async fn answer_or(
    sent: PublishAckFuture,
    late: impl Future<Output = ()>,
) -> Result<u64, PublishError> {
    tokio::select! {
        biased;
        // A duplicate is there as well, at the place that the answer says.
        answer = sent => answer.map(|answer| answer.sequence),
        () = late => Err(PublishError::new(PublishErrorKind::TimedOut)),
    }
}
