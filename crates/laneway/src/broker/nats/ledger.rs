//! What groups have settled: read, added to, counted.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, ReplayPolicy, pull};
use async_nats::jetstream::response::Response;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Deserialize;
use smol_str::SmolStr;
use tokio::time::{sleep, timeout};

use super::bucket::Unchanged;
use super::connect::{ANSWER_WITHIN, call};
use super::message::record_of;
use super::names;
use super::record::{GroupRecord, decode_start};
use super::server::Nats;
use super::topics::TopicHandle;
use crate::broker::remote::Ledger;
use crate::broker::{BrokerError, Lag};
use crate::record::Delivered;
use crate::settle::Position;
use crate::time::now_ms;
use crate::topic::TopicName;

/// How many requests are under way at once.
pub(super) const AT_ONCE: usize = 32;

/// A consumer that only counts is gone after this long if we could not remove it.
const COUNTER_GONE_AFTER: Duration = Duration::from_secs(10);

/// Messages that are read again come within this, or are asked for anew.
const FETCHED_WITHIN: Duration = Duration::from_secs(5);

/// How many to look at at once when counting.
const COUNTED_AT_ONCE: usize = 1000;

/// After so many records that were asked for one by one, the others are read by a consumer.
const PEEKED_SINGLY: usize = 8;

/// While a change is on its way, nothing else gets through.
const ON_ITS_WAY: Duration = Duration::from_millis(5);

/// A consumer that was just made may not be known to all servers of a cluster.
const NOT_KNOWN_YET: Duration = Duration::from_millis(50);
const COUNT_TRIES: usize = 5;

/// Peers change it at the same time, and each time one of them gets through.
const TRIES: usize = 100;

impl Ledger for Nats {
    async fn position(
        &self,
        topic: &TopicName,
        partition: u32,
        group: &str,
    ) -> Result<Option<Position>, BrokerError> {
        let handle = self.fresh_handle(topic).await?;
        let (record, _) = self.group_record(&handle, group, partition).await?;
        Ok(record
            .filter(|record| record.born == handle.born)
            .map(|record| record.position))
    }

    /// Adds to what a group without members has settled.
    async fn settle(
        &self,
        topic: &TopicName,
        partition: u32,
        group: &str,
        position: Position,
    ) -> Result<(), BrokerError> {
        let handle = self.fresh_handle(topic).await?;
        let key = names::position_key(topic, group, partition);
        for _ in 0..TRIES {
            let (record, revision) = self.group_record(&handle, group, partition).await?;
            let before = record.filter(|record| record.born == handle.born);
            let merged = match &before {
                Some(record) => record.position.merge(&position),
                None => position.clone(),
            };
            if before
                .as_ref()
                .is_some_and(|record| record.position == merged)
            {
                return Ok(());
            }
            let record = GroupRecord {
                owner: None,
                epoch: before.map_or(0, |record| record.epoch),
                born: handle.born,
                position: merged,
            };
            match self.groups.write(&key, record.encode(), revision).await {
                Ok(_) => return Ok(()),
                Err(Unchanged::Conflict) => sleep(ON_ITS_WAY).await,
                Err(Unchanged::Unknown(error)) => return Err(self.failed_with(error)),
            }
        }
        Err(self.failed("settling", "others change it all the time"))
    }

    /// The records from an offset on, up to the last one there is. The first few are asked for one by one, which is
    /// quickest where there are few; the others by a consumer, which may be on a copy that lacks the last ones, or stop
    /// before a message that no client can read. So whatever comes last was asked for by itself.
    async fn peek(
        &self,
        topic: &TopicName,
        partition: u32,
        from: u64,
        most: usize,
    ) -> Result<Vec<Delivered>, BrokerError> {
        let handle = self.handle(topic).await?;
        let mut records: Vec<Delivered> = Vec::new();
        let mut next = from;
        let mut is_singly = false;
        while records.len() < most {
            if records.len() == PEEKED_SINGLY && !is_singly {
                is_singly = true;
                let range = next..u64::MAX;
                let reading = self.reread(topic, partition, range, most - records.len());
                match reading.await {
                    Ok(more) => records.extend(more),
                    Err(error) => tracing::debug!(%error, "records are read one by one"),
                }
                next = records.last().map_or(next, |last| last.offset + 1);
                continue;
            }
            match self.first_from(&handle, partition, next).await {
                Ok(Some(delivered)) => {
                    next = delivered.offset + 1;
                    records.push(delivered);
                }
                Ok(None) => break,
                Err(error) => {
                    // It may be gone altogether.
                    self.fresh_handle(topic).await?;
                    return Err(error);
                }
            }
        }
        Ok(records)
    }

