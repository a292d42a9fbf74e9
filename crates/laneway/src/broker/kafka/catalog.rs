//! What the bus keeps about topics, in a compacted topic of its own.
//!
//! Kafka has no place for what a topic is declared to be, and forgets what an idle group has committed.
//! So both are entries of a log with one partition, `laneway.catalog`, which every process reads to its end
//! before answering.
//!
//! # Compare and set, on a log
//!
//! Kafka appends without looking. So a change is a *proposal*: it names the entry, its new value, and as its
//! *base* the offset of the proposal that its author took for the current one. Of all proposals for an
//! entry, the one with the highest base counts; of several with the same base, the first in the log.
//!
//! - [`Catalog::change`] reads to the end, appends a proposal, and reads on to it: if it counts, the change was made; if
//!   not, another process was faster, and it begins anew.
//! - The base of a proposal is one that counted when it was read. So the proposals that ever counted are a
//!   chain: each is the first in the log whose base is the one before. Nothing that counted is overwritten
//!   by a process that had not read it.
//! - Every proposal has a key of its own. The log is compacted, which removes proposals whose key has been
//!   written again, as empty. The author of a proposal does that: for its own if it did not count, and
//!   for the one before it if it did. What is removed is thus never the current one, and without
//!   it the current one has the highest base all the same.
//!
//! None of this needs a clock, a lock or a transaction.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use parking_lot::Mutex;
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::client::{ANSWER_WITHIN, Telling};
use super::range_reader::RangeReader;

/// Others change an entry at the same time, and each time one of them gets through.
const TRIES: usize = 100;

/// What is in the log.
#[derive(Debug, Serialize, Deserialize)]
struct Proposal {
    entry: String,
    /// The offset of the proposal that it follows; -1 for none.
    base: i64,
    /// Null for an entry that is to be gone.
    value: Value,
}

/// An entry, as it is.
#[derive(Clone, Debug, PartialEq)]
struct Current {
    key: String,
    base: i64,
    offset: i64,
    value: Value,
}

/// The proposals that count.
#[derive(Debug, Default)]
struct Entries(HashMap<String, Current>);

impl Entries {
    /// Notes the next proposal in the log; answers whether it counts.
    fn note(&mut self, key: &str, proposal: Proposal, offset: i64) -> bool {
        let known = self.0.get(&proposal.entry);
        if known.is_some_and(|known| proposal.base <= known.base) {
            return false;
        }
        let current = Current {
            key: key.to_owned(),
            base: proposal.base,
            offset,
            value: proposal.value,
        };
        self.0.insert(proposal.entry, current);
        true
    }
}

pub(super) struct Catalog {
    topic: String,
    producer: FutureProducer<Telling>,
    log: Arc<Mutex<Log>>,
}

/// What was read of the log.
struct Log {
    topic: String,
    reader: RangeReader,
    next: i64,
    entries: Entries,
    /// Proposals of ours, by their keys, and whether they counted when they were read.
    awaited: HashMap<String, bool>,
}

impl Catalog {
    /// Over a topic that exists.
    pub(super) fn new(
        topic: String,
        producer: FutureProducer<Telling>,
        consumer: BaseConsumer<Telling>,
    ) -> Self {
        let log = Log {
            topic: topic.clone(),
            reader: RangeReader::new(consumer),
            next: 0,
            entries: Entries::default(),
            awaited: HashMap::new(),
        };
        Self {
            topic,
            producer,
            log: Arc::new(Mutex::new(log)),
        }
    }

    /// An entry as it is now.
    pub(super) async fn read(&self, entry: &str) -> Result<Option<Value>, KafkaError> {
        self.read_on().await?;
        Ok(self.known(entry))
    }

    /// An entry as it was when the log was last read.
    pub(super) fn known(&self, entry: &str) -> Option<Value> {
        let value = self.current(entry).map(|current| current.value);
        value.filter(|value| !value.is_null())
    }

    /// All entries whose names begin so.
    pub(super) async fn all(&self, prefix: &str) -> Result<Vec<Value>, KafkaError> {
        self.read_on().await?;
        let log = self.log.lock();
        let there = log
            .entries
            .0
            .iter()
            .filter(|(entry, current)| entry.starts_with(prefix) && !current.value.is_null());
        Ok(there.map(|(_, current)| current.value.clone()).collect())
    }

    /// The names of all entries that begin so, as of when the log was last read.
    pub(super) fn names(&self, prefix: &str) -> Vec<String> {
        let log = self.log.lock();
        let there = log.entries.0.iter();
        let there =
            there.filter(|(entry, current)| entry.starts_with(prefix) && !current.value.is_null());
        there.map(|(entry, _)| entry.clone()).collect()
    }

