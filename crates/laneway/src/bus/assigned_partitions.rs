//! The partitions that a rebalance assigns to a subscription, and revokes.
//!
//! [`keep`] takes the assignments of the member, and [`hold`] reads each of them from the committed position of the
//! group. When a lease is revoked, `hold` drains the partition: nothing new of it starts, what runs gets
//! [`DRAIN_WITHIN`] to finish and is cancelled then, what is settled is committed, and only then is the assignment
//! released. When a lease is lost, `hold` cancels the handlers of the partition and settles nothing of it any more.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::error::Error;
use super::partition_state::PartitionState;
use super::progress::Progress;
use super::pump::{self, Ended, Ending, Flow, TRY_AGAIN};
use super::restart;
use super::state::Part;
use crate::broker::ownership::Ownership;
use crate::broker::{Assignment, BoxFuture, BrokerError, Member, Start};
use crate::topic::Kind;

/// What runs in a partition that is revoked gets this long to finish.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);

/// A handler that was cancelled is dropped when it is polled next, so that it is gone before another member is given the
/// partition. One that blocks its thread is not: after this long it is waited for no more, and nothing but the epoch
/// keeps it from doing harm.
const UNWIND_WITHIN: Duration = Duration::from_secs(1);

/// A member that broke gets this long to leave.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// The partitions of a subscription.
#[derive(Debug, Default)]
pub(super) struct AssignedPartitions {
    partitions: Mutex<BTreeMap<u32, Arc<PartitionState>>>,
    /// The epochs of those that are not being revoked: what [`Subscription::assigned`](super::Subscription::assigned)
    /// shows.
    epochs: watch::Sender<BTreeMap<u32, u64>>,
}

impl AssignedPartitions {
    pub(super) fn all(&self) -> Vec<Arc<PartitionState>> {
        self.partitions.lock().values().cloned().collect()
    }

    /// Removes all of them, when the subscription closes.
    pub(super) fn take(&self) -> Vec<Arc<PartitionState>> {
        self.revoke_all();
        let mut partitions = self.partitions.lock();
        std::mem::take(&mut *partitions).into_values().collect()
    }

    /// The partitions that are held and not being revoked, with their epochs, as they change.
    pub(super) fn epochs(&self) -> watch::Receiver<BTreeMap<u32, u64>> {
        self.epochs.subscribe()
    }

    /// From here on no partition is shown as held: the subscription closes.
    pub(super) fn revoke_all(&self) {
        self.epochs.send_if_modified(|epochs| {
            let is_changed = !epochs.is_empty();
            epochs.clear();
            is_changed
        });
    }

    /// From here on a partition is not shown as held: it is being revoked, or is lost.
    fn revoke(&self, partition: &PartitionState) {
        self.epochs.send_if_modified(|epochs| {
            // It may have been assigned anew already, in another epoch.
            let is_shown = epochs.get(&partition.number) == Some(&partition.epoch);
            if is_shown {
                epochs.remove(&partition.number);
            }
            is_shown
        });
    }

    fn add(&self, partition: &Arc<PartitionState>) {
        let mut partitions = self.partitions.lock();
        partitions.insert(partition.number, partition.clone());
        // Under the lock, so that what is shown changes in the same order.
        self.epochs.send_modify(|epochs| {
            epochs.insert(partition.number, partition.epoch);
        });
    }

    fn remove(&self, partition: &Arc<PartitionState>) {
        self.revoke(partition);
        let mut partitions = self.partitions.lock();
        // It may have been assigned anew already, and then another state stands for it.
        if let Some(held) = partitions.get(&partition.number)
            && Arc::ptr_eq(held, partition)
        {
            partitions.remove(&partition.number);
        }
    }
}

/// What is assigned when the subscription begins.
pub(super) fn first(
    member: &mut dyn Member,
    commits: &Arc<Notify>,
    progress: &Progress,
) -> Result<Vec<Arc<PartitionState>>, Error> {
    let mut partitions = Vec::new();
    while let Some(assignment) = member.next().now_or_never() {
        let partition = PartitionState::new(assignment?, commits.clone(), progress.clone());
        partitions.push(Arc::new(partition));
    }
    Ok(partitions)
}

/// Reads what [`first`] has found, and what of it is prepared.
pub(super) fn hold_first(
    flow: &Arc<Flow>,
    partitions: Vec<Arc<PartitionState>>,
    prepared: &[u32],
    held: &mut JoinSet<()>,
) {
    for partition in partitions {
        flow.assigned.add(&partition);
        let prepared = std::future::ready(prepared.to_vec());
        held.spawn(hold(flow.clone(), partition, prepared));
    }
}