    /// Reads records again, many at a time: by a consumer that is there for that only. It may be on a copy
    /// that lacks the last ones.
    async fn reread(
        &self,
        topic: &TopicName,
        partition: u32,
        range: Range<u64>,
        most: usize,
    ) -> Result<Vec<Delivered>, BrokerError> {
        let handle = self.handle(topic).await?;
        let failed = |error: &dyn std::fmt::Display| self.failed("reading messages again", error);
        // A message that no client can read ends the connection that it comes by.
        let readers = self.readers().await?;
        let stream = readers.context.get_stream_no_info(&handle.stream).await;
        let stream = stream.map_err(|error| failed(&error))?;
        let filter = handle.filter(partition);
        let config = reading(filter, range.start, COUNTER_GONE_AFTER, false);
        let consumer = stream.create_consumer(config).await;
        let consumer = consumer.map_err(|error| failed(&error))?;
        let fetching = fetch(&consumer, &handle, &range, most);
        let fetched = timeout(FETCHED_WITHIN, fetching).await;
        let (server, name) = (stream.clone(), consumer.cached_info().name.clone());
        // If it stays, it goes away by itself; nothing waits for that.
        tokio::spawn(async move { server.delete_consumer(&name).await });
        match fetched {
            Ok(records) => records.map_err(|error| failed(&error)),
            Err(_) => Err(failed(&"no answer in time")),
        }
    }

    async fn lag(&self, topic: &TopicName, group: &str) -> Result<Vec<Lag>, BrokerError> {
        let handle = self.fresh_handle(topic).await?;
        let handle = &handle;
        let filled = self.filled(handle).await?;
        let lags = handle.topic.partitions().iter().map(|partition| {
            let is_empty = filled
                .as_ref()
                .is_some_and(|filled| !filled.contains(&partition));
            async move {
                if is_empty {
                    return Ok(Lag {
                        partition,
                        records: 0,
                        oldest: None,
                    });
                }
                self.lag_of(handle, group, partition).await
            }
        });
        stream::iter(lags).buffered(AT_ONCE).try_collect().await
    }
}

impl Nats {
    /// What is kept of a group in a partition, with its revision.
    pub(super) async fn group_record(
        &self,
        handle: &TopicHandle,
        group: &str,
        partition: u32,
    ) -> Result<(Option<GroupRecord>, u64), BrokerError> {
        let key = names::position_key(handle.topic.name(), group, partition);
        let entry = self.groups.read(&key).await;
        let entry = entry.map_err(|error| self.failed_with(error))?;
        let Some(value) = entry.value else {
            return Ok((None, entry.revision));
        };
        let record = GroupRecord::decode(&value).map_err(|detail| BrokerError::Damaged {
            what: format!("entry {key}"),
            detail,
        })?;
        Ok((Some(record), entry.revision))
    }

    /// Where a group starts in partitions that it has no position for, if that was noted; and the revision
    /// of the note.
    pub(super) async fn noted_start(
        &self,
        handle: &TopicHandle,
        group: &str,
    ) -> Result<(Option<u64>, u64), BrokerError> {
        let key = names::start_key(handle.topic.name(), group);
        let entry = self.groups.read(&key).await;
        let entry = entry.map_err(|error| self.failed_with(error))?;
        let Some(value) = entry.value else {
            return Ok((None, entry.revision));
        };
        let start = decode_start(&value, handle.born).map_err(|detail| BrokerError::Damaged {
            what: format!("entry {key}"),
            detail,
        })?;
        Ok((start, entry.revision))
    }

    /// The sequence at which a group starts in partitions that it has no position for.
    pub(super) async fn group_start(
        &self,
        handle: &TopicHandle,
        group: &str,
    ) -> Result<u64, BrokerError> {
        let (start, _) = self.noted_start(handle, group).await?;
        Ok(start.unwrap_or(0))
    }

