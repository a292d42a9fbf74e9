//! Keys whose lanes are full. Their events wait in the broker, and those of others go past them.
//!
//! A key that is slow, or that waits for its retry, fills its lane sooner or later. From then on its
//! reader only notes where the events of that key are, and gives them to the lane one by one as it
//! empties: read again from the broker, so that a backlog costs a number in memory and no more.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use smol_str::SmolStr;
use tokio::time::sleep;

use super::delivery::{Delivery, PartitionState};
use super::pump::{Ended, Flow, TRY_AGAIN, submit};
use super::state::Part;
use crate::broker::BoxFuture;
use crate::lanes::Job;
use crate::record::Delivered;

/// The keys of a partition that are behind.
pub(super) struct Behind {
    flow: Arc<Flow>,
    partition: Arc<PartitionState>,
    /// Where the events of each are, in order, after the one that is under way.
    waiting: HashMap<SmolStr, VecDeque<u64>>,
    /// For each of them, the event that comes next; resolves when the lane has taken it.
    under_way: FuturesUnordered<BoxFuture<'static, Result<SmolStr, Ended>>>,
}

impl Behind {
    pub(super) fn new(flow: Arc<Flow>, partition: Arc<PartitionState>) -> Self {
        Self {
            flow,
            partition,
            waiting: HashMap::new(),
            under_way: FuturesUnordered::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Notes an event if its key is behind: it must not overtake.
    pub(super) fn follows(&mut self, delivery: &Delivery) -> bool {
        if self.is_empty() {
            return false;
        }
        let key = delivery.key().unwrap_or_default();
        match self.waiting.get_mut(key) {
            None => false,
            Some(waiting) => {
                waiting.push_back(delivery.offset);
                true
            }
        }
    }

    /// A key falls behind with this event.
    pub(super) fn add(&mut self, delivery: Delivery) {
        let key = SmolStr::new(delivery.key().unwrap_or_default());
        self.waiting.insert(key.clone(), VecDeque::new());
        let flow = self.flow.clone();
        self.under_way.push(Box::pin(async move {
            submit(&flow, delivery).await?;
            Ok(key)
        }));
    }

    /// Waits until a lane has taken an event; for ever if no key is behind.
    pub(super) async fn advance(&mut self) -> Result<(), Ended> {
        let Some(taken) = self.under_way.next().await else {
            return std::future::pending().await;
        };
        let key = taken?;
        match self.waiting.get_mut(&key).and_then(VecDeque::pop_front) {
            Some(offset) => {
                let (flow, partition) = (self.flow.clone(), self.partition.clone());
                self.under_way.push(Box::pin(async move {
                    if let Some(delivery) = read_again(&flow, &partition, offset).await {
                        submit(&flow, delivery).await?;
                    }
                    Ok(key)
                }));
            }
            // It has caught up.
            None => {
                self.waiting.remove(&key);
            }
        }
        Ok(())
    }
}

/// Reads one event again; nothing if retention has taken it meanwhile.
async fn read_again(flow: &Flow, partition: &Arc<PartitionState>, offset: u64) -> Option<Delivery> {
    let part = Part::ReadingAgain(partition.number);
    loop {
        let peeking = flow.broker.peek(&flow.topic, partition.number, offset, 1);
        match flow.patience.with("reading an event again", peeking).await {
            Ok(records) => {
                flow.condition.fine(part);
                let there = |delivered: &Delivered| delivered.offset == offset;
                let Some(delivered) = records.into_iter().find(there) else {
                    partition.settle(offset);
                    return None;
                };
                return Some(Delivery::of_domain(delivered, partition.clone()));
            }
            Err(error) => {
                tracing::error!(topic = %flow.topic, partition = partition.number, %error,
                    "reading failed; it is tried again");
                flow.condition.failing(part, error.to_string());
                sleep(TRY_AGAIN).await;
            }
        }
    }
}
