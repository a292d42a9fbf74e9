//! Logs in memory: for tests, for plain topics, and gone with the process.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::store::{Log, Store};
use crate::broker::{BoxFuture, BrokerError};
use crate::record::{Delivered, Record};
use crate::settle::Position;
use crate::topic::{Topic, TopicName};

#[derive(Default)]
pub(crate) struct MemoryStore {
    topics: Mutex<HashMap<TopicName, Topic>>,
    logs: Mutex<HashMap<(TopicName, u32), Arc<MemoryLog>>>,
}

impl Store for MemoryStore {
    fn topics(&self) -> BoxFuture<'_, Result<Vec<Topic>, BrokerError>> {
        let topics = self.topics.lock().values().cloned().collect();
        Box::pin(std::future::ready(Ok(topics)))
    }

    fn put_topic<'a>(&'a self, topic: &'a Topic) -> BoxFuture<'a, Result<(), BrokerError>> {
        self.topics
            .lock()
            .insert(topic.name().clone(), topic.clone());
        Box::pin(std::future::ready(Ok(())))
    }

    fn remove_topic<'a>(&'a self, topic: &'a TopicName) -> BoxFuture<'a, Result<(), BrokerError>> {
        self.topics.lock().remove(topic);
        self.logs.lock().retain(|(name, _), _| name != topic);
        Box::pin(std::future::ready(Ok(())))
    }

    fn log<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
    ) -> BoxFuture<'a, Result<Arc<dyn Log>, BrokerError>> {
        let log = self
            .logs
            .lock()
            .entry((topic.clone(), partition))
            .or_default()
            .clone();
        Box::pin(std::future::ready(Ok(log as Arc<dyn Log>)))
    }

    fn health(&self) -> Result<(), BrokerError> {
        Ok(())
    }

    fn close(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

#[derive(Default)]
struct MemoryLog(Mutex<Contents>);

#[derive(Default)]
struct Contents {
    /// The offset of the first record in `records`.
    first: u64,
    records: VecDeque<Arc<Record>>,
    bytes: u64,
    positions: HashMap<String, Position>,
}

impl Contents {
    fn next(&self) -> u64 {
        self.first + self.records.len() as u64
    }
}

impl Log for MemoryLog {
    fn append(&self, records: Vec<Record>) -> BoxFuture<'_, Result<u64, BrokerError>> {
        let mut contents = self.0.lock();
        let offset = contents.next();
        for record in records {
            contents.bytes += record.size() as u64;
            contents.records.push_back(Arc::new(record));
        }
        drop(contents);
        Box::pin(std::future::ready(Ok(offset)))
    }

    fn read(&self, from: u64, most: usize) -> BoxFuture<'_, Result<Vec<Delivered>, BrokerError>> {
        let contents = self.0.lock();
        let from = from.max(contents.first);
        let skip = usize::try_from(from - contents.first).unwrap_or(usize::MAX);
        let records = contents
            .records
            .range(skip.min(contents.records.len())..)
            .take(most)
            .zip(from..)
            .map(|(record, offset)| Delivered {
                offset,
                record: record.clone(),
            })
            .collect();
        drop(contents);
        Box::pin(std::future::ready(Ok(records)))
    }

    fn span(&self) -> Range<u64> {
        let contents = self.0.lock();
        contents.first..contents.next()
    }

    fn bytes(&self) -> u64 {
        self.0.lock().bytes
    }

    fn trim(&self, before: u64) -> BoxFuture<'_, Result<(), BrokerError>> {
        let mut contents = self.0.lock();
        while contents.first < before {
            let Some(record) = contents.records.pop_front() else {
                break;
            };
            contents.first += 1;
            contents.bytes -= record.size() as u64;
        }
        // A backlog that is gone must not keep its memory.
        if contents.records.capacity() > 4 * contents.records.len().max(1024) {
            contents.records.shrink_to_fit();
        }
        drop(contents);
        Box::pin(std::future::ready(Ok(())))
    }

    fn save_position<'a>(
        &'a self,
        group: &'a str,
        position: &'a Position,
    ) -> BoxFuture<'a, Result<(), BrokerError>> {
        let mut contents = self.0.lock();
        if let Some(saved) = contents.positions.get_mut(group) {
            if saved.is_behind(position) {
                saved.clone_from(position);
            }
        } else {
            contents
                .positions
                .insert(group.to_owned(), position.clone());
        }
        drop(contents);
        Box::pin(std::future::ready(Ok(())))
    }

    fn position<'a>(
        &'a self,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Option<Position>, BrokerError>> {
        let position = self.0.lock().positions.get(group).cloned();
        Box::pin(std::future::ready(Ok(position)))
    }
}