    /// The partitions that have anything at all, in one question. Nothing is known of streams that
    /// others made, which may have any number of subjects.
    async fn filled(&self, handle: &TopicHandle) -> Result<Option<HashSet<u32>>, BrokerError> {
        if handle.is_foreign() {
            return Ok(None);
        }
        let stream = self.stream(handle).await?;
        let failed = |error| self.failed("counting messages", error);
        let subjects = stream.info_with_subjects(handle.pattern()).await;
        let subjects: Vec<_> = subjects
            .map_err(failed)?
            .try_collect()
            .await
            .map_err(failed)?;
        let partitions = subjects
            .iter()
            .filter_map(|(subject, _)| TopicHandle::partition_in(subject));
        Ok(Some(partitions.collect()))
    }

    async fn lag_of(
        &self,
        handle: &TopicHandle,
        group: &str,
        partition: u32,
    ) -> Result<Lag, BrokerError> {
        let (record, _) = self.group_record(handle, group, partition).await?;
        let position = match record {
            Some(record) if record.born == handle.born => record.position,
            Some(_) => Position::at(0),
            None => Position::at(self.group_start(handle, group).await?),
        };
        let filter = handle.filter(partition);
        let readers = self.readers().await?;
        let stream = readers.context.get_stream_no_info(&handle.stream).await;
        let stream = stream.map_err(|error| self.failed("counting messages", error))?;
        let failed = |error: &dyn std::fmt::Display| self.failed("counting messages", error);
        for _ in 0..COUNT_TRIES {
            let last = match call(|| self.last_in(&handle.stream, &filter)).await {
                Ok(last) => last,
                Err(error) => return Err(failed(&error)),
            };
            // The usual case, for the price of one question.
            if last < position.low() || last == 0 {
                return Ok(Lag {
                    partition,
                    records: 0,
                    oldest: None,
                });
            }
            let config = reading(filter.clone(), position.low(), COUNTER_GONE_AFTER, true);
            let consumer = stream.create_consumer(config).await;
            let consumer = consumer.map_err(|error| failed(&error))?;
            let mut link = readers.link.clone();
            let connection = link.number();
            let counted = tokio::select! {
                counted = timeout(ANSWER_WITHIN, count(&consumer, &position)) => {
                    counted.unwrap_or_else(|_| Err("timed out".to_owned()))
                }
                () = link.changed_since(connection) => Err("the connection broke".to_owned()),
            };
            let name = &consumer.cached_info().name;
            if let Ok(stream) = self.stream(handle).await {
                // If it stays, it goes away by itself.
                let _ = stream.delete_consumer(name).await;
            }
            match counted {
                // It counted on a copy that does not have the last one yet.
                Ok(0) if !position.is_done(last) => {}
                Ok(records) => {
                    let oldest = if records == 0 {
                        None
                    } else {
                        self.oldest_unsettled(handle, partition, &position).await?
                    };
                    return Ok(Lag {
                        partition,
                        records,
                        oldest,
                    });
                }
                Err(error) => tracing::debug!(error, "counting messages begins anew"),
            }
            sleep(NOT_KNOWN_YET).await;
        }
        self.count_one_by_one(handle, partition, &position).await
    }