    /// Changes an entry to what is made of it as it is, unless that is nothing. Answers whether it was
    /// changed. Begins with the entry as it was last read: if that is not how it is, the change does not
    /// count and is made anew.
    pub(super) async fn change(
        &self,
        entry: &str,
        make: impl Fn(Option<&Value>) -> Option<Value>,
    ) -> Result<bool, KafkaError> {
        for _ in 0..TRIES {
            let before = self.current(entry);
            let value = before.as_ref().map(|before| &before.value);
            let Some(value) = make(value.filter(|value| !value.is_null())) else {
                return Ok(false);
            };
            let proposal = Proposal {
                entry: entry.to_owned(),
                base: before.as_ref().map_or(-1, |before| before.offset),
                value,
            };
            let key = format!("{entry}#{}", Uuid::now_v7().simple());
            self.log.lock().awaited.insert(key.clone(), false);
            let appended = self.append(&key, &proposal).await;
            let read = self.read_on().await;
            let has_counted = self.log.lock().awaited.remove(&key);
            appended?;
            read?;
            if has_counted == Some(true) {
                self.clear(before.map(|before| before.key));
                return Ok(true);
            }
            self.clear(Some(key));
        }
        Err(KafkaError::MessageProduction(
            RDKafkaErrorCode::OperationTimedOut,
        ))
    }

    async fn append(&self, key: &str, proposal: &Proposal) -> Result<(), KafkaError> {
        let payload = serde_json::to_vec(proposal).unwrap_or_default();
        let record = FutureRecord::to(&self.topic)
            .partition(0)
            .key(key)
            .payload(&payload);
        let sent = self.producer.send(record, ANSWER_WITHIN).await;
        sent.map(drop).map_err(|(error, _)| error)
    }

    /// Removes a proposal that does not count any more, some time. If that fails, it stays and does no harm.
    fn clear(&self, key: Option<String>) {
        let Some(key) = key else {
            return;
        };
        let record: FutureRecord<'_, str, [u8]> =
            FutureRecord::to(&self.topic).partition(0).key(&key);
        drop(self.producer.send_result(record));
    }

    fn current(&self, entry: &str) -> Option<Current> {
        self.log.lock().entries.0.get(entry).cloned()
    }

    /// Reads to the end that the log has now.
    pub(super) async fn read_on(&self) -> Result<(), KafkaError> {
        let log = self.log.clone();
        let reading = tokio::task::spawn_blocking(move || log.lock().read_on());
        reading.await.unwrap_or(Err(KafkaError::Canceled))
    }
}

impl Log {
    fn read_on(&mut self) -> Result<(), KafkaError> {
        let Self {
            topic,
            reader,
            next,
            entries,
            awaited,
        } = self;
        let end = reader.end(topic, 0)?;
        let from = *next;
        if from >= end {
            return Ok(());
        }
        reader.read(topic, 0, from, end, |message| {
            let proposal = message
                .payload()
                .and_then(|payload| serde_json::from_slice(payload).ok());
            let key = message.key().and_then(|key| std::str::from_utf8(key).ok());
            if let (Some(key), Some(proposal)) = (key, proposal) {
                let counts = entries.note(key, proposal, message.offset());
                if let Some(has_counted) = awaited.get_mut(key) {
                    *has_counted = counts;
                }
            }
            *next = message.offset() + 1;
            ControlFlow::Continue(())
        })?;
        *next = end.max(*next);
        // Most of the time nothing changes.
        reader.rest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposal(base: i64, value: i64) -> Proposal {
        Proposal {
            entry: "topic/orders".to_owned(),
            base,
            value: value.into(),
        }
    }

    fn fold(log: &[(i64, i64)]) -> Option<i64> {
        let mut entries = Entries::default();
        for (offset, base) in log {
            entries.note(&offset.to_string(), proposal(*base, *offset), *offset);
        }
        entries.0.get("topic/orders")?.value.as_i64()
    }

    #[test]
    fn the_fixture_of_a_proposal_is_what_is_read_and_written() {
        let proposal = Proposal {
            entry: "topic/orders".to_owned(),
            base: 41,
            value: serde_json::json!({ "any": ["value"] }),
        };
        let written = serde_json::to_string(&proposal).expect("JSON");
        let text = fixtures::text("kafka-proposal-1.json", || written.clone() + "\n");
        assert_eq!(written, text.trim());
        let read: Proposal = serde_json::from_str(&text).expect("a proposal");
        assert_eq!((read.entry, read.base), (proposal.entry, proposal.base));
        assert_eq!(read.value, proposal.value);
    }

    #[test]
    fn of_two_that_saw_the_same_the_first_counts() {
        assert_eq!(fold(&[(0, -1), (1, -1)]), Some(0));
        assert_eq!(fold(&[(0, -1), (3, 0), (4, 0), (5, -1)]), Some(3));
    }

    #[test]
    fn what_was_removed_changes_nothing() {
        // 0 counted, then 3; 1, 4 and 5 were too late. 7 follows 3.
        let log = [(0, -1), (1, -1), (3, 0), (4, 0), (5, -1), (7, 3)];
        // Everything but the current one may be gone, or not.
        for kept in 0_u32..1 << 5 {
            let rest = log.iter().enumerate();
            let rest = rest.filter(|(index, _)| *index == 5 || kept & (1 << index) != 0);
            let rest: Vec<_> = rest.map(|(_, proposal)| *proposal).collect();
            assert_eq!(fold(&rest), Some(7), "{rest:?}");
        }
    }
}