/// Takes what is assigned, until the subscription ends. Answers the member, which is to leave when everything is
/// committed.
pub(super) async fn keep(
    flow: Arc<Flow>,
    mut member: Box<dyn Member>,
    mut held: JoinSet<()>,
) -> Box<dyn Member> {
    let mut ending = flow.ending.subscribe();
    loop {
        let next = tokio::select! {
            biased;
            _ = ending.wait_for(|ending| *ending != Ending::No) => break,
            Some(_) = held.join_next() => continue,
            next = next_of(&mut *member) => next,
        };
        match next {
            Ok(assignment) => {
                flow.condition.fine(Part::Joining);
                let mut partitions = vec![take(&flow, assignment)];
                // What is assigned together is prepared together, by one read of what is parked.
                let mut trouble = None;
                while trouble.is_none()
                    && let Some(next) = next_of(&mut *member).now_or_never()
                {
                    match next {
                        Ok(assignment) => partitions.push(take(&flow, assignment)),
                        Err(error) => trouble = Some(error),
                    }
                }
                let prepared = prepare(flow.clone(), partitions.clone()).shared();
                for partition in partitions {
                    held.spawn(hold(flow.clone(), partition, prepared.clone()));
                }
                if let Some(error) = trouble {
                    member = troubled(&flow, member, &error).await;
                }
            }
            Err(error) => member = troubled(&flow, member, &error).await,
        }
    }
    while held.join_next().await.is_some() {}
    member
}

/// The next assignment.
async fn next_of(member: &mut dyn Member) -> Result<Arc<dyn Assignment>, BrokerError> {
    let next = AssertUnwindSafe(member.next()).catch_unwind().await;
    next.unwrap_or_else(|panic| Err(BrokerError::Broken(restart::message_of(&*panic))))
}

/// Waits before the next try. Answers the member, or a new one if this one is broken.
async fn troubled(flow: &Flow, member: Box<dyn Member>, error: &BrokerError) -> Box<dyn Member> {
    if let BrokerError::Broken(reason) = error {
        return join_again(flow, member, reason).await;
    }
    tracing::error!(topic = %flow.topic, group = %flow.group, %error,
        "joining group failed, retrying");
    flow.condition.failing(Part::Joining, error.to_string());
    tokio::time::sleep(TRY_AGAIN).await;
    member
}

/// Joins as another member; what the broken one owned is lost.
async fn join_again(flow: &Flow, broken: Box<dyn Member>, reason: &str) -> Box<dyn Member> {
    let mut pause = restart::broke(flow, Part::Joining, "the member of the group", reason);
    for partition in flow.assigned.all() {
        partition.assignment.lose();
    }
    let mut ending = flow.ending.subscribe();
    let mut broken = Some(broken);
    loop {
        tokio::select! {
            biased;
            _ = ending.wait_for(|ending| *ending != Ending::No) => return Box::new(NoMember),
            () = tokio::time::sleep(pause) => {}
        }
        if let Some(broken) = broken.take() {
            let leaving = AssertUnwindSafe(broken.leave()).catch_unwind();
            let _ = timeout(LEAVE_WITHIN, leaving).await;
        }
        // The group has read before.
        let joining = flow.broker.join(&flow.topic, &flow.group, Start::default());
        match flow.call_timeout.with("joining a group", joining).await {
            Ok(member) => {
                flow.condition.fine(Part::Joining);
                return member;
            }
            Err(error) => {
                let error = error.to_string();
                pause = restart::broke(flow, Part::Joining, "the member of the group", &error);
            }
        }
    }
}

/// Stands for a member that broke, while the subscription ends.
struct NoMember;

