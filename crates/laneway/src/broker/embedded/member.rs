//! A group at a topic: all partitions are its own, for as long as it stays.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::Partition;
use super::reader::LogReader;
use crate::broker::lease::Lease;
use crate::broker::subscriptions::SubscriptionGuard;
use crate::broker::{Assignment, BoxFuture, BrokerError, Member, Reader};
use crate::settle::Position;

/// The one member that a group has at a topic.
pub(super) struct OnlyMember {
    assignments: VecDeque<Arc<dyn Assignment>>,
    /// Partitions that were given up.
    lost: mpsc::UnboundedReceiver<Held>,
    /// The one that is made anew.
    anew: Option<Held>,
    losing: Losing,
}

/// Where an assignment goes that is given up.
type Losing = mpsc::UnboundedSender<Held>;

impl OnlyMember {
    /// Has all of these.
    pub(super) fn new(held: impl IntoIterator<Item = (Held, Position)>) -> Self {
        let (losing, lost) = mpsc::unbounded_channel();
        let assignments = held.into_iter().map(|(held, position)| {
            let assignment = LogAssignment::new(held, position, losing.clone());
            Arc::new(assignment) as Arc<dyn Assignment>
        });
        Self {
            assignments: assignments.collect(),
            lost,
            anew: None,
            losing,
        }
    }

    async fn take_next(&mut self) -> Result<Arc<dyn Assignment>, BrokerError> {
        if let Some(assignment) = self.assignments.pop_front() {
            return Ok(assignment);
        }
        if self.anew.is_none() {
            self.anew = self.lost.recv().await;
        }
        let Some(held) = &self.anew else {
            return std::future::pending().await;
        };
        let position = held.partition.log.position(&held.group).await?;
        // It was noted when the group joined.
        let position = position.unwrap_or_default();
        let assignment = LogAssignment::new(held.clone(), position, self.losing.clone());
        self.anew = None;
        Ok(Arc::new(assignment))
    }
}

impl Member for OnlyMember {
    fn next(&mut self) -> BoxFuture<'_, Result<Arc<dyn Assignment>, BrokerError>> {
        Box::pin(self.take_next())
    }

    fn leave(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// A partition of a group.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) number: u32,
    pub(super) epoch: u64,
    /// What it commits is handled afterwards, and must not be handled again.
    pub(super) is_plain: bool,
    pub(super) group: String,
    pub(super) partition: Arc<Partition>,
    /// Kept until the last assignment is gone: no other member can join before.
    pub(super) _guard: Arc<SubscriptionGuard>,
}

/// An assignment to it.
struct LogAssignment {
    held: Held,
    position: Position,
    lease: Lease,
    losing: Losing,
}

impl LogAssignment {
    fn new(held: Held, position: Position, losing: Losing) -> Self {
        Self {
            held,
            position,
            lease: Lease::lasting(),
            losing,
        }
    }
}

impl Assignment for LogAssignment {
    fn partition(&self) -> u32 {
        self.held.number
    }

    fn epoch(&self) -> u64 {
        self.held.epoch
    }

    fn position(&self) -> &Position {
        &self.position
    }

    fn lease(&self) -> &Lease {
        &self.lease
    }

    fn read(&self) -> Box<dyn Reader> {
        let partition = self.held.partition.clone();
        Box::new(LogReader::new(self.position.low(), partition))
    }

    fn commit(&self, position: Position) -> BoxFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            let Held {
                partition,
                group,
                is_plain,
                ..
            } = &self.held;
            let log = &partition.log;
            if *is_plain {
                log.sync_position(group, &position).await
            } else {
                log.save_position(group, &position).await
            }
        })
    }

    fn release(&self) -> BoxFuture<'_, ()> {
        // A group has one member here: the partition goes with the assignment.
        Box::pin(std::future::ready(()))
    }

    fn lose(&self) {
        if self.lease.lose() {
            // If the receiver is gone, so is the member that would get it again.
            let _ = self.losing.send(self.held.clone());
        }
    }
}
