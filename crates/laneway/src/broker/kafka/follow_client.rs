//! Clients that follow logs, and the threads that poll them.
//!
//! One client follows many partitions of a log, each from an offset of its own, and is no member of a group. A partition
//! that is followed twice is followed by two clients. A client that cannot read on from where it is never begins
//! elsewhere: it says so on the queue of the partition, and its follower looks what has happened.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::sync::Notify;

use super::client::{self, Telling};
use super::options::KafkaOptions;

/// Looks this often whether it is to end.
const POLL: Duration = Duration::from_millis(100);

/// The clients that follow logs, by the names of their topics.
#[derive(Default)]
pub(super) struct FollowClients(Mutex<HashMap<String, Vec<Weak<FollowClient>>>>);

impl FollowClients {
    /// Follows a partition from an offset on, by a client that does not follow it yet.
    pub(super) fn follow(
        &self,
        options: &KafkaOptions,
        telling: &Telling,
        topic: &str,
        (partition, from): (u32, u64),
    ) -> Result<FollowedPartition, KafkaError> {
        let mut all = self.0.lock();
        let clients = all.entry(topic.to_owned()).or_default();
        clients.retain(|client| client.strong_count() > 0);
        let free = clients.iter().filter_map(Weak::upgrade);
        let free = free.into_iter().find(|client| client.take(partition));
        let client = if let Some(client) = free {
            client
        } else {
            let client = Arc::new(FollowClient::start(options, telling)?);
            client.take(partition);
            clients.push(Arc::downgrade(&client));
            client
        };
        drop(all);
        FollowedPartition::new(client, topic, partition, from)
    }
}

/// A client that is polled for as long as this is there.
pub(super) struct FollowClient {
    consumer: Arc<BaseConsumer<Telling>>,
    /// The partitions that are followed.
    taken: Mutex<HashSet<u32>>,
    /// When a follower has last looked whether the topic is the same.
    checked: Mutex<Instant>,
    end: Arc<AtomicBool>,
}

impl FollowClient {
    fn start(options: &KafkaOptions, telling: &Telling) -> Result<Self, KafkaError> {
        let telling = telling.of("follower");
        let consumer: BaseConsumer<Telling> =
            client::follower(options).create_with_context(telling)?;
        let consumer = Arc::new(consumer);
        let end = Arc::new(AtomicBool::new(false));
        let (polled, end_now) = (consumer.clone(), end.clone());
        let polling = move || {
            while !end_now.load(Ordering::SeqCst) {
                // Records come on the queues of their partitions.
                if let Some(Err(error)) = polled.poll(POLL) {
                    tracing::debug!(%error, "follower error");
                }
            }
        };
        let thread = thread::Builder::new().name("laneway-kafka-logs".to_owned());
        let spawned = thread.spawn(polling);
        spawned.map_err(|error| KafkaError::ClientCreation(error.to_string()))?;
        Ok(Self {
            consumer,
            taken: Mutex::default(),
            checked: Mutex::new(Instant::now()),
            end,
        })
    }

    fn take(&self, partition: u32) -> bool {
        self.taken.lock().insert(partition)
    }
}

impl Drop for FollowClient {
    fn drop(&mut self) {
        self.end.store(true, Ordering::SeqCst);
    }
}

/// A partition that a client follows, until this is dropped.
pub(super) struct FollowedPartition {
    pub(super) queue: PartitionQueue<Telling>,
    /// There is something in the queue.
    pub(super) arrived: Arc<Notify>,
    list: TopicPartitionList,
    partition: u32,
    // IMPORTANT: declared after `queue`, so that the queue is dropped while a client exists: librdkafka requires it.
    client: Arc<FollowClient>,
}

impl FollowedPartition {
    fn new(
        client: Arc<FollowClient>,
        topic: &str,
        partition: u32,
        from: u64,
    ) -> Result<Self, KafkaError> {
        let number = i32::try_from(partition).unwrap_or_default();
        let queue = client.consumer.split_partition_queue(topic, number);
        let Some(mut queue) = queue else {
            client.taken.lock().remove(&partition);
            let code = RDKafkaErrorCode::UnknownPartition;
            return Err(KafkaError::MessageConsumption(code));
        };
        let arrived = Arc::new(Notify::new());
        let notified = arrived.clone();
        queue.set_nonempty_callback(move || notified.notify_one());
        let mut list = TopicPartitionList::new();
        let from = Offset::Offset(i64::try_from(from).unwrap_or(i64::MAX));
        list.add_partition_offset(topic, number, from)?;
        let followed = Self {
            queue,
            arrived,
            list,
            partition,
            client,
        };
        followed
            .client
            .consumer
            .incremental_assign(&followed.list)?;
        Ok(followed)
    }

    /// Whether it is this follower's turn to look whether the topic is the same: one of those that share a client does.
    pub(super) fn is_to_check(&self, every: Duration) -> bool {
        let mut checked = self.client.checked.lock();
        let is_due = checked.elapsed() >= every;
        if is_due {
            *checked = Instant::now();
        }
        is_due
    }
}

impl Drop for FollowedPartition {
    fn drop(&mut self) {
        if let Err(error) = self.client.consumer.incremental_unassign(&self.list) {
            tracing::debug!(partition = self.partition, %error, "unassigning a followed partition failed");
        }
        self.client.taken.lock().remove(&self.partition);
    }
}
