//! From the broker to the lanes: one task per partition, and one that commits.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::delivery::{Delivery, PartitionState};
use super::marks;
use super::rate::Limiter;
use super::subscription::Stopper;
use crate::broker::{Broker, BrokerError, Reader};
use crate::lanes::Intake;
use crate::record::Delivered;
use crate::settle::Position;
use crate::topic::{Kind, TopicName};

/// After a failed read, and after a failed commit.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// Commits are at least this far apart; what is settled in between goes together.
const COMMIT_EVERY: Duration = Duration::from_millis(5);

/// What the tasks of a subscription share.
pub(super) struct Flow {
    pub(super) broker: Arc<dyn Broker>,
    pub(super) topic: TopicName,
    pub(super) kind: Kind,
    pub(super) group: Arc<str>,
    pub(super) intake: Intake<Delivery>,
    pub(super) limiter: Option<Limiter>,
    pub(super) stopper: Arc<Stopper>,
    pub(super) commits: Arc<Notify>,
}

/// Reads a partition into the lanes, until the intake closes.
pub(super) async fn read(
    flow: Arc<Flow>,
    partition: Arc<PartitionState>,
    mut reader: Box<dyn Reader>,
) {
    loop {
        let records = match reader.next().await {
            Ok(records) => records,
            Err(BrokerError::Closed) => return,
            Err(error) => {
                tracing::error!(topic = %flow.topic, partition = partition.number, %error,
                    "reading failed; it is tried again");
                flow.stopper.failing(error.to_string());
                tokio::time::sleep(TRY_AGAIN).await;
                continue;
            }
        };
        flow.stopper.fine();
        let result = match flow.kind {
            Kind::Domain => submit_domain(&flow, &partition, records).await,
            Kind::Plain => submit_plain(&flow, &partition, records).await,
        };
        if result.is_err() {
            return;
        }
    }
}

/// The intake is closed: nothing more is read.
struct Closed;

async fn submit_domain(
    flow: &Flow,
    partition: &Arc<PartitionState>,
    records: Vec<Delivered>,
) -> Result<(), Closed> {
    for delivered in records {
        let offset = delivered.offset;
        if !partition.deliver(offset) {
            continue;
        }
        if !marks::is_for(&delivered.record.headers, &flow.group) {
            partition.settle(offset);
            continue;
        }
        while partition.is_full() {
            partition.settled.notified().await;
        }
        if let Some(limiter) = &flow.limiter {
            limiter.turns(1).await;
        }
        let delivery = Delivery::of_domain(delivered, partition.clone());
        flow.intake.submit(delivery).await.map_err(|_| Closed)?;
    }
    Ok(())
}

/// At most once: the whole chunk is committed before the first of it can run.
async fn submit_plain(
    flow: &Flow,
    partition: &Arc<PartitionState>,
    mut records: Vec<Delivered>,
) -> Result<(), Closed> {
    records.retain(|delivered| {
        let new = partition.deliver(delivered.offset);
        partition.settle(delivered.offset);
        new
    });
    while let Err(error) = commit(flow, partition, partition.position()).await {
        tracing::warn!(topic = %flow.topic, %error, "committing failed; it is tried again");
        tokio::time::sleep(TRY_AGAIN).await;
    }
    for delivered in records {
        if let Some(limiter) = &flow.limiter {
            limiter.turns(1).await;
        }
        let delivery = Delivery::of_plain(delivered, partition.clone());
        flow.intake.submit(delivery).await.map_err(|_| Closed)?;
    }
    Ok(())
}

/// Commits what was settled, for ever: at once, and then at most every few milliseconds.
pub(super) async fn commit_all(flow: Arc<Flow>, partitions: Vec<Arc<PartitionState>>) {
    let mut committed: Vec<Option<Position>> = vec![None; partitions.len()];
    loop {
        flow.commits.notified().await;
        commit_changed(&flow, &partitions, &mut committed).await;
        tokio::time::sleep(COMMIT_EVERY).await;
    }
}

/// The last commit of a subscription.
pub(super) async fn commit_finally(flow: &Flow, partitions: &[Arc<PartitionState>]) {
    commit_changed(flow, partitions, &mut vec![None; partitions.len()]).await;
}

/// The one place where the positions of domain topics are committed.
async fn commit_changed(
    flow: &Flow,
    partitions: &[Arc<PartitionState>],
    committed: &mut [Option<Position>],
) {
    for (partition, last) in partitions.iter().zip(committed) {
        let position = partition.position();
        if last.as_ref() == Some(&position) {
            continue;
        }
        match commit(flow, partition, position.clone()).await {
            Ok(()) => {
                *last = Some(position);
                flow.stopper.committed();
            }
            Err(error) => {
                tracing::warn!(topic = %flow.topic, partition = partition.number, %error,
                    "committing failed; it is tried again");
                flow.stopper.failing(error.to_string());
                flow.commits.notify_one();
            }
        }
    }
}

async fn commit(
    flow: &Flow,
    partition: &PartitionState,
    position: Position,
) -> Result<(), BrokerError> {
    flow.broker
        .commit(&flow.topic, partition.number, &flow.group, position)
        .await
}
