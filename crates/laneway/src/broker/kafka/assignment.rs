//! A partition that the group has assigned to this member.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::consumer::base_consumer::PartitionQueue;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::commits::Commits;
use super::consumer::{Client, GroupContext};
use super::mark::{Mark, Owner, ROOM};
use super::reader::PartitionReader;
use super::topics::TopicHandle;
use crate::broker::lease::Lease;
use crate::broker::ownership::Ownership;
use crate::broker::{Assignment, BoxFuture, BrokerError, Reader};
use crate::settle::Position;

/// What is fetched of a partition.
pub(super) struct Fetched {
    pub(super) queue: PartitionQueue<GroupContext>,
    // IMPORTANT: declared after `queue`, so that the queue is dropped while a client exists: librdkafka requires it.
    pub(super) client: Arc<Client>,
    /// One past the last record that was given to the bus.
    pub(super) given: u64,
    /// The client has handed out everything below.
    handed_out: u64,
    /// How often the client has told of it since it was taken.
    told: u32,
}

impl Fetched {
    /// Splits a partition off from what the client hands out.
    pub(super) fn split(
        client: &Arc<Client>,
        handle: &TopicHandle,
        partition: u32,
    ) -> Option<Self> {
        let number = i32::try_from(partition).unwrap_or_default();
        let queue = client.split_partition_queue(&handle.name, number)?;
        Some(Self {
            queue,
            client: client.clone(),
            given: 0,
            handed_out: 0,
            told: 0,
        })
    }
}

/// A partition that the group gave us.
pub(super) struct OwnedPartition {
    pub(super) handle: Arc<TopicHandle>,
    pub(super) partition: u32,
    pub(super) lease: Lease,
    /// What is fetched of it. Dropped when the partition is released or lost: it would take records
    /// from the queue of the next assignment.
    pub(super) fetched: Mutex<Option<Fetched>>,
    /// There is something in the queue.
    pub(super) arrived: Arc<Notify>,
    /// What was committed last; nothing until it was taken.
    pub(super) mark: Mutex<Option<Mark>>,
    /// Whether it has been read before.
    is_read: AtomicBool,
    /// Tells the membership that this has changed.
    changed: Arc<Notify>,
}

impl OwnedPartition {
    pub(super) fn new(
        handle: Arc<TopicHandle>,
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
            handle,
            partition,
            // Not valid before something was committed.
            lease: Lease::until(Instant::now()),
            fetched: Mutex::new(fetched),
            arrived,
            mark: Mutex::default(),
            is_read: AtomicBool::new(false),
            changed,
        }
    }

    /// Whether the bus has it.
    pub(super) fn is_taken(&self) -> bool {
        self.mark.lock().is_some()
    }

    /// Whether nothing of it runs any more, and nothing is committed.
    pub(super) fn is_over(&self) -> bool {
        self.lease.ownership().is_over()
    }

    /// Whether the group may have given it to another member.
    pub(super) fn is_lost(&self) -> bool {
        self.lease.ownership() == Ownership::Lost
    }

    pub(super) fn lose(&self) {
        self.lease.lose();
        self.end();
    }

    /// Everything below an offset was handed out, says the client.
    ///
    /// What it says may be from before it was sent here, and be about offsets that do not exist any more. So the
    /// first time since the partition was taken does not count; the next is some seconds later.
    pub(super) fn handed_out(&self, below: u64) {
        if !self.is_taken() {
            return;
        }
        if let Some(fetched) = &mut *self.fetched.lock() {
            fetched.told += 1;
            if fetched.told > 1 {
                fetched.handed_out = below;
            }
        }
    }

    /// A position, moved past offsets without a record if it is at the end of what there is: markers of
    /// transactions, ones that were aborted, tombstones. Else the tools of Kafka would show the
    /// group as behind for ever.
    ///
    /// The client says that it has handed out everything below an offset when nothing waits in its queue. What was
    /// taken from the queue before that is noted under the lock that both hold, so [`given`](Fetched::given) has
    /// heard of it. If the position is past that, all of it is settled.
    pub(super) fn at_the_end(&self, position: Position) -> Position {
        let fetched = self.fetched.lock();
        let Some(fetched) = &*fetched else {
            return position;
        };
        let is_all_done = position.done_above().is_empty() && position.low() >= fetched.given;
        if is_all_done && fetched.handed_out > position.low() {
            return Position::at(fetched.handed_out);
        }
        position
    }

    fn end(&self) {
        // Dropped after the lock.
        let fetched = self.fetched.lock().take();
        drop(fetched);
        self.changed.notify_one();
    }

    pub(super) fn not_ours(&self) -> BrokerError {
        BrokerError::NotOurs {
            topic: self.handle.topic.name().clone(),
            partition: self.partition,
        }
    }
}

