//! The embedded brokers, `memory:` and `file:DIR`: one broker over two kinds of store.
//!
//! | file | what it is |
//! |---|---|
//! | `store` | what a storage engine must offer: topics, logs, positions |
//! | `memory` | a store in memory |
//! | `file` | a store on disk |
//! | `finish` | appends that go on when their caller gives up |
//! | `member` | a group at a topic |
//! | `logs` | logs of raw records, read without a group |
//! | `reader` | reads a log for a group, and waits at its end |
//! | `retention` | removes what is too old or too much |
//!
//! Topics with [`Storage::Memory`] live in a memory store in either broker; only their declaration
//! is kept on disk by `file:`.

#[cfg(feature = "file")]
pub(crate) mod file;
pub(crate) mod finish;
#[cfg(feature = "log")]
mod logs;
mod member;
mod memory;
mod reader;
mod retention;
mod store;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{RwLock, watch};
use tokio::task::AbortHandle;

#[cfg(feature = "file")]
pub use self::file::FileLimits;
#[cfg(feature = "file")]
pub(crate) use self::file::FileStore;
pub(crate) use self::store::{Log, Store};

use self::finish::Finish;
#[cfg(feature = "log")]
use self::logs::Life;
use self::member::{Held, OnlyMember};
use self::memory::MemoryStore;
#[cfg(feature = "log")]
use super::log::Logs;
use super::subscriptions::Subscriptions;
use super::{BoxFuture, Broker, BrokerError, Lag, Member, Offsets, Start, subscribe_once};
use crate::planted::planted;
use crate::record::{Delivered, Record};
use crate::settle::Position;
use crate::supervise::supervise;
use crate::time::now_ms;
use crate::topic::{
    Compression, Decision, Growth, Kind, Storage, Strategy, Topic, TopicName, reconcile,
};

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
    /// Which group reads which topic, so that none does so twice.
    subscriptions: Subscriptions,
    closed: AtomicBool,
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
    /// Whether it is there, for those who read it without a group.
    #[cfg(feature = "log")]
    life: watch::Sender<Life>,
}

impl Partition {
    async fn append(self: Arc<Self>, records: Vec<Record>) -> Result<u64, BrokerError> {
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
        Self::over_every(store, retention::EVERY).await
    }

    /// The same, with how often it is looked for what retention removes.
    pub(crate) async fn over_every(
        store: Arc<dyn Store>,
        retain_every: Duration,
    ) -> Result<Self, BrokerError> {
        let inner = Arc::new(Inner {
            durable: store,
            volatile: MemoryStore::default(),
            topics: RwLock::default(),
            subscriptions: Subscriptions::default(),
            closed: AtomicBool::new(false),
        });
        for topic in inner.durable.topics().await? {
            let state = inner.load(topic, Vec::new()).await?;
            let name = state.topic.name().clone();
            inner.topics.write().await.insert(name, state);
        }
        let retained = Arc::downgrade(&inner);
        let task = tokio::spawn(async move {
            supervise("retention", || {
                retention::run(retained.clone(), retain_every)
            })
            .await;
        });
        Ok(Self {
            inner,
            retention: Mutex::new(Some(task.abort_handle())),
        })
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if let Some(task) = self.retention.lock().take() {
            task.abort();
        }
    }
}

impl Inner {
    /// The topic with its partitions. Those that are there already stay the same ones: readers wait
    /// at them.
    async fn load(
        &self,
        topic: Topic,
        mut partitions: Vec<Arc<Partition>>,
    ) -> Result<Arc<TopicState>, BrokerError> {
        let store: &dyn Store = match topic.storage() {
            Storage::File => &*self.durable,
            Storage::Memory => &self.volatile,
        };
        for partition in topic.partitions().iter().skip(partitions.len()) {
            let log = store.log(topic.name(), partition).await?;
            let end = watch::Sender::new(log.span().end);
            partitions.push(Arc::new(Partition {
                log,
                end,
                #[cfg(feature = "log")]
                life: watch::Sender::new(Life::Open),
            }));
        }
        Ok(Arc::new(TopicState { topic, partitions }))
    }

