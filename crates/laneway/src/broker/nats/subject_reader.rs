//! Reads the subject of a partition, in order and without gaps, across connections and restarts of the server.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::stream::Info;
use futures_util::{FutureExt, StreamExt};
use smol_str::SmolStr;
use tokio::runtime::Handle;
use tokio::time::timeout;
use uuid::Uuid;

use super::connect::Link;
use super::ledger::{millis, reading};
use super::message::record_of;
use super::server::Nats;
use super::topics::{self, TopicHandle};
use crate::broker::BrokerError;
use crate::planted::planted;
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

/// The server removes a consumer of ours that is not read from after this long.
const GONE_AFTER: Duration = Duration::from_mins(1);

/// Read one by one after a source that gave nothing.
const CAREFULLY: usize = 32;

/// A source that is silent for this long is not believed: the client keeps messages from us whose headers
/// look like something that the server says.
const LOOK_EVERY: Duration = Duration::from_mins(1);

/// Removing a consumer may take so long; if it stays, it goes away by itself.
const REMOVED_WITHIN: Duration = Duration::from_secs(2);

/// Reads by a consumer, which is quick. One that ends before it gave anything may have ended over the
/// message that is next (see [`raw`](super::raw)); so that one is looked at by itself before another
/// consumer is made. Thus no message, whatever it is, can stop a reader.
pub(super) struct SubjectReader {
    server: Arc<Nats>,
    handle: Arc<TopicHandle>,
    partition: u32,
    /// The sequence to go on from.
    next: u64,
    source: Option<Source>,
    /// Whether there was more behind the last record that was given, when the server sent it.
    has_more: bool,
    /// The last source gave nothing.
    is_barren: bool,
    /// The consumer that was last made, or was to be.
    consumer: Option<String>,
}

/// What is read from, on one connection.
struct Source {
    messages: pull::Stream,
    /// Messages of a consumer are numbered without gaps.
    received: u64,
    /// How many there were behind the last one, when the server sent it.
    pending: u64,
    link: Link,
    connection: u64,
}

/// Why reading does not go on.
#[cfg_attr(
    not(feature = "log"),
    expect(dead_code, reason = "only a log tells them apart")
)]
pub(super) enum Stopped {
    /// It may go on when it is called again.
    Failed(BrokerError),
    /// The stream is gone.
    Gone,
    /// The stream is another one, made at this time.
    Other(i64),
    /// The stream ends before the next sequence: it has lost its end.
    Shortened(u64),
}

impl From<BrokerError> for Stopped {
    fn from(error: BrokerError) -> Self {
        Self::Failed(error)
    }
}

impl SubjectReader {
    pub(super) fn new(
        server: Arc<Nats>,
        handle: Arc<TopicHandle>,
        partition: u32,
        next: u64,
    ) -> Self {
        Self {
            server,
            handle,
            partition,
            next: next.max(1),
            source: None,
            has_more: true,
            is_barren: false,
            consumer: None,
        }
    }

    /// The next records, at least one; waits for them. May be dropped and called again.
    pub(super) async fn read(&mut self) -> Result<Vec<Delivered>, Stopped> {
        loop {
            if self.source.is_none() {
                let info = self.check().await?;
                if self.is_barren && !planted("A4") {
                    let records = self.look().await?;
                    self.is_barren = false;
                    if !records.is_empty() {
                        return Ok(records);
                    }
                }
                self.source = self.open(&info).await?;
                self.is_barren = self.source.is_none();
            }
            let Some(source) = &mut self.source else {
                tokio::time::sleep(ANEW_AFTER).await;
                continue;
            };
            let message = tokio::select! {
                biased;
                // What came before the connection broke is taken first: it is whole.
                message = source.messages.next() => message,
                () = source.link.changed_since(source.connection) => None,
                () = tokio::time::sleep(LOOK_EVERY) => {
                    let is_there = self.look_once().await?;
                    if is_there {
                        self.source = None;
                        self.is_barren = true;
                    }
                    continue;
                }
            };
            let mut records = Vec::new();
            let mut next_message = message;
            while let Some(Ok(message)) = &next_message {
                let Some(delivered) = source.take(message, &self.handle, &mut self.next) else {
                    next_message = None;
                    break;
                };
                self.has_more = source.pending > 0;
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
                tracing::debug!(partition = self.partition, %error, "reading begins anew");
            }
            // Whatever it was: what was not given to the bus is read again.
            self.source = None;
            self.is_barren = records.is_empty();
            if !records.is_empty() {
                return Ok(records);
            }
            // In a cluster it takes a moment until every server knows a consumer.
            tokio::time::sleep(ANEW_AFTER).await;
        }
    }

