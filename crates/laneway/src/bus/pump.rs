//! From the broker to the lanes: one task per partition, and one that commits.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::Shared;
use super::behind::Behind;
use super::delivery::{Delivery, PartitionState};
use super::error::Error;
use super::holdings::{Holdings, Parked};
use super::marks;
use super::patience::Patience;
use super::progress::Progress;
use super::rate::Limiter;
use super::state::{Condition, Part};
use crate::broker::{Broker, BrokerError};
use crate::lanes::{Full, Intake, Refusal, SubmitError};
use crate::record::Delivered;
use crate::topic::{Kind, TopicName};

/// After a failed read, and after a failed commit.
pub(super) const TRY_AGAIN: Duration = Duration::from_millis(500);

/// So long a reader waits for a lane that is full, unless others are full already. One whose handler
/// is quick empties meanwhile; the events of a slow one are read twice, so that it holds up nobody.
const LANE_MAY_EMPTY: Duration = Duration::from_millis(50);

/// A reader that has more to read lets others run after so many records: a handler that is woken meanwhile
/// is on time, however much there is to read in however many partitions.
const TURN: usize = 16;

/// Commits are at least this far apart; what is settled in between goes together.
const COMMIT_EVERY: Duration = Duration::from_millis(5);
/// Between two commits there is so many times the time that the first one took.
const REST: u32 = 4;
/// However long it took: what was handled since is handled again after a crash.
const LONGEST_REST: Duration = Duration::from_millis(100);

/// What the tasks of a subscription share.
pub(super) struct Flow {
    pub(super) broker: Arc<dyn Broker>,
    pub(super) patience: Patience,
    pub(super) topic: TopicName,
    pub(super) kind: Kind,
    pub(super) group: Arc<str>,
    pub(super) intake: Intake<Delivery>,
    pub(super) limiter: Option<Limiter>,
    pub(super) condition: Arc<Condition>,
    pub(super) commits: Arc<Notify>,
    pub(super) progress: Progress,
    pub(super) holdings: Holdings,
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
        // The sender is ours, so there is nothing else to wait for.
        let mut ending = self.ending.subscribe();
        let _ = ending.wait_for(|ending| *ending != Ending::No).await;
    }
}

/// Reads a partition into the lanes, for as long as it is ours and the subscription lasts.
pub(super) async fn read(flow: Arc<Flow>, partition: Arc<PartitionState>) {
    let part = Part::Reading(partition.number);
    let mut ending = flow.ending.subscribe();
    let mut reader = partition.claim.read();
    let mut behind = Behind::new(flow.clone(), partition.clone());
    loop {
        let next = tokio::select! {
            biased;
            _ = ending.wait_for(|ending| *ending != Ending::No) => return,
            _ = partition.claim.tenure().called() => return,
            taken = behind.advance() => match taken {
                Ok(()) => continue,
                Err(Ended) => return,
            },
            next = reader.next() => next,
        };
        let records = match next {
            Ok(records) => records,
            Err(BrokerError::Closed) => {
                flow.condition.stop(BrokerError::Closed.to_string());
                return;
            }
            Err(error) => {
                tracing::error!(topic = %flow.topic, partition = partition.number, %error,
                    "reading failed; it is tried again");
                flow.condition.failing(part, error.to_string());
                tokio::time::sleep(TRY_AGAIN).await;
                continue;
            }
        };
        flow.condition.fine(part);
        let result = match flow.kind {
            Kind::Domain => submit_domain(&flow, &partition, &mut behind, records).await,
            Kind::Plain => submit_plain(&flow, &partition, records).await,
        };
        if result.is_err() {
            return;
        }
    }
}

/// The subscription ends: nothing more is taken.
pub(super) struct Ended;

