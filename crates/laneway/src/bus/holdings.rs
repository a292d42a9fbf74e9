//! The partitions that are ours, as they come and go.
//!
//! A partition that comes is read from where the group left off. One that another member shall have
//! is let go: nothing new of it starts, what runs gets a while to finish, what is settled is
//! committed, and only then does the broker give it away. One that is lost is dropped where it
//! stands: its handlers are cancelled and nothing of it is settled any more.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::delivery::PartitionState;
use super::error::Error;
use super::letters::LetterBox;
use super::parked::ParkedKeys;
use super::pump::{self, Ending, Flow, TRY_AGAIN};
use super::state::Part;
use crate::broker::tenure::Standing;
use crate::broker::{BrokerError, Claim, Member};
use crate::topic::Kind;

/// What runs when another member shall have a partition gets this long to finish.
const LET_GO_WITHIN: Duration = Duration::from_secs(5);

/// The partitions of a subscription.
#[derive(Debug, Default)]
pub(super) struct Holdings(Mutex<BTreeMap<u32, Arc<PartitionState>>>);

impl Holdings {
    pub(super) fn all(&self) -> Vec<Arc<PartitionState>> {
        self.partitions().values().cloned().collect()
    }

    /// All of them, for whoever closes.
    pub(super) fn take(&self) -> Vec<Arc<PartitionState>> {
        std::mem::take(&mut *self.partitions())
            .into_values()
            .collect()
    }

    fn add(&self, partition: &Arc<PartitionState>) {
        self.partitions()
            .insert(partition.number, partition.clone());
    }

    fn remove(&self, partition: &Arc<PartitionState>) {
        let mut partitions = self.partitions();
        // It may be ours again already.
        if let Some(held) = partitions.get(&partition.number)
            && Arc::ptr_eq(held, partition)
        {
            partitions.remove(&partition.number);
        }
    }

    fn partitions(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<PartitionState>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which keys of a partition are parked: its owner must know before it handles anything.
pub(super) struct Parked {
    pub(super) keys: Arc<ParkedKeys>,
    pub(super) letters: Arc<LetterBox>,
}

/// Takes what is ours from the beginning, so that it is read when the subscription begins.
pub(super) async fn take_first(
    flow: &Arc<Flow>,
    member: &mut dyn Member,
    held: &mut JoinSet<()>,
) -> Result<(), Error> {
    let mut partitions = Vec::new();
    while let Some(claim) = member.next().now_or_never() {
        partitions.push(take(flow, claim?));
    }
    let numbers: Vec<_> = partitions.iter().map(|held| held.number).collect();
    load_parked(flow, &numbers).await?;
    for partition in partitions {
        held.spawn(hold(flow.clone(), partition, std::future::ready(())));
    }
    Ok(())
}

/// Takes what becomes ours, until the subscription ends. Answers the member, which is to leave when
/// everything is committed.
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
            next = member.next() => next,
        };
        match next {
            Ok(claim) => {
                flow.condition.fine(Part::Joining);
                let mut partitions = vec![take(&flow, claim)];
                // What comes together is prepared together, by one look at what is parked.
                let mut trouble = None;
                while trouble.is_none()
                    && let Some(next) = member.next().now_or_never()
                {
                    match next {
                        Ok(claim) => partitions.push(take(&flow, claim)),
                        Err(error) => trouble = Some(error),
                    }
                }
                let numbers = partitions.iter().map(|partition| partition.number);
                let prepared = prepare(flow.clone(), numbers.collect()).shared();
                for partition in partitions {
                    held.spawn(hold(flow.clone(), partition, prepared.clone()));
                }
                if let Some(error) = trouble {
                    troubled(&flow, &error).await;
                }
            }
            Err(error) => troubled(&flow, &error).await,
        }
    }
    while held.join_next().await.is_some() {}
    member
}

async fn troubled(flow: &Flow, error: &BrokerError) {
    tracing::error!(topic = %flow.topic, %error,
        "being a member of the group failed; it is tried again");
    flow.condition.failing(Part::Joining, error.to_string());
    tokio::time::sleep(TRY_AGAIN).await;
}

fn take(flow: &Arc<Flow>, claim: Arc<dyn Claim>) -> Arc<PartitionState> {
    let partition = Arc::new(PartitionState::new(
        claim,
        flow.commits.clone(),
        flow.progress.clone(),
    ));
    flow.holdings.add(&partition);
    partition
}

/// Reads a partition for as long as it is ours, from when it is prepared.
async fn hold(flow: Arc<Flow>, partition: Arc<PartitionState>, prepared: impl Future<Output = ()>) {
    let mut ending = flow.ending.subscribe();
    let reading = async {
        prepared.await;
        pump::read(flow.clone(), partition.clone()).await;
    };
    let mut reading = std::pin::pin!(reading);
    let tenure = partition.claim.tenure();
    let mut is_read = false;
    let standing = tokio::select! {
        biased;
        // Whoever closes the subscription commits and releases.
        _ = ending.wait_for(|ending| *ending == Ending::Now) => return,
        standing = tenure.called() => standing,
        () = &mut reading => {
            is_read = true;
            tenure.standing()
        }
    };
    if standing == Standing::Ours {
        return;
    }
    if flow.kind == Kind::Plain && !is_read {
        // What was taken does not come again: it has to get to the lanes.
        let _ = timeout(LET_GO_WITHIN, reading).await;
    }
    if standing == Standing::Wanted {
        tokio::select! {
            biased;
            _ = ending.wait_for(|ending| *ending == Ending::Now) => return,
            _ = timeout(LET_GO_WITHIN, partition.let_go()) => {}
        }
    }
    partition.end();
    flow.holdings.remove(&partition);
    if standing == Standing::Wanted {
        pump::commit(&flow, &partition).await;
        release(&flow, &partition).await;
    }
    flow.condition.forget(partition.number);
}

/// Lets another member have a partition.
pub(super) async fn release(flow: &Flow, partition: &PartitionState) {
    let releasing = async {
        partition.claim.release().await;
        Ok::<(), Error>(())
    };
    // Late or not: it is given away when our silence has been long enough.
    let _ = flow.patience.with("releasing a partition", releasing).await;
}

/// Learns what is parked in partitions that have become ours.
async fn prepare(flow: Arc<Flow>, partitions: Vec<u32>) {
    while let Err(error) = load_parked(&flow, &partitions).await {
        tracing::error!(topic = %flow.topic, ?partitions, %error,
            "reading what is parked failed; it is tried again");
        for partition in &partitions {
            let part = Part::Reading(*partition);
            flow.condition.failing(part, error.to_string());
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
}

async fn load_parked(flow: &Flow, partitions: &[u32]) -> Result<(), Error> {
    match &flow.parked {
        None => Ok(()),
        Some(Parked { keys, letters }) => keys.load(letters, &flow.group, partitions).await,
    }
}
