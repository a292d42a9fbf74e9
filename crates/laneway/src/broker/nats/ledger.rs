//! What groups have settled: read, added to, counted.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, ReplayPolicy, pull};
use async_nats::jetstream::stream::RawMessageErrorKind;
use futures_util::{StreamExt, TryStreamExt, stream};
use smol_str::SmolStr;
use tokio::time::sleep;

use super::bucket::Unchanged;
use super::connect::ask;
use super::message::record_of;
use super::names;
use super::record::GroupRecord;
use super::server::Server;
use super::topics::Place;
use crate::broker::embedded::now_ms;
use crate::broker::{BrokerError, Lag};
use crate::record::Delivered;
use crate::settle::Position;
use crate::topic::TopicName;

/// How many requests are under way at once.
pub(super) const AT_ONCE: usize = 32;

/// A consumer that only counts is gone after this long if we could not remove it.
const COUNTER_GONE_AFTER: Duration = Duration::from_secs(10);

/// How many to look at at once when counting.
const COUNTED_AT_ONCE: usize = 1000;

/// While a change is on its way, nothing else gets through.
const ON_ITS_WAY: Duration = Duration::from_millis(5);

/// A consumer that was just made may not be known to all servers of a cluster.
const NOT_KNOWN_YET: Duration = Duration::from_millis(50);
const COUNT_TRIES: usize = 20;

/// Others change it at the same time, and each time one of them gets through.
const TRIES: usize = 100;

impl Server {
    /// What is kept of a group in a partition, with its revision.
    pub(super) async fn group_record(
        &self,
        place: &Place,
        group: &str,
        partition: u32,
    ) -> Result<(Option<GroupRecord>, u64), BrokerError> {
        let key = names::position_key(place.topic.name(), group, partition);
        let entry = self.groups.read(&key).await;
        let entry = entry.map_err(|trouble| self.trouble(trouble))?;
        let Some(value) = entry.value else {
            return Ok((None, entry.revision));
        };
        let record = GroupRecord::decode(&value).map_err(|detail| BrokerError::Damaged {
            what: format!("entry {key}"),
            detail,
        })?;
        Ok((Some(record), entry.revision))
    }

    pub(super) async fn position(
        &self,
        topic: &TopicName,
        partition: u32,
        group: &str,
    ) -> Result<Option<Position>, BrokerError> {
        let place = self.place_now(topic).await?;
        let (record, _) = self.group_record(&place, group, partition).await?;
        Ok(record
            .filter(|record| record.born == place.born)
            .map(|record| record.position))
    }

