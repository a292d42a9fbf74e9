//! From the broker to the lanes: one task per partition, and one that commits.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use smol_str::SmolStr;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::Shared;
use super::assigned_partitions::AssignedPartitions;
use super::call_timeout::CallTimeout;
use super::dead_letters::headers as letter_headers;
use super::dead_letters::parked_keys::Parked;
use super::delivery::Delivery;
use super::error::Error;
use super::limits::BusLimits;
use super::overflow::Overflow;
use super::partition_state::PartitionState;
use super::progress::Progress;
use super::rate::Limiter;
use super::restart::{self, Restarts};
use super::state::{Condition, Part};
use crate::broker::{Broker, BrokerError};
use crate::lanes::{Full, Intake, Job, Refusal, SubmitError, yield_to_others};
use crate::planted::planted;
use crate::record::Delivered;
use crate::topic::{Kind, TopicName};

/// After a failed read, and after a failed commit.
pub(super) const TRY_AGAIN: Duration = Duration::from_millis(500);

/// A reader that finds no room in the engine asks again after this long whether it is the lane that is full by now.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A reader yields to other tasks after so many records: a handler that is woken meanwhile is on time, however much
/// there is to read in however many partitions.
pub(super) const TURN: usize = 16;

/// A reader that was restarted and runs for so long is well.
const CALM_AFTER: Duration = Duration::from_secs(1);

/// Commits are at least this far apart; what is settled in between goes together.
const COMMIT_EVERY: Duration = Duration::from_millis(5);
/// Between two commits there is so many times the time that the first one took.
const REST: u32 = 4;
/// The most that [`REST`] makes of it: what was handled since the last commit is handled again after a crash.
const LONGEST_REST: Duration = Duration::from_millis(100);

/// What the tasks of a subscription share.
pub(super) struct Flow {
    pub(super) broker: Arc<dyn Broker>,
    pub(super) call_timeout: CallTimeout,
    pub(super) limits: BusLimits,
    pub(super) topic: TopicName,
    pub(super) kind: Kind,
    pub(super) group: Arc<str>,
    pub(super) intake: Intake<Delivery>,
    pub(super) limiter: Option<Limiter>,
    pub(super) condition: Arc<Condition>,
    pub(super) commits: Arc<Notify>,
    pub(super) progress: Progress,
    pub(super) assigned: AssignedPartitions,
    pub(super) restarts: Restarts,
    /// Of a domain topic.
    pub(super) parked: Option<Parked>,
    pub(super) ending: watch::Sender<Ending>,
}

/// Whether a subscription ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    No,
    /// Nothing more is taken from the broker; what was taken gets to the lanes.
    Soon,
    /// Reading stops where it is.
    Now,
}

impl Flow {
    async fn ended(&self) {
        // `self` has the sender, so the channel stays open.
        let mut ending = self.ending.subscribe();
        let _ = ending.wait_for(|ending| *ending != Ending::No).await;
    }
}

/// Reads a partition into the lanes, for as long as it is ours and the subscription lasts.
pub(super) async fn read(flow: Arc<Flow>, partition: Arc<PartitionState>) -> Ended {
    let part = Part::Reading(partition.number);
    let restarting = Part::Restarting(partition.number);
    let mut calm = std::pin::pin!(tokio::time::sleep(CALM_AFTER));
    let mut is_calm = false;
    let mut ending = flow.ending.subscribe();
    let mut reader = partition.assignment.read();
    let mut intake = DomainIntake::new(&flow, &partition);
    loop {
        let reading = async {
            // Neither waits for the other: what is read next is for other keys than those in the overflow.
            tokio::select! {
                advanced = intake.overflow.advance() => advanced.map(|()| None),
                next = reader.next() => Ok(Some(next)),
            }
        };
        let next = tokio::select! {
            biased;
            _ = ending.wait_for(|ending| *ending != Ending::No) => return Ended::Over,
            _ = partition.assignment.lease().revoked() => return Ended::Over,
            next = reading => next,
            () = &mut calm, if !is_calm => {
                // If it had panicked before, it did not do so again.
                is_calm = true;
                flow.condition.fine(restarting);
                continue;
            }
        };
        let records = match next {
            Err(ended) => return ended,
            Ok(None) => continue,
            Ok(Some(Ok(records))) => records,
            Ok(Some(Err(BrokerError::Closed))) => {
                flow.condition.stop(BrokerError::Closed.to_string());
                return Ended::Over;
            }
            Ok(Some(Err(error))) => {
                tracing::error!(topic = %flow.topic, partition = partition.number, %error,
                    "reading failed, retrying");
                flow.condition.failing(part, error.to_string());
                tokio::time::sleep(TRY_AGAIN).await;
                continue;
            }
        };
        flow.condition.fine(part);
        let result = match flow.kind {
            Kind::Domain => intake.submit(records).await,
            Kind::Plain => submit_plain(&flow, &partition, records).await,
        };
        if let Err(ended) = result {
            return ended;
        }
    }
}

