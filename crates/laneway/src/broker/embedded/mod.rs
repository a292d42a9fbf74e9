//! The embedded brokers, `memory:` and `file:DIR`: one broker over two kinds of store.
//!
//! | file | what it is |
//! |---|---|
//! | `store` | what a storage engine must offer: topics, logs, positions |
//! | `memory` | a store in memory |
//! | `reader` | reads a log for a group, and waits at its end |
//! | `retention` | removes what is too old or too much |
//!
//! Topics with [`Storage::Memory`] live in a memory store in either broker; only their declaration
//! is kept on disk by `file:`.

mod memory;
mod reader;
mod retention;
mod store;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{RwLock, watch};
use tokio::task::AbortHandle;

pub(crate) use self::store::{Log, Store};

use self::memory::MemoryStore;
use self::reader::LogReader;
use super::{BoxFuture, Broker, BrokerError, Lag, Reader, Start};
use crate::record::{Delivered, Record};
use crate::settle::Position;
use crate::topic::{Decision, Growth, Storage, Strategy, Topic, TopicName, reconcile};

/// A broker inside the process.
pub(crate) struct Embedded {
    inner: Arc<Inner>,
    retention: Mutex<Option<AbortHandle>>,
}

struct Inner {
    /// Topic declarations, and the logs of topics that are kept.
    durable: Arc<dyn Store>,
    /// The logs of topics that are not.
    volatile: MemoryStore,
    topics: RwLock<HashMap<TopicName, Arc<TopicState>>>,
    joined: Mutex<Members>,
}

/// Which group reads which topic, so that none does so twice.
#[derive(Default)]
struct Members {
    current: HashSet<(TopicName, String)>,
    /// How often a group has been joined since the process started.
    epochs: HashMap<(TopicName, String), u64>,
}

pub(super) struct TopicState {
    topic: Topic,
    partitions: Vec<Arc<Partition>>,
}

/// A log, and where its readers wait.
pub(super) struct Partition {
    log: Arc<dyn Log>,
    /// One past the last durable record. Readers see nothing beyond it.
    end: watch::Sender<u64>,
}

impl Partition {
    async fn append(&self, records: Vec<Record>) -> Result<u64, BrokerError> {
        let count = records.len() as u64;
        let first = self.log.append(records).await?;
        // Appends may resolve in any order; the end only moves forward.
        self.end.send_if_modified(|end| {
            let moved = first + count > *end;
            *end = (*end).max(first + count);
            moved
        });
        Ok(first)
    }
}

impl Embedded {
    /// A broker in memory.
    pub(crate) async fn in_memory() -> Result<Self, BrokerError> {
        Self::over(Arc::new(MemoryStore::default())).await
    }

    /// A broker over a store, with the topics that the store has.
    pub(crate) async fn over(store: Arc<dyn Store>) -> Result<Self, BrokerError> {
        let inner = Arc::new(Inner {
            durable: store,
            volatile: MemoryStore::default(),
            topics: RwLock::default(),
            joined: Mutex::default(),
        });
        for topic in inner.durable.topics().await? {
            let state = inner.load(topic).await?;
            let name = state.topic.name().clone();
            inner.topics.write().await.insert(name, state);
        }
        let task = tokio::spawn(retention::run(Arc::downgrade(&inner)));
        Ok(Self {
            inner,
            retention: Mutex::new(Some(task.abort_handle())),
        })
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if let Some(task) = lock(&self.retention).take() {
            task.abort();
        }
    }
}

impl Inner {
    async fn load(&self, topic: Topic) -> Result<Arc<TopicState>, BrokerError> {
        let store: &dyn Store = match topic.storage() {
            Storage::File => &*self.durable,
            Storage::Memory => &self.volatile,
        };
        let mut partitions = Vec::new();
        for partition in topic.partitions().iter() {
            let log = store.log(topic.name(), partition).await?;
            let end = watch::Sender::new(log.span().end);
            partitions.push(Arc::new(Partition { log, end }));
        }
        Ok(Arc::new(TopicState { topic, partitions }))
    }

    async fn topic(&self, name: &TopicName) -> Result<Arc<TopicState>, BrokerError> {
        let topics = self.topics.read().await;
        topics
            .get(name)
            .cloned()
            .ok_or_else(|| BrokerError::UnknownTopic(name.clone()))
    }

    async fn partition(
        &self,
        name: &TopicName,
        partition: u32,
    ) -> Result<Arc<Partition>, BrokerError> {
        let topic = self.topic(name).await?;
        topic
            .partitions
            .get(partition as usize)
            .cloned()
            .ok_or_else(|| BrokerError::UnknownTopic(name.clone()))
    }

    async fn declare(
        &self,
        declared: &Topic,
        strategy: Strategy,
        growth: Growth,
    ) -> Result<Topic, BrokerError> {
        // Held throughout, so that two declarations of one topic meet.
        let mut topics = self.topics.write().await;
        let existing = topics.get(declared.name());
        let existing_topic = existing.map(|state| &state.topic);
        match reconcile(declared, existing_topic, strategy, growth)? {
            Decision::Keep => Ok(existing_topic.unwrap_or(declared).clone()),
            Decision::Create | Decision::Update(_) => {
                self.durable.put_topic(declared).await?;
                let state = self.load(declared.clone()).await?;
                topics.insert(declared.name().clone(), state);
                Ok(declared.clone())
            }
        }
    }

