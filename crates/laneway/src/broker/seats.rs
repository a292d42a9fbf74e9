//! Who reads what in this process: a group has one place at a topic.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::BrokerError;
use crate::topic::TopicName;

type Taken = HashSet<(TopicName, String)>;

/// The seats that are taken.
#[derive(Clone, Debug, Default)]
pub(super) struct Seats(Arc<Mutex<Taken>>);

/// A group's place in this process; free again when it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Seats,
    key: (TopicName, String),
}

impl Seats {
    /// Takes the one place that a group has at a topic.
    pub(super) fn take(&self, topic: &TopicName, group: &str) -> Result<Seat, BrokerError> {
        let key = (topic.clone(), group.to_owned());
        if !self.taken().insert(key.clone()) {
            return Err(BrokerError::AlreadyJoined {
                topic: topic.clone(),
                group: group.to_owned(),
            });
        }
        Ok(Seat {
            seats: self.clone(),
            key,
        })
    }

    /// A group that reads a topic.
    pub(super) fn group_at(&self, topic: &TopicName) -> Option<String> {
        let taken = self.taken();
        let mut reading = taken.iter().filter(|(read, _)| read == topic);
        reading.next().map(|(_, group)| group.clone())
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.taken().remove(&self.key);
    }
}