    /// The last sequence that a subject has; 0 if it has none.
    pub(super) async fn last_in(&self, stream: &str, filter: &str) -> Result<u64, String> {
        let subject = format!("STREAM.MSG.GET.{stream}");
        let question = serde_json::json!({ "last_by_subj": filter });
        match self.context.request(subject, &question).await {
            Ok(Response::Ok(LastMessage { message })) => Ok(message.seq),
            Ok(Response::Err { error }) if error.error_code() == ErrorCode::NO_MESSAGE_FOUND => {
                Ok(0)
            }
            Ok(Response::Err { error }) => Err(error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// How old the oldest unsettled record is.
    async fn oldest_unsettled(
        &self,
        handle: &TopicHandle,
        partition: u32,
        position: &Position,
    ) -> Result<Option<Duration>, BrokerError> {
        let first = self.first_from(handle, partition, position.low()).await?;
        // The lowest one is unsettled, unless retention took it.
        Ok(first.map(|delivered| age(delivered.record.timestamp_ms)))
    }

    /// Counts what is not settled without a consumer: slowly, and past messages that no consumer can be
    /// sent.
    async fn count_one_by_one(
        &self,
        handle: &TopicHandle,
        partition: u32,
        position: &Position,
    ) -> Result<Lag, BrokerError> {
        let mut lag = Lag {
            partition,
            records: 0,
            oldest: None,
        };
        let mut next = position.low();
        while let Some(delivered) = self.first_from(handle, partition, next).await? {
            next = delivered.offset + 1;
            if !position.is_done(delivered.offset) {
                lag.records += 1;
                let age = || age(delivered.record.timestamp_ms);
                lag.oldest.get_or_insert_with(age);
            }
        }
        Ok(lag)
    }
}

#[derive(Deserialize)]
struct LastMessage {
    message: LastSequence,
}

#[derive(Deserialize)]
struct LastSequence {
    seq: u64,
}

/// Counts what is not settled. What is done above the low-water mark is looked at one by one: the numbers
/// between the ends of a range belong to other partitions, too.
async fn count(consumer: &PullConsumer, position: &Position) -> Result<u64, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let mut unsettled = consumer.cached_info().num_pending;
    let mut left = unsettled;
    let last_done = position.done_above().last().map_or(0, |range| *range.end());
    let mut seen = 0;
    while left > 0 && seen < last_done {
        let most = usize::try_from(left)
            .unwrap_or(COUNTED_AT_ONCE)
            .min(COUNTED_AT_ONCE);
        let some = consumer.fetch().max_messages(most).messages().await;
        let mut some = some.map_err(|error| text(&error))?;
        let mut last = None;
        while let Some(message) = some.next().await {
            let message = message.map_err(|error| text(&error))?;
            let info = message.info().map_err(|error| text(&error))?;
            left = left.saturating_sub(1);
            last = Some(info.stream_sequence);
            if position.is_done(info.stream_sequence) {
                unsettled = unsettled.saturating_sub(1);
            }
        }
        // Retention took the rest.
        let Some(last) = last else { break };
        seen = last;
    }
    Ok(unsettled)
}

/// What a consumer has of the range.
async fn fetch(
    consumer: &PullConsumer,
    handle: &TopicHandle,
    range: &Range<u64>,
    most: usize,
) -> Result<Vec<Delivered>, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let mut records = Vec::new();
    let pending = usize::try_from(consumer.cached_info().num_pending).unwrap_or(most);
    let most = most.min(pending);
    if most == 0 {
        return Ok(records);
    }
    let messages = consumer.fetch().max_messages(most).messages().await;
    let mut messages = messages.map_err(|error| text(&error))?;
    while let Some(message) = messages.next().await {
        let message = message.map_err(|error| text(&error))?;
        let info = message.info().map_err(|error| text(&error))?;
        // Messages of a consumer are numbered without gaps.
        if info.consumer_sequence != records.len() as u64 + 1 {
            break;
        }
        let offset = info.stream_sequence;
        let at_ms = millis(info.published.unix_timestamp_nanos());
        let mut record = record_of(message.headers.as_ref(), message.payload.clone(), at_ms);
        if record.key.is_none() {
            record.key = handle.key_in(&message.subject).map(SmolStr::new);
        }
        records.push(Delivered {
            offset,
            record: Arc::new(record),
        });
        if offset + 1 >= range.end || records.len() == most {
            break;
        }
    }
    Ok(records)
}

/// A consumer that reads a partition from a sequence on, in order, and keeps nothing on the server.
pub(super) fn reading(
    subject: String,
    from: u64,
    gone_after: Duration,
    headers_only: bool,
) -> pull::Config {
    pull::Config {
        filter_subject: subject,
        deliver_policy: DeliverPolicy::ByStartSequence {
            start_sequence: from.max(1),
        },
        ack_policy: AckPolicy::None,
        replay_policy: ReplayPolicy::Instant,
        inactive_threshold: gone_after,
        memory_storage: true,
        num_replicas: 1,
        headers_only,
        ..pull::Config::default()
    }
}

pub(super) fn millis(nanos: i128) -> i64 {
    i64::try_from(nanos / 1_000_000).unwrap_or_default()
}

fn age(at_ms: i64) -> Duration {
    let age = now_ms().saturating_sub(at_ms);
    Duration::from_millis(u64::try_from(age).unwrap_or(0))
}
