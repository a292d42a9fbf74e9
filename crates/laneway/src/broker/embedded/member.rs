//! A group at a topic: all partitions are its own, for as long as it stays.

use std::collections::VecDeque;
use std::sync::Arc;

use super::reader::LogReader;
use super::{Inner, Partition, lock};
use crate::broker::tenure::Tenure;
use crate::broker::{BoxFuture, BrokerError, Claim, Member, Reader};
use crate::settle::Position;
use crate::topic::TopicName;

/// The one member that a group has at a topic.
pub(super) struct OnlyMember {
    pub(super) claims: VecDeque<Arc<dyn Claim>>,
}

impl Member for OnlyMember {
    fn next(&mut self) -> BoxFuture<'_, Result<Arc<dyn Claim>, BrokerError>> {
        match self.claims.pop_front() {
            Some(claim) => Box::pin(std::future::ready(Ok(claim))),
            None => Box::pin(std::future::pending()),
        }
    }

    fn leave(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// A partition of a group.
pub(super) struct LogClaim {
    pub(super) number: u32,
    pub(super) epoch: u64,
    pub(super) group: String,
    pub(super) position: Position,
    pub(super) partition: Arc<Partition>,
    pub(super) tenure: Tenure,
    /// Until the last claim is gone nobody else can join.
    pub(super) _place: Arc<Place>,
}

impl Claim for LogClaim {
    fn partition(&self) -> u32 {
        self.number
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn position(&self) -> &Position {
        &self.position
    }

    fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    fn read(&self) -> Box<dyn Reader> {
        Box::new(LogReader::new(self.position.low(), self.partition.clone()))
    }

    fn commit(&self, position: Position) -> BoxFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            self.partition
                .log
                .save_position(&self.group, &position)
                .await
        })
    }

    fn release(&self) -> BoxFuture<'_, ()> {
        // There is nobody else to have it; it goes with the claim.
        Box::pin(std::future::ready(()))
    }
}

/// The one place that a group has at a topic; free again when it is dropped.
pub(super) struct Place {
    broker: Arc<Inner>,
    key: (TopicName, String),
}

impl Place {
    pub(super) fn take(
        broker: Arc<Inner>,
        topic: &TopicName,
        group: &str,
    ) -> Result<Self, BrokerError> {
        let key = (topic.clone(), group.to_owned());
        if !lock(&broker.joined).insert(key.clone()) {
            return Err(BrokerError::AlreadyJoined {
                topic: topic.clone(),
                group: group.to_owned(),
            });
        }
        Ok(Self { broker, key })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.broker.joined).remove(&self.key);
    }
}
