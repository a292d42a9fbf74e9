//! A partition that is ours, as far as the group says so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rdkafka::consumer::base_consumer::PartitionQueue;
use tokio::sync::Notify;

use super::cluster::lock;
use super::commits::Commits;
use super::consumer::{Client, GroupContext};
use super::mark::{Mark, ROOM};
use super::reader::PartitionReader;
use super::topics::Place;
use crate::broker::tenure::{Standing, Tenure};
use crate::broker::{BoxFuture, BrokerError, Claim, Reader};
use crate::settle::Position;

/// What is fetched of a partition.
pub(super) struct Fetched {
    pub(super) queue: PartitionQueue<GroupContext>,
    // IMPORTANT: after the queue. It has the client, too, but would let it go before itself, and must not
    // be the last that has it.
    _client: Arc<Client>,
}

impl Fetched {
    /// Splits a partition off from what the client hands out.
    pub(super) fn split(client: &Arc<Client>, place: &Place, partition: u32) -> Option<Self> {
        let number = i32::try_from(partition).unwrap_or_default();
        let queue = client.split_partition_queue(&place.name, number)?;
        Some(Self {
            queue,
            _client: client.clone(),
        })
    }
}

/// A partition that the group gave us.
pub(super) struct Holding {
    pub(super) place: Arc<Place>,
    pub(super) partition: u32,
    pub(super) tenure: Tenure,
    /// What is fetched of it. Gone when we are done with it: it would take from whoever has it next.
    pub(super) fetched: Mutex<Option<Fetched>>,
    /// There is something in the queue.
    pub(super) arrived: Arc<Notify>,
    /// What was committed last; nothing until it was taken.
    pub(super) mark: Mutex<Option<Mark>>,
    /// The bus has done with it.
    is_released: AtomicBool,
    /// Tells the membership that this has changed.
    changed: Arc<Notify>,
}

impl Holding {
    pub(super) fn new(
        place: Arc<Place>,
        partition: u32,
        mut fetched: Option<Fetched>,
        changed: Arc<Notify>,
    ) -> Self {
        let arrived = Arc::new(Notify::new());
        if let Some(Fetched { queue, .. }) = &mut fetched {
            let arrived = arrived.clone();
            queue.set_nonempty_callback(move || arrived.notify_one());
        }
        Self {
            place,
            partition,
            // Not sure of it before something was committed.
            tenure: Tenure::until(Instant::now()),
            fetched: Mutex::new(fetched),
            arrived,
            mark: Mutex::default(),
            is_released: AtomicBool::new(false),
            changed,
        }
    }

    /// Whether the bus has it.
    pub(super) fn is_taken(&self) -> bool {
        lock(&self.mark).is_some()
    }

    /// Whether nothing of it runs any more, and nothing is committed.
    pub(super) fn is_over(&self) -> bool {
        self.is_released.load(Ordering::SeqCst) || self.is_lost()
    }

    /// Whether we may not have it any more.
    pub(super) fn is_lost(&self) -> bool {
        self.tenure.standing() == Standing::Lost
    }

    pub(super) fn lose(&self) {
        self.tenure.lose();
        self.end();
    }

    fn end(&self) {
        // Dropped after the lock.
        let fetched = lock(&self.fetched).take();
        drop(fetched);
        self.changed.notify_one();
    }

    pub(super) fn not_ours(&self) -> BrokerError {
        BrokerError::NotOurs {
            topic: self.place.topic.name().clone(),
            partition: self.partition,
        }
    }
}

/// The claim that the bus has.
pub(super) struct PartitionClaim {
    pub(super) holding: Arc<Holding>,
    pub(super) epoch: u64,
    pub(super) position: Position,
    pub(super) commits: Arc<Commits>,
}

impl Claim for PartitionClaim {
    fn partition(&self) -> u32 {
        self.holding.partition
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn position(&self) -> &Position {
        &self.position
    }

    fn room(&self) -> Option<usize> {
        Some(ROOM)
    }

    fn tenure(&self) -> &Tenure {
        &self.holding.tenure
    }

    fn read(&self) -> Box<dyn Reader> {
        Box::new(PartitionReader::new(
            self.holding.clone(),
            self.position.low(),
        ))
    }

    fn commit(&self, position: Position) -> BoxFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            let mark = Mark {
                epoch: self.epoch,
                born: self.holding.place.born,
                position,
            };
            self.commits.commit(&self.holding, mark).await.map(drop)
        })
    }

    fn release(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.holding.tenure.want();
            self.holding.is_released.store(true, Ordering::SeqCst);
            self.holding.end();
        })
    }
}
