//! What groups have settled: read, added to, counted.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::client::ANSWER_WITHIN;
use super::cluster::blocking;
use super::mark::Mark;
use super::server::Kafka;
use super::topics::TopicHandle;
use crate::broker::remote::Ledger;
use crate::broker::{BrokerError, Lag};
use crate::record::Delivered;
use crate::settle::Position;
use crate::time::now_ms;
use crate::topic::TopicName;

/// Groups without members begin so: the bus keeps its books under them, in the catalog, where they are
/// not forgotten.
const OF_BUS: &str = "laneway-";

/// As many unsettled records are counted one by one. More are counted by their offsets, of which some may
/// have no record.
const COUNTED: u64 = 1000;

/// Between two looks at partitions without a leader.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What the catalog says of what a group of the bus has settled.
#[derive(Serialize, Deserialize)]
struct Settled {
    born: u64,
    position: String,
}

impl Settled {
    fn read(value: &Value, born: u64) -> Option<Position> {
        let settled: Self = serde_json::from_value(value.clone()).ok()?;
        let bytes = STANDARD_NO_PAD.decode(settled.position).ok()?;
        let position = Position::decode(&bytes).ok()?;
        (settled.born == born).then_some(position)
    }

    fn write(position: &Position, born: u64) -> Value {
        let settled = Self {
            born,
            position: STANDARD_NO_PAD.encode(position.encode()),
        };
        serde_json::to_value(settled).unwrap_or_default()
    }
}

fn settled_entry(topic: &str, partition: u32, group: &str) -> String {
    format!("settled/{topic}/{partition}/{group}")
}

/// What a group has committed in the partitions of a topic.
pub(super) fn committed<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    handle: &TopicHandle,
    partitions: impl IntoIterator<Item = u32>,
) -> Result<BTreeMap<u32, Mark>, KafkaError> {
    let list = list(handle, partitions, Offset::Invalid)?;
    let list = consumer.committed_offsets(list, ANSWER_WITHIN)?;
    let mut marks = BTreeMap::new();
    for element in list.elements() {
        element.error()?;
        if let (Offset::Offset(offset), Ok(partition)) =
            (element.offset(), u32::try_from(element.partition()))
        {
            let offset = u64::try_from(offset).unwrap_or_default();
            if let Some(mark) = Mark::read(element.metadata(), offset, handle.born) {
                marks.insert(partition, mark);
            }
        }
    }
    Ok(marks)
}

/// Where partitions begin or end.
pub(super) fn edges<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    handle: &TopicHandle,
    partitions: impl IntoIterator<Item = u32>,
    edge: Offset,
) -> Result<BTreeMap<u32, u64>, KafkaError> {
    let asked = list(handle, partitions, edge)?;
    let deadline = Instant::now() + ANSWER_WITHIN;
    let list = loop {
        let answer = consumer.offsets_for_times(asked.clone(), ANSWER_WITHIN);
        let answer = answer.and_then(|list| {
            let each = list.elements().into_iter().map(|element| element.error());
            each.collect::<Result<(), _>>().map(|()| list)
        });
        match answer {
            // Partitions that were just made, or whose broker was just lost, have no leader yet.
            Err(error) if is_passing(&error) && Instant::now() < deadline => {
                std::thread::sleep(LOOK_AGAIN);
            }
            answer => break answer?,
        }
    };
    let mut edges = BTreeMap::new();
    for element in list.elements() {
        let offset = element.offset().to_raw().unwrap_or_default();
        if let Ok(partition) = u32::try_from(element.partition()) {
            edges.insert(partition, u64::try_from(offset).unwrap_or_default());
        }
    }
    Ok(edges)
}

/// Whether the error passes: the partition has a leader soon, and all brokers know it.
pub(super) fn is_passing(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{
        FencedLeaderEpoch, LeaderNotAvailable, NotLeaderForPartition, ReplicaNotAvailable,
        UnknownLeaderEpoch,
    };
    let code = error.rdkafka_error_code();
    code.is_some_and(|code| {
        [
            FencedLeaderEpoch,
            LeaderNotAvailable,
            NotLeaderForPartition,
            ReplicaNotAvailable,
            UnknownLeaderEpoch,
        ]
        .contains(&code)
    })
}

/// Partitions of a topic, all at one offset.
pub(super) fn list(
    handle: &TopicHandle,
    partitions: impl IntoIterator<Item = u32>,
    offset: Offset,
) -> Result<TopicPartitionList, KafkaError> {
    let mut list = TopicPartitionList::new();
    for partition in partitions {
        let partition = i32::try_from(partition).unwrap_or_default();
        list.add_partition_offset(&handle.name, partition, offset)?;
    }
    Ok(list)
}

impl Ledger for Kafka {
    async fn position(
        &self,
        topic: &TopicName,
        partition: u32,
        group: &str,
    ) -> Result<Option<Position>, BrokerError> {
        if group.starts_with(OF_BUS) {
            let (name, born) = self.birth(topic).await?;
            let entry = settled_entry(&name, partition, group);
            let value = self.catalog.known(&entry);
            return Ok(value.and_then(|value| Settled::read(&value, born)));
        }
        let handle = self.fresh_handle(topic).await?;
        let mut marks = self.marks(&handle, group).await?;
        Ok(marks.remove(&partition).map(|mark| mark.position))
    }