    /// Adds to what a group has settled that nobody joins.
    pub(super) async fn settle(
        &self,
        topic: &TopicName,
        partition: u32,
        group: &str,
        position: Position,
    ) -> Result<(), BrokerError> {
        let place = self.place_now(topic).await?;
        let key = names::position_key(topic, group, partition);
        for _ in 0..TRIES {
            let (record, revision) = self.group_record(&place, group, partition).await?;
            let before = record.filter(|record| record.born == place.born);
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
                born: place.born,
                position: merged,
            };
            match self.groups.write(&key, record.encode(), revision).await {
                Ok(_) => return Ok(()),
                Err(Unchanged::Conflict) => sleep(ON_ITS_WAY).await,
                Err(Unchanged::Unknown(trouble)) => return Err(self.trouble(trouble)),
            }
        }
        Err(self.failed("settling", "others change it all the time"))
    }

    /// Reads records from the one server that has the last word: on a copy one may be missing that
    /// was read before.
    pub(super) async fn peek(
        &self,
        topic: &TopicName,
        partition: u32,
        from: u64,
        most: usize,
    ) -> Result<Vec<Delivered>, BrokerError> {
        let place = self.place(topic).await?;
        let filter = place.filter(partition);
        let stream = self.stream(&place).await?;
        let mut records = Vec::new();
        let mut next = from.max(1);
        while records.len() < most {
            match ask(|| stream.get_first_raw_message_by_subject(&filter, next)).await {
                Ok(message) => {
                    next = message.sequence + 1;
                    let at_ms = millis(message.time.unix_timestamp_nanos());
                    let mut record = record_of(Some(&message.headers), message.payload, at_ms);
                    if record.key.is_none() {
                        record.key = place.key_in(&message.subject).map(SmolStr::new);
                    }
                    records.push(Delivered {
                        offset: message.sequence,
                        record: Arc::new(record),
                    });
                }
                Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => break,
                Err(error) => {
                    // It may be gone altogether.
                    self.place_now(topic).await?;
                    return Err(self.failed("reading a message", error));
                }
            }
        }
        Ok(records)
    }

    pub(super) async fn lag(
        &self,
        topic: &TopicName,
        group: &str,
    ) -> Result<Vec<Lag>, BrokerError> {
        let place = self.place_now(topic).await?;
        let place = &place;
        let filled = self.filled(place).await?;
        let lags = place.topic.partitions().iter().map(|partition| {
            let is_empty = filled
                .as_ref()
                .is_some_and(|filled| !filled.contains(&place.filter(partition)));
            async move {
                if is_empty {
                    return Ok(Lag {
                        partition,
                        records: 0,
                        oldest: None,
                    });
                }
                self.lag_of(place, group, partition).await
            }
        });
        stream::iter(lags).buffered(AT_ONCE).try_collect().await
    }

    /// The subjects of partitions that have anything at all, in one question. Nothing is known of
    /// streams that others made, which may have any number of subjects.
    async fn filled(&self, place: &Place) -> Result<Option<HashSet<String>>, BrokerError> {
        if place.is_foreign() {
            return Ok(None);
        }
        let stream = self.stream(place).await?;
        let trouble = |error| self.failed("counting messages", error);
        let subjects = stream.info_with_subjects(place.pattern()).await;
        let subjects = subjects.map_err(trouble)?.map_ok(|(subject, _)| subject);
        subjects.try_collect().await.map(Some).map_err(trouble)
    }

    async fn lag_of(&self, place: &Place, group: &str, partition: u32) -> Result<Lag, BrokerError> {
        let (record, _) = self.group_record(place, group, partition).await?;
        let position = record
            .filter(|record| record.born == place.born)
            .map_or_else(|| Position::at(0), |record| record.position);
        let filter = place.filter(partition);
        let stream = self.stream(place).await?;
        let failed = |error: &dyn std::fmt::Display| self.failed("counting messages", error);
        let lag = |records, oldest| Lag {
            partition,
            records,
            oldest,
        };
        for _ in 0..COUNT_TRIES {
            let last = match ask(|| stream.get_last_raw_message_by_subject(&filter)).await {
                Ok(last) => last.sequence,
                Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => 0,
                Err(error) => return Err(failed(&error)),
            };
            // The usual case, for the price of one question.
            if last < position.low() || last == 0 {
                return Ok(lag(0, None));
            }
            let config = reading(filter.clone(), position.low(), COUNTER_GONE_AFTER, true);
            let consumer = stream.create_consumer(config).await;
            let consumer = consumer.map_err(|error| failed(&error))?;
            let counted = count(&consumer, &position).await;
            let name = &consumer.cached_info().name;
            // If it stays, it goes away by itself.
            let _ = stream.delete_consumer(name).await;
            match counted {
                // It counted on a copy that does not have the last one yet.
                Ok((0, _)) if !position.is_done(last) => {}
                Ok((records, oldest)) => return Ok(lag(records, oldest)),
                Err(error) => tracing::debug!(error, "counting messages begins anew"),
            }
            sleep(NOT_KNOWN_YET).await;
        }
        Err(failed(&"no server has both the consumer and the messages"))
    }
}

/// Counts what is not settled, and says how old the oldest of it is. What is done above the low-water
/// mark is looked at one by one: the numbers between the ends of a range belong to other partitions, too.
async fn count(
    consumer: &PullConsumer,
    position: &Position,
) -> Result<(u64, Option<Duration>), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let mut unsettled = consumer.cached_info().num_pending;
    let mut left = unsettled;
    let last_done = position.done_above().last().map_or(0, |range| *range.end());
    let at_once = if last_done == 0 { 1 } else { COUNTED_AT_ONCE };
    let mut oldest = None;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(at_once).min(at_once);
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
            } else if oldest.is_none() {
                oldest = Some(age(millis(info.published.unix_timestamp_nanos())));
            }
        }
        // Retention took the rest, or there is nothing more to learn.
        if last.is_none_or(|last| last >= last_done && oldest.is_some()) {
            break;
        }
    }
    Ok((unsettled, oldest.filter(|_| unsettled > 0)))
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