    fn check_open(&self) -> Result<(), BrokerError> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(BrokerError::Closed);
        }
        Ok(())
    }

    async fn topic(&self, name: &TopicName) -> Result<Arc<TopicState>, BrokerError> {
        self.check_open()?;
        let topics = self.topics.read().await;
        find(&topics, name)
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

    /// Once begun it goes on when its caller gives up: the store and the broker must know the same topics.
    async fn declare(
        self: Arc<Self>,
        declared: Topic,
        strategy: Strategy,
        growth: Growth,
    ) -> Result<Topic, BrokerError> {
        self.check_open()?;
        let declared = &supported(&declared)?;
        // Held throughout, so that two declarations of one topic meet, and no member joins meanwhile.
        let mut topics = self.topics.write().await;
        let existing = topics.get(declared.name());
        let existing_topic = existing.map(|state| &state.topic);
        let (topic, partitions) = match (
            reconcile(declared, existing_topic, strategy, growth)?,
            existing,
        ) {
            (Decision::Keep, _) => return Ok(existing_topic.unwrap_or(declared).clone()),
            (Decision::Update(differences), Some(existing)) => {
                let topic = existing.topic.clone().updated(&differences);
                if topic.partitions() != existing.topic.partitions() {
                    // Those who read now would never look into the new partitions.
                    self.check_unread(topic.name())?;
                }
                (topic, existing.partitions.clone())
            }
            (Decision::Create | Decision::Update(_), _) => (declared.clone(), Vec::new()),
        };
        self.durable.put_topic(&topic).await?;
        let state = self.load(topic.clone(), partitions).await?;
        topics.insert(topic.name().clone(), state);
        Ok(topic)
    }

    /// Once begun it goes on when its caller gives up, as [`declare`](Self::declare) does.
    async fn delete(self: Arc<Self>, name: TopicName) -> Result<(), BrokerError> {
        let name = &name;
        self.check_open()?;
        let mut topics = self.topics.write().await;
        find(&topics, name)?;
        self.check_unread(name)?;
        self.durable.remove_topic(name).await?;
        self.volatile.remove_topic(name).await?;
        #[cfg(feature = "log")]
        let removed = topics.get(name).cloned();
        topics.remove(name);
        #[cfg(feature = "log")]
        if let Some(removed) = removed {
            // A follower that is told waits for the lock, and finds it gone.
            removed.end(Life::Deleted);
        }
        Ok(())
    }

    fn check_unread(&self, topic: &TopicName) -> Result<(), BrokerError> {
        match self.subscriptions.group_reading(topic) {
            None => Ok(()),
            Some(group) => Err(BrokerError::InUseBy {
                topic: topic.clone(),
                group,
            }),
        }
    }

    async fn join(
        self: &Arc<Self>,
        name: &TopicName,
        group: &str,
        start: Start,
    ) -> Result<Box<dyn Member>, BrokerError> {
        self.check_open()?;
        // Held until it is a member: the topic must not change in between.
        let topics = self.topics.read().await;
        let topic = find(&topics, name)?;
        let guard = Arc::new(subscribe_once(&self.subscriptions, name, group)?);
        drop(topics);
        let mut positions = Vec::with_capacity(topic.partitions.len());
        for partition in &topic.partitions {
            positions.push(partition.log.position(group).await?);
        }
        // To a group that has read before, a partition without a position is a new one. That it has tells the first
        // partition, which gets its position last: a first join that dies before that was none.
        let start = if positions.first().is_some_and(Option::is_some) {
            Start::Earliest
        } else {
            start
        };
        let epoch = next_epoch(&topic, group).await?;
        let mut held = VecDeque::with_capacity(positions.len());
        let partitions: Vec<_> = (0..).zip(&topic.partitions).zip(positions).collect();
        for ((number, partition), position) in partitions.into_iter().rev() {
            let position = if let Some(position) = position {
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
            let partition = Held {
                number,
                epoch,
                is_plain: topic.topic.kind() == Kind::Plain,
                group: group.to_owned(),
                partition: partition.clone(),
                _guard: guard.clone(),
            };
            held.push_front((partition, position));
        }
        Ok(Box::new(OnlyMember::new(held)))
    }
}

fn find(
    topics: &HashMap<TopicName, Arc<TopicState>>,
    name: &TopicName,
) -> Result<Arc<TopicState>, BrokerError> {
    topics
        .get(name)
        .cloned()
        .ok_or_else(|| BrokerError::UnknownTopic(name.clone()))
}

/// The topic without what a preset asks for and is not there. There is one copy of everything, and what is
/// compressed is up to the store.
fn supported(declared: &Topic) -> Result<Topic, BrokerError> {
    let topic = declared.where_there_is(|compression| compression == Compression::None);
    let unsupported = |what, instead| {
        Err(BrokerError::Unsupported {
            topic: topic.name().clone(),
            what,
            instead,
        })
    };
    match (topic.compression(), topic.replicas()) {
        (Some(other), _) if other != Compression::None => {
            unsupported(format!("compression {other}"), "none, or no compression")
        }
        (_, Some(copies)) if copies > 1 => {
            unsupported(format!("{copies} replicas"), "1, or no replicas")
        }
        _ => Ok(topic),
    }
}

/// Counts how often a group has joined a topic. It is kept as a position of a group of its own, so
/// that it goes on after a restart: a count that began anew would make the new owner look stale to
/// those who fence by it.
async fn next_epoch(topic: &TopicState, group: &str) -> Result<u64, BrokerError> {
    let Some(first) = topic.partitions.first() else {
        return Ok(1);
    };
    let counter = format!("laneway-epoch:{group}");
    let last = first.log.position(&counter).await?;
    let epoch = last.map_or(0, |position| position.low()) + 1;
    first
        .log
        .save_position(&counter, &Position::at(epoch))
        .await?;
    Ok(epoch)
}

impl Broker for Embedded {
    fn declare<'a>(
        &'a self,
        topic: &'a Topic,
        strategy: Strategy,
        growth: Growth,
    ) -> BoxFuture<'a, Result<Topic, BrokerError>> {
        let declaring = self.inner.clone().declare(topic.clone(), strategy, growth);
        Box::pin(Finish::new(declaring))
    }

    fn describe<'a>(
        &'a self,
        topic: &'a TopicName,
    ) -> BoxFuture<'a, Result<Option<Topic>, BrokerError>> {
        Box::pin(async move {
            self.inner.check_open()?;
            let topics = self.inner.topics.read().await;
            Ok(topics.get(topic).map(|state| state.topic.clone()))
        })
    }

    fn topics(&self) -> BoxFuture<'_, Result<Vec<Topic>, BrokerError>> {
        Box::pin(async move {
            self.inner.check_open()?;
            let topics = self.inner.topics.read().await;
            let mut topics: Vec<_> = topics.values().map(|state| state.topic.clone()).collect();
            topics.sort_by(|a, b| a.name().as_str().cmp(b.name().as_str()));
            Ok(topics)
        })
    }

    fn delete<'a>(&'a self, topic: &'a TopicName) -> BoxFuture<'a, Result<(), BrokerError>> {
        let deleting = self.inner.clone().delete(topic.clone());
        if planted("C4") {
            return Box::pin(deleting);
        }
        Box::pin(Finish::new(deleting))
    }

    fn publish<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        records: Vec<Record>,
    ) -> BoxFuture<'a, Result<Offsets, BrokerError>> {
        Box::pin(async move {
            let partition = self.inner.partition(topic, partition).await?;
            let first = Finish::new(partition.append(records)).await?;
            Ok(Offsets::From(first))
        })
    }

    fn join<'a>(
        &'a self,
        topic: &'a TopicName,
        group: &'a str,
        start: Start,
    ) -> BoxFuture<'a, Result<Box<dyn Member>, BrokerError>> {
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

    fn settle<'a>(
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

    #[cfg(feature = "log")]
    fn logs(&self) -> &dyn Logs {
        self
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
        let health = self.inner.check_open();
        Box::pin(std::future::ready(
            health.and_then(|()| self.inner.durable.health()),
        ))
    }

    fn close(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            self.inner.closed.store(true, Ordering::SeqCst);
            #[cfg(feature = "log")]
            for topic in self.inner.topics.read().await.values() {
                topic.end(Life::Closed);
            }
            if let Some(task) = self.retention.lock().take() {
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
    // What retention has taken counts no more, done or not.
    let mut oldest = position.low().max(span.start);
    let mut records = span.end.saturating_sub(oldest);
    for range in position.done_above() {
        let (start, end) = ((*range.start()).max(oldest), range.end().saturating_add(1));
        records = records.saturating_sub(end.saturating_sub(start));
        if start == oldest {
            oldest = oldest.max(end);
        }
    }
    let oldest = match records {
        0 => None,
        _ => log.read(oldest, 1).await?.first().map(age_of),
    };
    Ok(Lag {
        partition: number,
        records,
        oldest,
    })
}

fn age_of(delivered: &Delivered) -> Duration {
    let age = now_ms().saturating_sub(delivered.record.timestamp_ms);
    Duration::from_millis(u64::try_from(age).unwrap_or(0))
}