async fn submit_domain(
    flow: &Flow,
    partition: &Arc<PartitionState>,
    behind: &mut Behind,
    records: Vec<Delivered>,
) -> Result<(), Ended> {
    for (number, delivered) in records.into_iter().enumerate() {
        if number % TURN == TURN - 1 {
            tokio::task::yield_now().await;
        }
        let offset = delivered.offset;
        // Before it is delivered: what is, has to fit into every position from then on.
        while partition.is_full(offset) {
            tokio::select! {
                () = partition.settled.notified() => {}
                taken = behind.advance() => taken?,
            }
        }
        if !partition.deliver(offset) {
            continue;
        }
        if !marks::is_for(&delivered.record.headers, &flow.group) {
            partition.settle(offset);
            continue;
        }
        if let Some(limiter) = &flow.limiter {
            limiter.turn().await;
        }
        let delivery = Delivery::of_domain(delivered, partition.clone());
        if behind.follows(&delivery) {
            continue;
        }
        let patience = if behind.is_empty() {
            LANE_MAY_EMPTY
        } else {
            Duration::ZERO
        };
        if let Some(delivery) = submit_unless_lane_full(flow, delivery, patience).await? {
            behind.add(delivery);
        }
    }
    Ok(())
}

/// Submits, or gives back what is for a lane that is full and stays so.
async fn submit_unless_lane_full(
    flow: &Flow,
    mut delivery: Delivery,
    mut patience: Duration,
) -> Result<Option<Delivery>, Ended> {
    loop {
        let SubmitError { job, reason } = match flow.intake.submit_within(delivery, patience).await
        {
            Ok(()) => return Ok(None),
            Err(error) => error,
        };
        delivery = match reason {
            Refusal::QueueFull(Full::Lane) => return Ok(Some(job)),
            // Everybody waits for room, and looks now and then whether it is the lane by now.
            Refusal::QueueFull(_) => job,
            _ => return submit(flow, job).await.map(|()| None),
        };
        patience = LANE_MAY_EMPTY;
    }
}

/// At most once: what is taken is committed before the first of it can run. It does not come again,
/// so whoever closes the subscription lets this come to its end.
async fn submit_plain(
    flow: &Flow,
    partition: &Arc<PartitionState>,
    mut records: Vec<Delivered>,
) -> Result<(), Ended> {
    records.retain(|delivered| partition.deliver(delivered.offset));
    let mut records = records.into_iter();
    while records.len() > 0 {
        // What has to wait for its turn waits in the broker.
        let count = match &flow.limiter {
            None => records.len(),
            Some(limiter) => tokio::select! {
                biased;
                () = flow.ended() => return Err(Ended),
                count = limiter.some_turns(records.len()) => count,
            },
        };
        let taken: Vec<_> = records.by_ref().take(count).collect();
        partition.take(taken.iter().map(|delivered| delivered.offset));
        while !commit(flow, partition).await {
            tokio::time::sleep(TRY_AGAIN).await;
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
                // It is in memory anyway. If it had to wait until all room is free, it could wait
                // for ever.
                job.bytes = largest / 4;
                job
            }
            Err(_) => return Err(Ended),
        };
    }
}

/// Commits what was settled, for ever: at once, and then after a rest. Keeps the bus alive meanwhile:
/// it goes on for as long as it has a subscription.
pub(super) async fn commit_all(_alive: Arc<Shared>, flow: Arc<Flow>) {
    loop {
        flow.commits.notified().await;
        let began = Instant::now();
        if commit_each(&flow).await {
            // A broker for which that is work has other work, too.
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
    // All at once: a broker that is far away can take them together.
    let partitions = flow.holdings.all();
    let committing = partitions.iter().map(|partition| commit(flow, partition));
    let committed = futures_util::future::join_all(committing).await;
    committed.into_iter().all(|is_committed| is_committed)
}

/// The one place where positions are committed. Answers whether the broker knows all that is
/// settled.
pub(super) async fn commit(flow: &Flow, partition: &PartitionState) -> bool {
    let part = Part::Committing(partition.number);
    match commit_position(flow, partition).await {
        Ok(()) => {
            flow.condition.fine(part);
            true
        }
        // The one who has it now goes on from the last commit.
        Err(Error::Broker(BrokerError::NotOurs { .. })) => true,
        Err(error) => {
            tracing::warn!(topic = %flow.topic, partition = partition.number, %error,
                "committing failed; it is tried again");
            flow.condition.failing(part, error.to_string());
            false
        }
    }
}

async fn commit_position(flow: &Flow, partition: &PartitionState) -> Result<(), Error> {
    let mut committed = partition.committed.lock().await;
    let position = partition.position();
    if *committed == position {
        return Ok(());
    }
    let call = partition.claim.commit(position.clone());
    flow.progress.coming();
    flow.patience.with("committing", call).await?;
    *committed = position;
    flow.condition.committed();
    flow.progress.made();
    Ok(())
}