/// Nothing more is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The subscription ends, or the lease of the partition is revoked.
    Over,
    /// The partition is with another member, which goes on from the last commit.
    NotOurs,
}

/// The way of domain events into the lanes.
struct DomainIntake<'a> {
    flow: &'a Arc<Flow>,
    partition: &'a Arc<PartitionState>,
    overflow: Overflow,
    /// The key of the last delivery.
    last_key: Option<SmolStr>,
}

impl<'a> DomainIntake<'a> {
    fn new(flow: &'a Arc<Flow>, partition: &'a Arc<PartitionState>) -> Self {
        Self {
            flow,
            partition,
            overflow: Overflow::new(flow.clone(), partition.clone()),
            last_key: None,
        }
    }

    async fn submit(&mut self, records: Vec<Delivered>) -> Result<(), Ended> {
        for (number, delivered) in records.into_iter().enumerate() {
            if number % TURN == TURN - 1 {
                yield_to_others().await;
            }
            self.submit_one(delivered).await?;
        }
        self.overflow.work_off().await
    }

    async fn submit_one(&mut self, delivered: Delivered) -> Result<(), Ended> {
        let (flow, partition, offset) = (self.flow, self.partition, delivered.offset);
        // IMPORTANT: before `PartitionState::deliver`: what is delivered has to fit into every position from then on.
        while partition.is_full(offset, flow.limits.window) {
            tokio::select! {
                () = partition.settled.notified() => {}
                advanced = self.overflow.advance() => advanced?,
            }
        }
        let is_for_us = letter_headers::is_for(&delivered.record.headers, &flow.group);
        let delivery = Delivery::of_domain(delivered, partition.clone());
        // What is for another group is in no lane, and done at once.
        let key = delivery.key().filter(|_| is_for_us);
        let follows = key.is_some() && key == self.last_key.as_deref();
        let key = if follows {
            None
        } else {
            Some(key.map(SmolStr::new))
        };
        if !partition.deliver(offset, follows) {
            return Ok(());
        }
        if let Some(key) = key {
            self.last_key = key;
        }
        if !is_for_us {
            partition.settle(offset);
            return Ok(());
        }
        if let Some(limiter) = &flow.limiter {
            limiter.turn().await;
        }
        let Some(delivery) = self.overflow.follows(delivery) else {
            return Ok(());
        };
        // An event whose lane is full goes to the overflow at once. Waiting for the lane, however shortly, would be
        // waiting once for each of its events.
        if let Some(delivery) = submit_unless_lane_full(flow, delivery).await? {
            self.overflow.add(delivery);
        }
        Ok(())
    }
}

/// Submits, or gives back what is for a lane that is full.
async fn submit_unless_lane_full(
    flow: &Flow,
    mut delivery: Delivery,
) -> Result<Option<Delivery>, Ended> {
    let mut refused = flow.intake.try_submit(delivery);
    loop {
        let Err(SubmitError { job, reason }) = refused else {
            return Ok(None);
        };
        delivery = match reason {
            Refusal::QueueFull(Full::Lane) => return Ok(Some(job)),
            // Backpressure of the whole engine: waits for room, and asks now and then whether it is the lane by now.
            Refusal::QueueFull(_) => job,
            _ => return submit(flow, job).await.map(|()| None),
        };
        refused = flow.intake.submit_within(delivery, LOOK_AGAIN).await;
    }
}

