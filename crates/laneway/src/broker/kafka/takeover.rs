//! Becoming the owner of partitions that the group assigned: [`Takeover`] reads what was settled, raises the epoch, and
//! commits that before the bus handles anything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use rdkafka::consumer::Consumer as _;
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::Offset;
use tokio::time::{sleep, sleep_until};

use super::assignment::{OwnedPartition, PartitionAssignment};
use super::client::ANSWER_WITHIN;
use super::cluster::blocking;
use super::commits::{Commits, Session};
use super::consumer::Client;
use super::ledger::{committed, edges};
use super::mark::{Mark, Owner};
use super::topics::TopicHandle;
use crate::broker::member::Assignments;
use crate::settle::Position;

/// After a call that failed.
const TRY_AGAIN: Duration = Duration::from_millis(200);

/// Becomes the owner of partitions: reads what was settled, and raises the epoch.
#[derive(Clone)]
pub(super) struct Takeover {
    pub(super) client: Arc<Client>,
    pub(super) commits: Arc<Commits>,
    pub(super) handle: Arc<TopicHandle>,
    pub(super) assignments: Assignments,
    pub(super) session: Session,
    /// What the catalog remembers, for partitions of which Kafka does not.
    pub(super) lows: Arc<BTreeMap<u32, u64>>,
    pub(super) owner: Owner,
    /// Whether the client has read on, and has to go back.
    pub(super) is_anew: bool,
}

/// A partition, and what was found of it.
pub(super) struct Found {
    owned: Arc<OwnedPartition>,
    pub(super) mark: Mark,
    /// The owner before.
    before: Owner,
    /// Whether the client is elsewhere than the position.
    is_elsewhere: bool,
}

impl Takeover {
    /// Takes partitions, each as soon as it can be: one without a leader does not hold up the others.
    pub(super) async fn run(self, owned_partitions: Vec<Arc<OwnedPartition>>) {
        if let Ok(found) = self.find(&owned_partitions).await {
            return self.take_all(found).await;
        }
        let taking = owned_partitions
            .into_iter()
            .map(|owned| self.run_alone(owned));
        join_all(taking).await;
    }

    async fn run_alone(&self, owned: Arc<OwnedPartition>) {
        let alone = std::slice::from_ref(&owned);
        while !owned.is_over() {
            match self.find(alone).await {
                Ok(found) => return self.clone().take_all(found).await,
                Err(error) => {
                    tracing::debug!(partition = owned.partition, %error,
                        "reading committed position failed, retrying");
                    sleep(TRY_AGAIN).await;
                }
            }
        }
    }

    pub(super) async fn take_all(self, found: Vec<Found>) {
        let taking = found.into_iter().map(|found| self.take(found));
        join_all(taking).await;
    }

    /// What the group has settled, as far as it is about what the partitions have.
    pub(super) async fn find(
        &self,
        owned_partitions: &[Arc<OwnedPartition>],
    ) -> Result<Vec<Found>, KafkaError> {
        if owned_partitions.is_empty() {
            return Ok(Vec::new());
        }
        let (client, handle) = (self.client.clone(), self.handle.clone());
        let partitions: Vec<u32> = owned_partitions
            .iter()
            .map(|owned| owned.partition)
            .collect();
        // Three questions that do not wait for each other.
        let edge = |edge| {
            let (client, handle, all) = (client.clone(), handle.clone(), partitions.clone());
            blocking(move || edges(&client, &handle, all, edge))
        };
        let (begins, ends) = (edge(Offset::Beginning), edge(Offset::End));
        let marks = blocking(move || committed(&client, &handle, partitions));
        let (mut marks, begins, ends) = tokio::try_join!(marks, begins, ends)?;
        let found = owned_partitions.iter().map(|owned| {
            let partition = owned.partition;
            let begin = begins.get(&partition).copied().unwrap_or(0);
            let end = ends.get(&partition).copied().unwrap_or(0);
            let committed = marks.remove(&partition);
            let is_forgotten = committed.is_none();
            let before = committed.unwrap_or_else(|| {
                let low = self.lows.get(&partition).copied();
                Mark::at(low.unwrap_or(begin), self.handle.born)
            });
            let position = before.position;
            let low = position.low();
            // A partition that lost its end hands out offsets again that are settled here.
            let position = match end.checked_sub(1) {
                Some(last) => position.up_to(last),
                None => Position::at(0),
            };
            let position = position.merge(&Position::at(begin));
            Found {
                owned: owned.clone(),
                // Where Kafka knows of no position the client begins at the oldest.
                is_elsewhere: self.is_anew || is_forgotten || position.low() < low,
                before: before.owner,
                mark: Mark {
                    epoch: next_epoch(before.epoch),
                    born: self.handle.born,
                    owner: self.owner,
                    position,
                },
            }
        });
        Ok(found.collect())
    }

    /// Commits the new epoch and owner, and sends the assignment to the bus.
    async fn take(&self, found: Found) {
        let Found {
            owned,
            mark,
            before,
            is_elsewhere,
        } = found;
        let sent = loop {
            match self.commits.commit(&owned, mark.clone()).await {
                Ok(sent) => break sent,
                Err(_) if owned.is_over() => return,
                Err(error) => {
                    tracing::warn!(partition = owned.partition, %error,
                        "taking over partition failed, retrying");
                    sleep(TRY_AGAIN).await;
                }
            }
        };
        while is_elsewhere && !owned.is_over() {
            let (client, handle) = (self.client.clone(), self.handle.clone());
            let number = i32::try_from(owned.partition).unwrap_or_default();
            let low = i64::try_from(mark.position.low()).unwrap_or(i64::MAX);
            let seeking = blocking(move || {
                client.seek(&handle.name, number, Offset::Offset(low), ANSWER_WITHIN)
            });
            match seeking.await {
                Ok(()) => break,
                Err(error) => {
                    tracing::debug!(%error, "seeking failed, retrying");
                    sleep(TRY_AGAIN).await;
                }
            }
        }
        if self.owner.is_namesake(before) {
            self.outlast(&owned, sent + self.session.whole).await;
        }
        owned.lease.extend(sent + self.session.valid_for);
        let assignment = PartitionAssignment {
            owned,
            epoch: mark.epoch,
            position: mark.position,
            owner: self.owner,
            commits: self.commits.clone(),
        };
        // If the receiver is gone, so is the `GroupMember`, and this task ends soon.
        let _ = self.assignments.send(Ok(Arc::new(assignment)));
    }
}

impl Takeover {
    /// Waits for a process with the same instance name that has not released the partition. The coordinator assigns
    /// the partitions of a static member to the process that joined last, without waiting for a session. The earlier
    /// process may be alive with a valid lease: for a session after its last commit, which was before this one joined.
    async fn outlast(&self, owned: &OwnedPartition, until: Instant) {
        tracing::info!(
            partition = owned.partition,
            "another process with this instance name has not released the partition, waiting for its session to end"
        );
        tokio::select! {
            () = sleep_until(until.into()) => {}
            _ = owned.lease.revoked() => {}
        }
    }
}

/// Counts the owners. Kafka forgets what an idle group has committed; so the first one that it knows of
/// has the time for its number, which is more than all before it had.
fn next_epoch(before: u64) -> u64 {
    match before {
        0 => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |since| since.as_secs()),
        before => before + 1,
    }
}