impl Member for NoMember {
    fn next(&mut self) -> BoxFuture<'_, Result<Arc<dyn Assignment>, BrokerError>> {
        Box::pin(std::future::pending())
    }

    fn leave(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

fn take(flow: &Arc<Flow>, assignment: Arc<dyn Assignment>) -> Arc<PartitionState> {
    let partition = Arc::new(PartitionState::new(
        assignment,
        flow.commits.clone(),
        flow.progress.clone(),
    ));
    flow.assigned.add(&partition);
    partition
}

/// Reads a partition for as long as it is ours, from when it is prepared: `prepared` answers the numbers of those that are,
/// of all that were assigned with it. If that panics, `hold` loses the
/// assignment: the broker assigns it anew from the last commit, so that nothing that the reader had is missed.
async fn hold(
    flow: Arc<Flow>,
    partition: Arc<PartitionState>,
    prepared: impl Future<Output = Vec<u32>>,
) {
    let reading = AssertUnwindSafe(read_while_ours(&flow, &partition, prepared)).catch_unwind();
    let Err(panic) = reading.await else {
        return;
    };
    partition.lose();
    flow.assigned.remove(&partition);
    if let Some(parked) = &flow.parked {
        parked.keys.forget(&partition);
    }
    let part = Part::Restarting(partition.number);
    let task = format!("the reader of partition {}", partition.number);
    let pause = restart::broke(&flow, part, &task, &restart::message_of(&*panic));
    let lease = partition.assignment.lease();
    let mut ending = flow.ending.subscribe();
    tokio::select! {
        biased;
        _ = ending.wait_for(|ending| *ending != Ending::No) => {}
        _ = lease.revoked() => {}
        () = tokio::time::sleep(pause) => {}
    }
    match lease.ownership() {
        Ownership::Held => partition.assignment.lose(),
        Ownership::Draining => {
            release(&flow, &partition).await;
            flow.condition.forget(partition.number);
        }
        Ownership::Released | Ownership::Lost => flow.condition.forget(partition.number),
    }
}

async fn read_while_ours(
    flow: &Arc<Flow>,
    partition: &Arc<PartitionState>,
    prepared: impl Future<Output = Vec<u32>>,
) {
    let mut ending = flow.ending.subscribe();
    let reading = async {
        if !prepared.await.contains(&partition.number) {
            prepare_alone(flow, partition).await;
        }
        pump::read(flow.clone(), partition.clone()).await
    };
    let mut reading = std::pin::pin!(reading);
    let lease = partition.assignment.lease();
    let mut ended = None;
    let mut state = tokio::select! {
        biased;
        // Closing the subscription commits and releases.
        _ = ending.wait_for(|ending| *ending == Ending::Now) => return,
        state = lease.revoked() => state,
        read = &mut reading => {
            ended = Some(read);
            lease.ownership()
        }
    };
    if ended == Some(Ended::NotOurs) {
        // A commit was refused before the lease was lost.
        partition.assignment.lose();
        state = Ownership::Lost;
    }
    if state == Ownership::Held {
        return;
    }
    flow.assigned.revoke(partition);
    if flow.kind == Kind::Plain && ended.is_none() {
        // What was committed is not read again: it has to get to the lanes.
        let _ = timeout(DRAIN_WITHIN, reading).await;
    }
    if state == Ownership::Draining {
        tokio::select! {
            biased;
            _ = ending.wait_for(|ending| *ending == Ending::Now) => return,
            // Another member may own it already: what runs must not go on.
            () = lease.lost() => state = Ownership::Lost,
            _ = timeout(DRAIN_WITHIN, partition.drain()) => {}
        }
    }
    if state == Ownership::Draining {
        partition.release();
        tokio::select! {
            biased;
            () = lease.lost() => {}
            _ = ending.wait_for(|ending| *ending == Ending::Now) => {}
            _ = timeout(UNWIND_WITHIN, partition.unwound()) => {}
        }
    } else {
        partition.lose();
    }
    flow.assigned.remove(partition);
    if let Some(parked) = &flow.parked {
        parked.keys.forget(partition);
    }
    if state == Ownership::Draining {
        pump::commit(flow, partition).await;
        release(flow, partition).await;
    }
    flow.condition.forget(partition.number);
}

/// Cancels what runs in partitions that are lost while the subscription closes: no [`hold`] does so any more.
pub(super) async fn end_what_is_lost(flow: &Flow) -> Infallible {
    let partitions = flow.assigned.all();
    let losing = partitions.iter().map(async |partition| {
        partition.assignment.lease().lost().await;
        partition.lose();
    });
    futures_util::future::join_all(losing).await;
    std::future::pending().await
}

/// Releases the assignment of a partition, so that another member is given it.
pub(super) async fn release(flow: &Flow, partition: &PartitionState) {
    let releasing = async {
        partition.assignment.release().await;
        Ok::<(), Error>(())
    };
    // If that fails, the broker gives it to another member when the lease is over.
    let _ = flow
        .call_timeout
        .with("releasing a partition", releasing)
        .await;
}

/// Reads what is parked in partitions that were assigned together. Answers the numbers of those that it was read for.
async fn prepare(flow: Arc<Flow>, mut partitions: Vec<Arc<PartitionState>>) -> Vec<u32> {
    let Some(parked) = &flow.parked else {
        return partitions.iter().map(|held| held.number).collect();
    };
    loop {
        // One that is lost meanwhile must not hold up the others.
        partitions.retain(|held| held.assignment.lease().ownership() == Ownership::Held);
        if partitions.is_empty() {
            return Vec::new();
        }
        let error = match parked.prepare(&flow.group, &partitions).await {
            Ok(prepared) => return prepared,
            Err(error) => error,
        };
        tracing::error!(topic = %flow.topic, ?partitions, %error,
            "reading parked keys failed, retrying");
        for partition in &partitions {
            let part = Part::Reading(partition.number);
            flow.condition.failing(part, error.to_string());
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
}

/// The same for one that could not be prepared with the others: a later owner may have it. Waits until it is certain that
/// none has; if one has, the lease ends, and [`hold`] waits no more.
async fn prepare_alone(flow: &Arc<Flow>, partition: &Arc<PartitionState>) {
    let not_ours = BrokerError::NotOurs {
        topic: flow.topic.clone(),
        partition: partition.number,
    };
    loop {
        let part = Part::Reading(partition.number);
        flow.condition.failing(part, not_ours.to_string());
        tokio::time::sleep(TRY_AGAIN).await;
        let prepared = prepare(flow.clone(), vec![partition.clone()]).await;
        if prepared.contains(&partition.number) {
            flow.condition.fine(part);
            return;
        }
    }
}