    async fn join(
        self: &Arc<Self>,
        name: &TopicName,
        group: &str,
        start: Start,
    ) -> Result<Vec<Box<dyn Reader>>, BrokerError> {
        let topic = self.topic(name).await?;
        let membership = Arc::new(Membership::new(self.clone(), name, group)?);
        let mut readers: Vec<Box<dyn Reader>> = Vec::new();
        for (number, partition) in (0..).zip(&topic.partitions) {
            let position = if let Some(position) = partition.log.position(group).await? {
                position
            } else {
                let span = partition.log.span();
                let position = Position::at(match start {
                    Start::Earliest => span.start,
                    Start::Latest => span.end,
                });
                // Noted at once: "from now on" must mean the same after a restart.
                partition.log.save_position(group, &position).await?;
                position
            };
            readers.push(Box::new(LogReader::new(
                number,
                position,
                partition.clone(),
                membership.clone(),
            )));
        }
        Ok(readers)
    }
}

/// A group's hold on a topic, for as long as one of its readers lives.
pub(super) struct Membership {
    broker: Arc<Inner>,
    key: (TopicName, String),
    epoch: u64,
}

impl Membership {
    fn new(broker: Arc<Inner>, topic: &TopicName, group: &str) -> Result<Self, BrokerError> {
        let key = (topic.clone(), group.to_owned());
        let mut members = lock(&broker.joined);
        if !members.current.insert(key.clone()) {
            return Err(BrokerError::AlreadyJoined {
                topic: topic.clone(),
                group: group.to_owned(),
            });
        }
        let epoch = members.epochs.entry(key.clone()).or_default();
        *epoch += 1;
        let epoch = *epoch;
        drop(members);
        Ok(Self { broker, key, epoch })
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        lock(&self.broker.joined).current.remove(&self.key);
    }
}

impl Broker for Embedded {
    fn declare<'a>(
        &'a self,
        topic: &'a Topic,
        strategy: Strategy,
        growth: Growth,
    ) -> BoxFuture<'a, Result<Topic, BrokerError>> {
        Box::pin(self.inner.declare(topic, strategy, growth))
    }

    fn describe<'a>(
        &'a self,
        topic: &'a TopicName,
    ) -> BoxFuture<'a, Result<Option<Topic>, BrokerError>> {
        Box::pin(async move {
            let topics = self.inner.topics.read().await;
            Ok(topics.get(topic).map(|state| state.topic.clone()))
        })
    }

    fn topics(&self) -> BoxFuture<'_, Result<Vec<Topic>, BrokerError>> {
        Box::pin(async move {
            let topics = self.inner.topics.read().await;
            let mut topics: Vec<_> = topics.values().map(|state| state.topic.clone()).collect();
            topics.sort_by(|a, b| a.name().as_str().cmp(b.name().as_str()));
            Ok(topics)
        })
    }

    fn delete<'a>(&'a self, topic: &'a TopicName) -> BoxFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move {
            let mut topics = self.inner.topics.write().await;
            topics
                .remove(topic)
                .ok_or_else(|| BrokerError::UnknownTopic(topic.clone()))?;
            self.inner.volatile.remove_topic(topic).await?;
            self.inner.durable.remove_topic(topic).await
        })
    }

    fn publish<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        records: Vec<Record>,
    ) -> BoxFuture<'a, Result<u64, BrokerError>> {
        Box::pin(async move {
            let partition = self.inner.partition(topic, partition).await?;
            partition.append(records).await
        })
    }

    fn join<'a>(
        &'a self,
        topic: &'a TopicName,
        group: &'a str,
        start: Start,
    ) -> BoxFuture<'a, Result<Vec<Box<dyn Reader>>, BrokerError>> {
        Box::pin(self.inner.join(topic, group, start))
    }

    fn position<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Option<Position>, BrokerError>> {
        Box::pin(async move {
            let partition = self.inner.partition(topic, partition).await?;
            partition.log.position(group).await
        })
    }

    fn commit<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        group: &'a str,
        position: Position,
    ) -> BoxFuture<'a, Result<(), BrokerError>> {
        Box::pin(async move {
            let partition = self.inner.partition(topic, partition).await?;
            partition.log.save_position(group, &position).await
        })
    }

    fn peek<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        from: u64,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Delivered>, BrokerError>> {
        Box::pin(async move {
            let partition = self.inner.partition(topic, partition).await?;
            partition.log.read(from, most).await
        })
    }

    fn lag<'a>(
        &'a self,
        topic: &'a TopicName,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Lag>, BrokerError>> {
        Box::pin(async move {
            let topic = self.inner.topic(topic).await?;
            let mut lags = Vec::new();
            for (number, partition) in (0..).zip(&topic.partitions) {
                lags.push(lag_of(number, &*partition.log, group).await?);
            }
            Ok(lags)
        })
    }

    fn health(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        Box::pin(std::future::ready(self.inner.durable.health()))
    }

    fn close(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            if let Some(task) = lock(&self.retention).take() {
                task.abort();
            }
            self.inner.durable.close().await
        })
    }
}

async fn lag_of(number: u32, log: &dyn Log, group: &str) -> Result<Lag, BrokerError> {
    let span = log.span();
    let position = log
        .position(group)
        .await?
        .unwrap_or_else(|| Position::at(span.start));
    let low = position.low().max(span.start);
    let done_above: u64 = position
        .done_above()
        .iter()
        .map(|range| range.end() - range.start() + 1)
        .sum();
    let oldest = log.read(low, 1).await?.first().map(|delivered| {
        let age = now_ms().saturating_sub(delivered.record.timestamp_ms);
        Duration::from_millis(u64::try_from(age).unwrap_or(0))
    });
    Ok(Lag {
        partition: number,
        records: span.end.saturating_sub(low).saturating_sub(done_above),
        oldest,
    })
}

pub(crate) fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
