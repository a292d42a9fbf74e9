//! Reads a partition, in order and without gaps, across connections and restarts of the server.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::pull;
use futures_util::{FutureExt, StreamExt};
use smol_str::SmolStr;

use super::claim::Holding;
use super::connect::Link;
use super::ledger::{millis, reading};
use super::message::record_of;
use super::topics::Place;
use crate::broker::{BoxFuture, BrokerError, Reader};
use crate::record::Delivered;

/// Given to the bus at once.
const CHUNK: usize = 512;

/// Asked for at once: enough to keep the server sending.
const MOST_AT_ONCE: usize = 500;
/// And so many bytes, by the average of the stream.
const BYTES_AT_ONCE: u64 = 4 * 1024 * 1024;
const LEAST_AT_ONCE: usize = 8;

/// A server that is silent for two of these is asked anew.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Between two tries to read.
const ANEW_AFTER: Duration = Duration::from_millis(20);

/// A consumer of ours that nobody reads from is gone after this long.
const GONE_AFTER: Duration = Duration::from_mins(1);

pub(super) struct PartitionReader {
    holding: Arc<Holding>,
    /// The sequence to go on from.
    next: u64,
    link: Link,
    source: Option<Source>,
}

/// What is read from, on one connection.
struct Source {
    messages: pull::Stream,
    /// Messages of a consumer are numbered without gaps.
    received: u64,
    connection: u64,
}

impl PartitionReader {
    pub(super) fn new(holding: Arc<Holding>, next: u64) -> Self {
        Self {
            link: holding.server.link.clone(),
            holding,
            next: next.max(1),
            source: None,
        }
    }

    async fn read(&mut self) -> Result<Vec<Delivered>, BrokerError> {
        loop {
            if self.source.is_none() {
                self.source = Some(self.open().await?);
            }
            let Some(source) = &mut self.source else {
                continue;
            };
            let message = tokio::select! {
                biased;
                () = self.link.renewed_since(source.connection) => None,
                message = source.messages.next() => message,
            };
            let mut records = Vec::new();
            let mut next_message = message;
            while let Some(Ok(message)) = &next_message {
                let Some(delivered) = source.take(message, &self.holding.place, &mut self.next)
                else {
                    next_message = None;
                    break;
                };
                records.push(delivered);
                if records.len() == CHUNK {
                    return Ok(records);
                }
                match source.messages.next().now_or_never() {
                    Some(message) => next_message = message,
                    None => return Ok(records),
                }
            }
            if let Some(Err(error)) = next_message {
                tracing::debug!(partition = self.holding.partition, %error, "reading begins anew");
            }
            // Whatever it was: what was not given to the bus is read again.
            self.source = None;
            if !records.is_empty() {
                return Ok(records);
            }
            // In a cluster it takes a moment until every server knows a consumer.
            tokio::time::sleep(ANEW_AFTER).await;
        }
    }

    async fn open(&self) -> Result<Source, BrokerError> {
        let Holding { server, place, .. } = &*self.holding;
        let connection = self.link.number();
        let Some(info) = server.stream_info(&place.stream).await? else {
            // A topic in memory may be made anew; it is another one then.
            server.find(place.topic.name()).await?;
            self.holding.lose();
            return Err(self.holding.not_ours());
        };
        let is_same = super::topics::born(&info) == place.born;
        if !is_same || info.state.last_sequence + 1 < self.next {
            // Another stream, or one that lost its end: our position means nothing in it.
            self.holding.lose();
            return Err(self.holding.not_ours());
        }
        let filter = place.filter(self.holding.partition);
        let stream = server.stream(place).await?;
        let failed = |error: &dyn std::fmt::Display| server.failed("reading a partition", error);
        let consumer = stream
            .create_consumer(reading(filter, self.next, GONE_AFTER, false))
            .await
            .map_err(|error| failed(&error))?;
        let messages = consumer
            .stream()
            .max_messages_per_batch(at_once(info.state.bytes, info.state.messages))
            .heartbeat(HEARTBEAT)
            .messages()
            .await
            .map_err(|error| failed(&error))?;
        Ok(Source {
            messages,
            received: 0,
            connection,
        })
    }
}

impl Source {
    /// The record in a message, if no other one is missing before it.
    fn take(&mut self, message: &Message, place: &Place, next: &mut u64) -> Option<Delivered> {
        let info = message.info().ok()?;
        if info.consumer_sequence != self.received + 1 {
            return None;
        }
        self.received = info.consumer_sequence;
        *next = info.stream_sequence + 1;
        let at_ms = millis(info.published.unix_timestamp_nanos());
        let mut record = record_of(message.headers.as_ref(), message.payload.clone(), at_ms);
        if record.key.is_none() {
            record.key = place.key_in(&message.subject).map(SmolStr::new);
        }
        Some(Delivered {
            offset: info.stream_sequence,
            record: Arc::new(record),
        })
    }
}

/// How many messages to ask for, so that large ones do not fill the memory.
fn at_once(bytes: u64, messages: u64) -> usize {
    let average = bytes.checked_div(messages).unwrap_or(0).max(1);
    let count = usize::try_from(BYTES_AT_ONCE / average).unwrap_or(MOST_AT_ONCE);
    count.clamp(LEAST_AT_ONCE, MOST_AT_ONCE)
}

impl Reader for PartitionReader {
    fn next(&mut self) -> BoxFuture<'_, Result<Vec<Delivered>, BrokerError>> {
        Box::pin(self.read())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_messages_are_asked_for_in_smaller_numbers() {
        assert_eq!(at_once(0, 0), MOST_AT_ONCE);
        assert_eq!(at_once(128 * 1000, 1000), MOST_AT_ONCE);
        assert_eq!(at_once(64 * 1024 * 10, 10), 64);
        assert_eq!(at_once(u64::MAX, 1), LEAST_AT_ONCE);
    }
}
