//! Publishing: which partition, what record, how fast.

use std::time::Instant;

use futures_util::TryStreamExt;
use futures_util::stream::FuturesUnordered;
use smol_str::SmolStr;

use super::call_timeout::CallTimeout;
use super::error::Error;
use super::event::Outgoing;
use super::shared::KnownTopic;
use super::{Bus, Receipt};
use crate::broker::{BrokerError, Offsets};
use crate::envelope::Envelope;
use crate::headers::Headers;
use crate::record::Record;
use crate::time::now_ms;
use crate::topic::{Kind, partition_of};
use crate::trace;

impl Bus {
    /// Publishes a plain message. A topic that does not exist is declared as
    /// [`Topic::plain`](crate::topic::Topic::plain).
    ///
    /// # Errors
    /// When the topic is a domain topic, or the broker fails.
    pub async fn publish(
        &self,
        topic: &str,
        message: impl Into<Outgoing>,
    ) -> Result<Receipt, Error> {
        let known = self.topic(topic, Kind::Plain).await?;
        let partition = known.next_partition();
        let record = outgoing(message.into());
        self.append_one(&known, partition, record).await
    }

    /// Publishes plain messages together, in one partition each, in turn.
    ///
    /// # Errors
    /// As [`publish`](Self::publish); some of them may have been published then.
    pub async fn publish_batch(
        &self,
        topic: &str,
        messages: impl IntoIterator<Item = Outgoing>,
    ) -> Result<Vec<Receipt>, Error> {
        let known = self.topic(topic, Kind::Plain).await?;
        let records = messages
            .into_iter()
            .map(|message| (known.next_partition(), outgoing(message)));
        self.append_all(&known, records).await
    }

    /// Publishes a domain event; it is durable when this resolves. A topic that does not exist is
    /// declared as [`Topic::domain`](crate::topic::Topic::domain).
    ///
    /// # Errors
    /// When the topic is a plain topic, or the broker fails.
    pub async fn publish_envelope(
        &self,
        topic: &str,
        envelope: &Envelope,
    ) -> Result<Receipt, Error> {
        match self.append_envelope(topic, envelope).await {
            // Nothing was published, and by now the topic is known as it is.
            Err(Error::Broker(BrokerError::Reshaped { .. })) => {
                self.append_envelope(topic, envelope).await
            }
            result => result,
        }
    }

    async fn append_envelope(&self, topic: &str, envelope: &Envelope) -> Result<Receipt, Error> {
        let known = self.topic(topic, Kind::Domain).await?;
        let key = envelope.aggregate_id().as_bytes();
        let partition = partition_of(key, known.topic.partitions());
        let record = self.enveloped(envelope);
        self.append_one(&known, partition, record).await
    }

    /// Publishes domain events together; events of one aggregate keep their order. All are durable
    /// when this resolves.
    ///
    /// # Errors
    /// As [`publish_envelope`](Self::publish_envelope); some of them may have been published then.
    pub async fn publish_envelope_batch(
        &self,
        topic: &str,
        envelopes: &[Envelope],
    ) -> Result<Vec<Receipt>, Error> {
        let known = self.topic(topic, Kind::Domain).await?;
        let partitions = known.topic.partitions();
        let records = envelopes.iter().map(|envelope| {
            let key = envelope.aggregate_id().as_bytes();
            (partition_of(key, partitions), self.enveloped(envelope))
        });
        self.append_all(&known, records).await
    }

    async fn append_one(
        &self,
        known: &KnownTopic,
        partition: u32,
        record: Record,
    ) -> Result<Receipt, Error> {
        self.take_turns(1).await?;
        let (partition, offsets) = self.append(known, partition, vec![record]).await?;
        Ok(Receipt {
            partition,
            offset: offsets.at(0),
        })
    }

    /// Waits for as long as the rate limit wants. All that is published together takes its turns
    /// together, so that none of it is sent if they would come too late.
    pub(super) async fn take_turns(&self, count: usize) -> Result<(), Error> {
        let Some(limiter) = &self.shared.limiter else {
            return Ok(());
        };
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let CallTimeout(limit) = self.shared.call_timeout;
        if limiter.turns_within(count, limit).await {
            Ok(())
        } else {
            Err(Error::RateLimited { count, limit })
        }
    }

    pub(super) async fn append(
        &self,
        known: &KnownTopic,
        partition: u32,
        records: Vec<Record>,
    ) -> Result<(u32, Offsets), Error> {
        let count = records.len() as u64;
        let begun = Instant::now();
        let name = known.topic.name();
        let publishing = self.shared.broker.publish(name, partition, records);
        let offsets = self.ask("publishing", publishing).await;
        known.publishes.count(count, begun.elapsed(), &offsets);
        Ok((partition, offsets?))
    }

    /// Partitions go in parallel; within one the order is kept.
    async fn append_all(
        &self,
        known: &KnownTopic,
        records: impl Iterator<Item = (u32, Record)>,
    ) -> Result<Vec<Receipt>, Error> {
        let count = known.topic.partitions().get() as usize;
        let mut places = Vec::with_capacity(records.size_hint().0);
        let mut by_partition = vec![Vec::new(); count];
        for (partition, record) in records {
            places.push(partition);
            by_partition[partition as usize].push(record);
        }
        self.take_turns(places.len()).await?;
        // Answers come one by one, and each wakes only the partition that it is about.
        let mut appending: FuturesUnordered<_> = (0..)
            .zip(by_partition)
            .filter(|(_, records)| !records.is_empty())
            .map(|(partition, records)| self.append(known, partition, records))
            .collect();
        let mut offsets = vec![(Offsets::From(0), 0); count];
        while let Some((partition, of_partition)) = appending.try_next().await? {
            offsets[partition as usize].0 = of_partition;
        }
        Ok(places
            .into_iter()
            .map(|partition| {
                let (of_partition, next) = &mut offsets[partition as usize];
                let offset = of_partition.at(*next);
                *next += 1;
                Receipt { partition, offset }
            })
            .collect())
    }

    pub(super) fn enveloped(&self, envelope: &Envelope) -> Record {
        // Inside one process only the bus looks at a record, and we open it anyway.
        let headers = if self.shared.broker.is_shared() {
            Headers::of_envelope(envelope)
        } else {
            Headers::new()
        };
        Record {
            key: Some(SmolStr::new(envelope.aggregate_id().as_str())),
            headers: traced(headers),
            payload: envelope.encode(),
            timestamp_ms: now_ms(),
        }
    }
}

fn outgoing(message: Outgoing) -> Record {
    Record {
        key: None,
        headers: traced(message.headers),
        payload: message.payload,
        timestamp_ms: now_ms(),
    }
}

/// What is published within a trace belongs to it.
fn traced(mut headers: Headers) -> Headers {
    if let Some(current) = trace::current() {
        current.child().write_to(&mut headers);
    }
    headers
}