/// The assignment that the bus has.
pub(super) struct PartitionAssignment {
    pub(super) owned: Arc<OwnedPartition>,
    pub(super) epoch: u64,
    pub(super) position: Position,
    pub(super) owner: Owner,
    pub(super) commits: Arc<Commits>,
}

impl PartitionAssignment {
    /// Commits a mark without an owner: the next process with this instance name need not wait for a session then.
    async fn disown(&self) {
        let mark = self.owned.mark.lock().clone();
        if let Some(mark) = mark.filter(|_| self.owner.has_name()) {
            let owner = Owner::NONE;
            let mark = Mark { owner, ..mark };
            // If it fails, that process waits for as long as after a crash.
            let _ = self.commits.commit(&self.owned, mark).await;
        }
    }
}

/// A process of the same name that does not find the partition disowned waits for as long as after a crash.
const DISOWN_WITHIN: Duration = Duration::from_secs(2);

/// Releases a partition when it is dropped.
struct Released<'a>(&'a OwnedPartition);

impl Drop for Released<'_> {
    fn drop(&mut self) {
        self.0.lease.release();
        self.0.end();
    }
}

impl Assignment for PartitionAssignment {
    fn partition(&self) -> u32 {
        self.owned.partition
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

    fn lease(&self) -> &Lease {
        &self.owned.lease
    }

    fn read(&self) -> Box<dyn Reader> {
        let is_again = self.owned.is_read.swap(true, Ordering::SeqCst);
        let next = self.position.low();
        Box::new(PartitionReader::new(self.owned.clone(), next, is_again))
    }

    fn commit(&self, position: Position) -> BoxFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            let mark = Mark {
                epoch: self.epoch,
                born: self.owned.handle.born,
                owner: self.owner,
                position,
            };
            self.commits.commit(&self.owned, mark).await.map(drop)
        })
    }

    fn lose(&self) {
        self.owned.lose();
    }

    fn release(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.owned.lease.revoke();
            // IMPORTANT: after `disown`: `Commits::commit` refuses what is released. And in any case, also when the caller
            // gives up: the group is not answered before all that it revokes is released.
            let _released = Released(&self.owned);
            let _ = timeout(DISOWN_WITHIN, self.disown()).await;
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topic::Topic;

    /// A partition whose next owner waits until this one is disowned.
    fn assigned() -> (PartitionAssignment, Arc<Notify>) {
        let handle = TopicHandle {
            topic: Topic::domain("orders").build().unwrap(),
            name: "orders".to_owned(),
            born: 1,
            is_foreign: false,
        };
        let changed = Arc::new(Notify::new());
        let owned = OwnedPartition::new(Arc::new(handle), 0, None, changed.clone());
        *owned.mark.lock() = Some(Mark::at(0, 1));
        let assignment = PartitionAssignment {
            owned: Arc::new(owned),
            epoch: 1,
            position: Position::at(0),
            owner: Owner::new(Some("one")),
            commits: Arc::new(Commits::unsent()),
        };
        (assignment, changed)
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_that_is_given_up_leaves_no_partition_draining() {
        let (assignment, changed) = assigned();
        let patience = DISOWN_WITHIN / 2;
        let released = timeout(patience, assignment.release()).await;
        assert!(released.is_err(), "no broker answers");
        assert_eq!(assignment.lease().ownership(), Ownership::Released);
        // The membership answers the group now.
        let told = timeout(patience, changed.notified()).await;
        assert!(told.is_ok(), "nobody is told");
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_waits_for_a_broker_only_so_long() {
        let (assignment, _changed) = assigned();
        let released = timeout(2 * DISOWN_WITHIN, assignment.release()).await;
        assert!(released.is_ok());
        assert_eq!(assignment.lease().ownership(), Ownership::Released);
    }
}
