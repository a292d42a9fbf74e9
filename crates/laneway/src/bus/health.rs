//! How the bus is doing.

use std::time::Duration;

use super::handle::SubscriptionStats;
use super::state::State;
use crate::lanes::{WorkerState, WorkerStats};
use crate::topic::TopicName;

/// How the bus is doing. See [`Bus::health`](crate::Bus::health).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Health {
    /// What the broker says, if it is not well.
    pub broker: Option<String>,
    /// The subscriptions.
    pub subscriptions: Vec<SubscriptionHealth>,
    /// Workers that restarted too often and rest.
    pub degraded_workers: usize,
    /// The longest that a handler has been running.
    pub longest_running: Option<Duration>,
}

impl Health {
    /// Whether everything is well.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.broker.is_none()
            && self.degraded_workers == 0
            && self
                .subscriptions
                .iter()
                .all(|subscription| subscription.state == State::Running)
    }

    pub(super) fn of_workers(&mut self, workers: &[WorkerStats]) {
        for worker in workers {
            match worker.state {
                WorkerState::Degraded => self.degraded_workers += 1,
                WorkerState::Running(time) => {
                    self.longest_running = self.longest_running.max(Some(time));
                }
                _ => {}
            }
        }
    }
}

/// How a subscription is doing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SubscriptionHealth {
    /// Its topic.
    pub topic: TopicName,
    /// Its group.
    pub group: String,
    /// Whether it runs.
    pub state: State,
    /// How many partitions it reads. None, on a broker that several processes share, means that other
    /// members have them, or that one ended without a word and is waited for until it is missed.
    pub partitions: usize,
    /// How long ago it last committed a position that had moved.
    pub since_commit: Option<Duration>,
    /// What it has done.
    pub stats: SubscriptionStats,
}
