//! A partition that its record names this member as the owner of.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, Notify};

use super::bucket::Unchanged;
use super::names;
use super::reader::PartitionReader;
use super::record::GroupRecord;
use super::server::Nats;
use super::topics::TopicHandle;
use crate::broker::lease::Lease;
use crate::broker::ownership::Ownership;
use crate::broker::{Assignment, BoxFuture, BrokerError, Reader};
use crate::settle::Position;

/// A write of ours that was given up may still go through; the next one conflicts with it and reads the record again.
const TRIES: u32 = 20;

/// While such a write is on its way no other goes through: [`OwnedPartition::change`] waits longer with every try.
const ON_ITS_WAY: Duration = Duration::from_millis(2);

/// Between two tries to release a partition.
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// What is needed to change the record of a partition.
pub(super) struct OwnedPartition {
    pub(super) server: Arc<Nats>,
    pub(super) handle: Arc<TopicHandle>,
    pub(super) group: String,
    pub(super) partition: u32,
    /// The id of this member.
    pub(super) owner: String,
    pub(super) epoch: u64,
    pub(super) lease: Lease,
    /// The last known revision of the record, and what it says is settled. Locked during a change, so that changes of
    /// one partition do not overtake each other.
    known: Mutex<(u64, Position)>,
    /// Tells the membership that this assignment has changed.
    changed: Arc<Notify>,
}

impl OwnedPartition {
    #[expect(clippy::too_many_arguments, reason = "they are the fields, each once")]
    pub(super) fn new(
        server: Arc<Nats>,
        handle: Arc<TopicHandle>,
        group: String,
        partition: u32,
        record: &GroupRecord,
        revision: u64,
        valid_until: Instant,
        changed: Arc<Notify>,
    ) -> Self {
        Self {
            server,
            handle,
            group,
            partition,
            owner: record.owner.clone().unwrap_or_default(),
            epoch: record.epoch,
            lease: Lease::until(valid_until),
            known: Mutex::new((revision, record.position.clone())),
            changed,
        }
    }

    /// Whether another member is to have it.
    pub(super) fn is_leaving(&self) -> bool {
        self.lease.ownership() != Ownership::Held
    }

    /// Whether the bus has done with it, and its record still says that it is ours.
    pub(super) fn is_released(&self) -> bool {
        self.lease.ownership() == Ownership::Released
    }

    /// Whether its record names another owner, or none.
    pub(super) fn is_lost(&self) -> bool {
        self.lease.ownership() == Ownership::Lost
    }

    pub(super) fn lose(&self) {
        self.lease.lose();
        self.changed.notify_one();
    }

    pub(super) fn not_ours(&self) -> BrokerError {
        BrokerError::NotOurs {
            topic: self.handle.topic.name().clone(),
            partition: self.partition,
        }
    }

    /// Changes the record by compare-and-set. If it names another owner, the partition is lost.
    async fn change(
        &self,
        owner: Option<&str>,
        position: Option<Position>,
    ) -> Result<(), BrokerError> {
        let mut known = self.known.lock().await;
        if self.is_lost() {
            return Err(self.not_ours());
        }
        let key = names::position_key(self.handle.topic.name(), &self.group, self.partition);
        let position = match position {
            Some(position) if !position.is_behind(&known.1) => position,
            _ => known.1.clone(),
        };
        let record = GroupRecord {
            owner: owner.map(str::to_owned),
            epoch: self.epoch,
            born: self.handle.born,
            position,
        };
        for tries in 1..=TRIES {
            let written = self
                .server
                .groups
                .write(&key, record.encode(), known.0)
                .await;
            match written {
                Ok(revision) => {
                    *known = (revision, record.position);
                    return Ok(());
                }
                Err(Unchanged::Unknown(error)) => return Err(self.server.failed_with(error)),
                // The record was changed by a write of ours that had been given up, or by another owner.
                Err(Unchanged::Conflict) => {
                    let reading =
                        self.server
                            .group_record(&self.handle, &self.group, self.partition);
                    match reading.await? {
                        (Some(found), revision) if self.is_in(&found) => {
                            if revision == known.0 {
                                tokio::time::sleep(ON_ITS_WAY * tries).await;
                            }
                            known.0 = revision;
                        }
                        _ => {
                            self.lose();
                            return Err(self.not_ours());
                        }
                    }
                }
            }
        }
        Err(self
            .server
            .failed("committing", "its record changes all the time"))
    }

    fn is_in(&self, record: &GroupRecord) -> bool {
        record.owner.as_deref() == Some(&self.owner) && record.epoch == self.epoch
    }

    /// Writes a record without an owner: from then on another member may take the partition.
    pub(super) async fn disown(&self) -> Result<(), BrokerError> {
        match self.change(None, None).await {
            Ok(()) => {
                self.lose();
                Ok(())
            }
            // `change` has found the record with another owner.
            Err(BrokerError::NotOurs { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The assignment that the bus has.
pub(super) struct PartitionAssignment {
    pub(super) owned: Arc<OwnedPartition>,
    pub(super) position: Position,
}

impl Assignment for PartitionAssignment {
    fn partition(&self) -> u32 {
        self.owned.partition
    }

    fn epoch(&self) -> u64 {
        self.owned.epoch
    }

    fn position(&self) -> &Position {
        &self.position
    }

    fn lease(&self) -> &Lease {
        &self.owned.lease
    }

    fn read(&self) -> Box<dyn Reader> {
        Box::new(PartitionReader::new(
            self.owned.clone(),
            self.position.low(),
        ))
    }

    fn commit(&self, position: Position) -> BoxFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            let owner = Some(self.owned.owner.as_str());
            self.owned.change(owner, Some(position)).await
        })
    }

    fn lose(&self) {
        self.owned.lose();
    }

    fn release(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            // If this future is dropped, `Membership::finish_releasing` goes on with it.
            self.owned.lease.release();
            while let Err(error) = self.owned.disown().await {
                if let Some(suppressed) = self.owned.server.limiter.allow("release") {
                    tracing::warn!(topic = %self.owned.handle.topic.name(), group = self.owned.group,
                        partition = self.owned.partition, %error, suppressed,
                        "releasing partition failed, retrying");
                }
                if !self.owned.lease.is_valid() {
                    // The server has been away for a lease: other members may evict this one and take it.
                    return;
                }
                tokio::time::sleep(TRY_AGAIN).await;
            }
        })
    }
}