/// At most once: `submit_plain` commits what it takes before the first of it can run. If it cannot, because the
/// partition is lost, nothing of it runs: it is the next owner's. What is committed is not read again, so closing the
/// subscription waits until `submit_plain` has come to its end.
async fn submit_plain(
    flow: &Flow,
    partition: &Arc<PartitionState>,
    mut records: Vec<Delivered>,
) -> Result<(), Ended> {
    records.retain(|delivered| partition.deliver(delivered.offset, false));
    let mut records = records.into_iter();
    while records.len() > 0 {
        // What the limiter holds back waits in the broker.
        let count = match &flow.limiter {
            None => records.len(),
            Some(limiter) => tokio::select! {
                biased;
                () = flow.ended() => return Err(Ended::Over),
                count = limiter.some_turns(records.len()) => count,
            },
        };
        let taken: Vec<_> = records.by_ref().take(count).collect();
        partition.take(taken.iter().map(|delivered| delivered.offset));
        loop {
            match commit(flow, partition).await {
                Committed::All => break,
                Committed::NotOurs if planted("A6") => break,
                Committed::NotOurs => {
                    partition.hand_back(taken.len());
                    return Err(Ended::NotOurs);
                }
                Committed::No => tokio::time::sleep(TRY_AGAIN).await,
            }
        }
        for delivered in taken {
            submit(flow, Delivery::of_plain(delivered, partition.clone())).await?;
        }
    }
    Ok(())
}

pub(super) async fn submit(flow: &Flow, mut delivery: Delivery) -> Result<(), Ended> {
    loop {
        delivery = match flow.intake.submit(delivery).await {
            Ok(()) => return Ok(()),
            Err(SubmitError {
                mut job,
                reason: Refusal::TooLarge { largest, .. },
            }) => {
                // It is in memory anyway. Waiting until all room is free could be waiting for ever.
                job.bytes = largest / 4;
                job
            }
            Err(_) => return Err(Ended::Over),
        };
    }
}

/// Commits what is settled, for ever. `_alive` keeps the bus open for as long as it has a subscription.
pub(super) async fn commit_all(_alive: Arc<Shared>, flow: Arc<Flow>) {
    loop {
        let committing = AssertUnwindSafe(commit_what_comes(&flow)).catch_unwind();
        if let Err(panic) = committing.await {
            let reason = restart::message_of(&*panic);
            let pause = restart::broke(&flow, Part::Committer, "the committer", &reason);
            tokio::time::sleep(pause).await;
            flow.commits.notify_one();
        }
    }
}

/// Commits at once, and then after a rest.
async fn commit_what_comes(flow: &Flow) {
    loop {
        flow.commits.notified().await;
        let began = Instant::now();
        let are_committed = commit_each(flow).await;
        flow.condition.fine(Part::Committer);
        if are_committed {
            // The longer a commit takes, the fewer there are: the broker has other work, too.
            let rest = REST * began.elapsed();
            tokio::time::sleep(rest.clamp(COMMIT_EVERY, LONGEST_REST)).await;
        } else {
            flow.commits.notify_one();
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }
}

/// Commits what was settled; answers whether that worked for all partitions.
pub(super) async fn commit_each(flow: &Flow) -> bool {
    // All at once, so that a broker on a server can send them as one.
    let partitions = flow.assigned.all();
    let committing = partitions.iter().map(|partition| commit(flow, partition));
    let committed = futures_util::future::join_all(committing).await;
    // What is not ours any more needs no commit.
    !committed.contains(&Committed::No)
}

/// How a commit went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Committed {
    /// The broker knows all that is settled.
    All,
    /// Another member has the partition now, and goes on from the last commit.
    NotOurs,
    /// It failed, and may work the next time.
    No,
}

/// The one place where positions are committed.
pub(super) async fn commit(flow: &Flow, partition: &PartitionState) -> Committed {
    let part = Part::Committing(partition.number);
    match commit_position(flow, partition).await {
        Ok(()) => {
            flow.condition.fine(part);
            Committed::All
        }
        Err(Error::Broker(BrokerError::NotOurs { .. })) => Committed::NotOurs,
        Err(error) => {
            tracing::warn!(topic = %flow.topic, partition = partition.number, %error,
                "committing failed, retrying");
            flow.condition.failing(part, error.to_string());
            Committed::No
        }
    }
}

async fn commit_position(flow: &Flow, partition: &PartitionState) -> Result<(), Error> {
    let mut committed = partition.committed.lock().await;
    let position = partition.position();
    if *committed == position {
        return Ok(());
    }
    let call = partition.assignment.commit(position.clone());
    flow.progress.coming();
    flow.call_timeout.with("committing", call).await?;
    *committed = position;
    flow.condition.committed();
    flow.progress.made();
    Ok(())
}