    /// Adds to what a group without members has settled.
    async fn settle(
        &self,
        topic: &TopicName,
        partition: u32,
        group: &str,
        position: Position,
    ) -> Result<(), BrokerError> {
        let (name, born) = self.birth(topic).await?;
        let entry = settled_entry(&name, partition, group);
        let merge = |before: Option<&Value>| {
            let before = before.and_then(|value| Settled::read(value, born));
            let merged = match &before {
                Some(before) => before.merge(&position),
                None => position.clone(),
            };
            (before.as_ref() != Some(&merged)).then(|| Settled::write(&merged, born))
        };
        let changed = self.catalog.change(&entry, merge).await;
        changed
            .map(drop)
            .map_err(|error| self.failed("settling", error))
    }

    async fn peek(
        &self,
        topic: &TopicName,
        partition: u32,
        from: u64,
        most: usize,
    ) -> Result<Vec<Delivered>, BrokerError> {
        let handle = self.handle(topic).await?;
        let (asker, of) = (self.asker.clone(), handle.clone());
        let end = blocking(move || edges(&asker, &of, [partition], Offset::End)).await;
        let end = match end {
            Ok(ends) => ends.get(&partition).copied().unwrap_or(0),
            Err(error) => {
                // It may be gone altogether.
                self.fresh_handle(topic).await?;
                return Err(self.failed("reading records", error));
            }
        };
        self.look(&handle, partition, from, end, most).await
    }

    /// Reads records again. That they are there is known, so there is no need to ask for the end.
    async fn reread(
        &self,
        topic: &TopicName,
        partition: u32,
        range: Range<u64>,
        most: usize,
    ) -> Result<Vec<Delivered>, BrokerError> {
        let handle = self.handle(topic).await?;
        self.look(&handle, partition, range.start, range.end, most)
            .await
    }

    async fn lag(&self, topic: &TopicName, group: &str) -> Result<Vec<Lag>, BrokerError> {
        let handle = self.fresh_handle(topic).await?;
        let marks = self.marks(&handle, group).await?;
        let (asker, of) = (self.asker.clone(), handle.clone());
        let asking = blocking(move || {
            let all = || of.topic.partitions().iter();
            let ends = edges(&asker, &of, all(), Offset::End)?;
            Ok((edges(&asker, &of, all(), Offset::Beginning)?, ends))
        });
        let (begins, ends) = asking
            .await
            .map_err(|error| self.failed("counting records", error))?;
        let mut lags = Vec::new();
        for partition in handle.topic.partitions().iter() {
            let begin = begins.get(&partition).copied().unwrap_or(0);
            let end = ends.get(&partition).copied().unwrap_or(0);
            let mark = marks.get(&partition);
            let position = mark.map_or_else(|| Position::at(0), |mark| mark.position.clone());
            let position = position.merge(&Position::at(begin));
            lags.push(self.lag_of(&handle, partition, &position, end).await?);
        }
        Ok(lags)
    }
}

impl Kafka {
    async fn marks(
        &self,
        handle: &Arc<TopicHandle>,
        group: &str,
    ) -> Result<BTreeMap<u32, Mark>, BrokerError> {
        let observer = self.observer(&self.names.group(&handle.name, group))?;
        let of = handle.clone();
        let asking = blocking(move || {
            while observer.poll(Duration::ZERO).is_some() {}
            committed(&observer, &of, of.topic.partitions().iter())
        });
        let asked = asking.await;
        let mut marks = asked.map_err(|error| self.failed("asking for positions", error))?;
        // Where the next one to join starts, if Kafka has forgotten the group.
        for (partition, low) in self.last_remembered(handle, group) {
            let remembered = || Mark::at(low, handle.born);
            marks.entry(partition).or_insert_with(remembered);
        }
        Ok(marks)
    }

    async fn lag_of(
        &self,
        handle: &TopicHandle,
        partition: u32,
        position: &Position,
        end: u64,
    ) -> Result<Lag, BrokerError> {
        let mut lag = Lag {
            partition,
            records: 0,
            oldest: None,
        };
        let done = position.done_above().iter().map(|range| {
            let last = (*range.end()).min(end.saturating_sub(1));
            (last + 1).saturating_sub(*range.start())
        });
        let unsettled = end.saturating_sub(position.low() + done.sum::<u64>());
        if unsettled == 0 {
            return Ok(lag);
        }
        // Some of the offsets may have no record: gaps of compaction, and markers of transactions.
        let is_exact = end - position.low() <= COUNTED;
        let most = if is_exact { usize::MAX } else { 1 };
        let low = position.low();
        let found = self.look(handle, partition, low, end, most).await?;
        let mut left = found
            .iter()
            .filter(|delivered| !position.is_done(delivered.offset));
        let Some(oldest) = left.next() else {
            if !is_exact && !found.is_empty() {
                lag.records = unsettled;
            }
            return Ok(lag);
        };
        lag.records = if is_exact {
            1 + left.count() as u64
        } else {
            unsettled
        };
        let age = now_ms().saturating_sub(oldest.record.timestamp_ms);
        lag.oldest = Some(Duration::from_millis(u64::try_from(age).unwrap_or(0)));
        Ok(lag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settle::Tracker;

    #[test]
    fn the_fixture_of_an_entry_is_what_is_read_and_written() {
        let mut tracker = Tracker::resume(Position::at(5));
        for offset in [5, 9, 12] {
            tracker.deliver(offset);
        }
        tracker.done(9);
        let position = tracker.position();
        let written = Settled::write(&position, 7).to_string();
        let text = fixtures::text("kafka-settled-entry-1.json", || written.clone() + "\n");
        assert_eq!(written, text.trim());
        let value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(Settled::read(&value, 7), Some(position));
        assert_eq!(Settled::read(&value, 8), None, "of another topic");
    }
}
