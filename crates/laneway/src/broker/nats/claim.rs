//! A partition that is ours, as far as its record says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, Notify};

use super::bucket::Unchanged;
use super::names;
use super::reader::PartitionReader;
use super::record::GroupRecord;
use super::server::Server;
use super::topics::Place;
use crate::broker::tenure::{Standing, Tenure};
use crate::broker::{BoxFuture, BrokerError, Claim, Reader};
use crate::settle::Position;

/// A change of ours that was given up may still come through, and then the next one has to look again.
const TRIES: u32 = 20;

/// While it is on its way, nothing else gets through: the longer it takes, the longer we wait.
const ON_ITS_WAY: Duration = Duration::from_millis(2);

/// Between two tries to give a partition away.
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// What is needed to change the record of a partition.
pub(super) struct Holding {
    pub(super) server: Arc<Server>,
    pub(super) place: Arc<Place>,
    pub(super) group: String,
    pub(super) partition: u32,
    /// The member that we are.
    pub(super) owner: String,
    pub(super) epoch: u64,
    pub(super) tenure: Tenure,
    /// The revision of the record that we know, and what it says is settled. Held during a change.
    known: Mutex<(u64, Position)>,
    /// Somebody else shall have it.
    is_leaving: AtomicBool,
    /// The bus has done with it.
    is_released: AtomicBool,
    /// The record says that it is nobody's, or somebody else's.
    is_over: AtomicBool,
    /// Tells the membership that this claim has changed.
    changed: Arc<Notify>,
}

impl Holding {
    #[expect(clippy::too_many_arguments, reason = "they are the fields, each once")]
    pub(super) fn new(
        server: Arc<Server>,
        place: Arc<Place>,
        group: String,
        partition: u32,
        record: &GroupRecord,
        revision: u64,
        sure_until: Instant,
        changed: Arc<Notify>,
    ) -> Self {
        Self {
            server,
            place,
            group,
            partition,
            owner: record.owner.clone().unwrap_or_default(),
            epoch: record.epoch,
            tenure: Tenure::until(sure_until),
            known: Mutex::new((revision, record.position.clone())),
            is_leaving: AtomicBool::new(false),
            is_released: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            changed,
        }
    }

    /// Another member shall have it.
    pub(super) fn want(&self) {
        self.is_leaving.store(true, Ordering::SeqCst);
        self.tenure.want();
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::SeqCst)
    }

    /// Whether the bus has done with it, so that it can be given away.
    pub(super) fn is_released(&self) -> bool {
        self.is_released.load(Ordering::SeqCst)
    }

    /// Whether the membership need not know it any more.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst) || self.tenure.standing() == Standing::Lost
    }

    pub(super) fn lose(&self) {
        self.tenure.lose();
        self.changed.notify_one();
    }

    pub(super) fn not_ours(&self) -> BrokerError {
        BrokerError::NotOurs {
            topic: self.place.topic.name().clone(),
            partition: self.partition,
        }
    }

    /// Changes the record, which must still say that it is ours.
    async fn change(
        &self,
        owner: Option<&str>,
        position: Option<Position>,
    ) -> Result<(), BrokerError> {
        let mut known = self.known.lock().await;
        if self.is_over() {
            return Err(self.not_ours());
        }
        let key = names::position_key(self.place.topic.name(), &self.group, self.partition);
        let position = match position {
            Some(position) if !position.is_behind(&known.1) => position,
            _ => known.1.clone(),
        };
        let record = GroupRecord {
            owner: owner.map(str::to_owned),
            epoch: self.epoch,
            born: self.place.born,
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
                Err(Unchanged::Unknown(trouble)) => return Err(self.server.trouble(trouble)),
                // It was one of our own that had been given up, or it is somebody else's.
                Err(Unchanged::Conflict) => {
                    let reading =
                        self.server
                            .group_record(&self.place, &self.group, self.partition);
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

    /// Says in the record that it is nobody's.
    pub(super) async fn give_away(&self) -> Result<(), BrokerError> {
        match self.change(None, None).await {
            Ok(()) => {
                self.is_over.store(true, Ordering::SeqCst);
                self.changed.notify_one();
                Ok(())
            }
            // Then it is not ours in any case.
            Err(BrokerError::NotOurs { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The claim that the bus has.
pub(super) struct PartitionClaim {
    pub(super) holding: Arc<Holding>,
    pub(super) position: Position,
}

impl Claim for PartitionClaim {
    fn partition(&self) -> u32 {
        self.holding.partition
    }

    fn epoch(&self) -> u64 {
        self.holding.epoch
    }

    fn position(&self) -> &Position {
        &self.position
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
            let owner = Some(self.holding.owner.as_str());
            self.holding.change(owner, Some(position)).await
        })
    }

    fn release(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            // If we are not let finish, the membership goes on with it.
            self.holding.want();
            self.holding.is_released.store(true, Ordering::SeqCst);
            while let Err(error) = self.holding.give_away().await {
                tracing::warn!(partition = self.holding.partition, %error,
                    "a partition could not be given away; it is tried again");
                tokio::time::sleep(TRY_AGAIN).await;
            }
        })
    }
}
