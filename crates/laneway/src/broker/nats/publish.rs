//! Publishing: resolved when the server has it, never before.

use std::pin::pin;
use std::time::Duration;

use async_nats::Subject;
use async_nats::jetstream::context::{PublishAckFuture, PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;

use super::message;
use super::server::Nats;
use super::topics::TopicHandle;
use crate::broker::BrokerError;
use crate::broker::remote::Publish;
use crate::record::Record;
use crate::topic::TopicName;

/// After the connection was renewed an answer on the old one comes soon, or not at all.
const LATE_ANSWER: Duration = Duration::from_millis(500);

/// What the id of an event adds to its headers, about.
const ID_AT_MOST: usize = 128;

/// Between two tries to publish an event that the server recognises.
const TRY_AGAIN: Duration = Duration::from_millis(100);

impl Publish for Nats {
    /// Publishes records to one partition; answers their sequences.
    ///
    /// One connection keeps their order. If it breaks in between, what was sent on the old one may be
    /// missing while what was sent on the new one is there; then this is an error.
    async fn publish(
        &self,
        topic: &TopicName,
        partition: u32,
        records: Vec<Record>,
    ) -> Result<Vec<u64>, BrokerError> {
        let handle = self.handle(topic).await?;
        if partition >= handle.topic.partitions().get() {
            return Err(reshaped(&handle));
        }
        let knows_duplicates =
            handle.knows_duplicates() && !self.options.broker.duplicate_window.is_zero();
        if let [record] = &records[..] {
            let id = id_of(record, knows_duplicates);
            let sequence = self.publish_one(&handle, partition, record, id).await?;
            return Ok(vec![sequence]);
        }
        let number = self.link.number();
        let mut answers = Vec::with_capacity(records.len());
        let mut refused = None;
        // Each is let go as soon as it is sent: a batch is not kept in memory twice.
        for record in records {
            if self.link.number() != number {
                // What was sent before may not have got there, and this would overtake it.
                refused = Some(self.failed("publishing", "the connection broke within a batch"));
                break;
            }
            let subject = Self::subject(&handle, partition, &record)?;
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
        let mut sequences: Vec<u64> = Vec::with_capacity(answers.len());
        // The server answers in order. With the last answer the others are there, and no task has to be woken
        // for each of them.
        let last = match answers.pop() {
            Some(answer) => Some(self.sequence(&handle, answer, late.as_mut()).await?),
            None => None,
        };
        for answer in answers {
            sequences.push(self.sequence(&handle, answer, late.as_mut()).await?);
        }
        sequences.extend(last);
        if let Some(refused) = refused {
            return Err(refused);
        }
        if !sequences.is_sorted_by(|one, next| one < next) {
            // Some were there already, from an earlier try that broke off, and one that was not is behind
            // its successor now.
            let error = "all of the batch are there, but some are behind their successors, which an \
                         earlier try had left there without them";
            return Err(self.failed("publishing a batch", error));
        }
        Ok(sequences)
    }

    fn largest(&self) -> Option<usize> {
        // 0 before the server has told.
        Some(self.client.max_payload()).filter(|most| *most > 0)
    }
}

impl Nats {
    /// What the server answers, until it is too late.
    async fn sequence(
        &self,
        handle: &TopicHandle,
        answer: PublishAckFuture,
        late: impl Future<Output = ()>,
    ) -> Result<u64, BrokerError> {
        let answer = answer_or(answer, late).await;
        if let Err(error) = &answer
            && error.kind() == PublishErrorKind::StreamNotFound
        {
            self.check_shape(handle).await?;
        }
        answer.map_err(|error| self.failed("publishing", error))
    }

    /// Publishes one record. One that the server recognises is sent again until it has it, since that
    /// can do no harm; the caller decides how long that may take.
    async fn publish_one(
        &self,
        handle: &TopicHandle,
        partition: u32,
        record: &Record,
        id: Option<&str>,
    ) -> Result<u64, BrokerError> {
        let subject = Self::subject(handle, partition, record)?;
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
                    self.check_shape(handle).await?;
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

    /// Looks a topic up whose stream would not take a message: it may be gone, or have another number of
    /// partitions than the message was published for.
    async fn check_shape(&self, handle: &TopicHandle) -> Result<(), BrokerError> {
        let now = self.fresh_handle(handle.topic.name()).await?;
        if now.topic.partitions() == handle.topic.partitions() {
            Ok(())
        } else {
            Err(reshaped(&now))
        }
    }

    fn subject(
        handle: &TopicHandle,
        partition: u32,
        record: &Record,
    ) -> Result<Subject, BrokerError> {
        let subject = handle.subject(partition, record.key.as_deref());
        subject.ok_or_else(|| {
            let key = record.key.as_deref().unwrap_or_default().to_owned();
            let topic = handle.topic.name().clone();
            BrokerError::Key { topic, key }
        })
    }

    async fn send(
        &self,
        subject: Subject,
        record: &Record,
        id: Option<&str>,
    ) -> Result<PublishAckFuture, PublishError> {
        let headers = message::headers_of(record, id);
        // Here, and not by the answer: the records of a batch that follow it would be on their way.
        if message::size_of(&headers) > message::LONGEST_HEADERS {
            return Err(PublishError::new(PublishErrorKind::MaxPayloadExceeded));
        }
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
            PublishErrorKind::MaxPayloadExceeded => {
                let headers = message::size_of(&message::headers_of(record, None));
                let (size, most) = if headers + ID_AT_MOST > message::LONGEST_HEADERS {
                    (headers, message::LONGEST_HEADERS)
                } else {
                    (record.size(), self.client.max_payload())
                };
                BrokerError::TooLarge { size, most }
            }
            _ => self.failed("publishing", error),
        }
    }
}

fn reshaped(now: &TopicHandle) -> BrokerError {
    BrokerError::Reshaped {
        topic: now.topic.name().clone(),
        now: now.topic.partitions().get(),
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