    /// Whether there was more behind the last record that was given, when the server sent it.
    #[cfg(feature = "log")]
    pub(super) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Whether the stream is the one that the next sequence is about.
    async fn check(&self) -> Result<Info, Stopped> {
        let Some(info) = self.server.stream_info(&self.handle.stream).await? else {
            return Err(Stopped::Gone);
        };
        let born = topics::born(&info);
        if born != self.handle.born {
            return Err(Stopped::Other(born));
        }
        if info.state.last_sequence + 1 < self.next {
            return Err(Stopped::Shortened(info.state.last_sequence + 1));
        }
        Ok(info)
    }

    /// The next records, one by one and whatever they are. The caller may give up while it looks, or it may fail: only
    /// what is answered counts as read.
    async fn look(&mut self) -> Result<Vec<Delivered>, BrokerError> {
        let Self { server, handle, .. } = self;
        let mut records = Vec::new();
        let mut next = self.next;
        while records.len() < CAREFULLY {
            let looking = server.first_from(handle, self.partition, next);
            let Some(delivered) = looking.await? else {
                break;
            };
            next = delivered.offset + 1;
            records.push(delivered);
        }
        self.next = next;
        self.has_more = true;
        Ok(records)
    }

    /// Whether there is something that the source does not give.
    async fn look_once(&self) -> Result<bool, BrokerError> {
        let Self { server, handle, .. } = self;
        let looking = server.first_from(handle, self.partition, self.next);
        Ok(looking.await?.is_some())
    }

    /// Makes a consumer; nothing if the connection broke meanwhile.
    async fn open(&mut self, info: &Info) -> Result<Option<Source>, BrokerError> {
        if let Some(before) = self.consumer.take() {
            remove(&self.server, &self.handle, &before).await;
        }
        let name = Uuid::now_v7().simple().to_string();
        self.consumer = Some(name.clone());
        let Self { server, handle, .. } = self;
        let readers = server.readers().await?;
        let mut link = readers.link.clone();
        let connection = link.number();
        let filter = handle.filter(self.partition);
        let failed = |error: &dyn std::fmt::Display| server.failed("reading a partition", error);
        let opening = async {
            let stream = readers.context.get_stream_no_info(&handle.stream).await;
            let stream = stream.map_err(|error| failed(&error))?;
            let config = pull::Config {
                name: Some(name),
                ..reading(filter, self.next, GONE_AFTER, false)
            };
            let consumer = stream.create_consumer(config).await;
            let consumer = consumer.map_err(|error| failed(&error))?;
            consumer
                .stream()
                .max_messages_per_batch(at_once(info.state.bytes, info.state.messages))
                .heartbeat(HEARTBEAT)
                .messages()
                .await
                .map_err(|error| failed(&error))
        };
        let messages = tokio::select! {
            // What was asked on the old connection may never be answered.
            () = link.changed_since(connection) => return Ok(None),
            opened = opening => opened?,
        };
        Ok(Some(Source {
            messages,
            received: 0,
            pending: 0,
            link,
            connection,
        }))
    }
}

/// Removes a consumer of ours, if it is there. One that is made anew again and again would leave as many
/// behind as the server allows.
async fn remove(server: &Nats, handle: &TopicHandle, consumer: &str) {
    let removing = async {
        if let Ok(stream) = server.stream(handle).await {
            let _ = stream.delete_consumer(consumer).await;
        }
    };
    let _ = timeout(REMOVED_WITHIN, removing).await;
}

impl Drop for SubjectReader {
    fn drop(&mut self) {
        let (Some(consumer), Ok(runtime)) = (self.consumer.take(), Handle::try_current()) else {
            return;
        };
        let (server, handle) = (self.server.clone(), self.handle.clone());
        runtime.spawn(async move { remove(&server, &handle, &consumer).await });
    }
}

impl Source {
    /// The record in a message, if no other one is missing before it.
    fn take(
        &mut self,
        message: &Message,
        handle: &TopicHandle,
        next: &mut u64,
    ) -> Option<Delivered> {
        let info = message.info().ok()?;
        if info.consumer_sequence != self.received + 1 {
            return None;
        }
        self.received = info.consumer_sequence;
        self.pending = info.pending;
        *next = info.stream_sequence + 1;
        let at_ms = millis(info.published.unix_timestamp_nanos());
        let mut record = record_of(message.headers.as_ref(), message.payload.clone(), at_ms);
        if record.key.is_none() {
            record.key = handle.key_in(&message.subject).map(SmolStr::new);
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
