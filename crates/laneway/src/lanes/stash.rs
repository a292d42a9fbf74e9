//! Lanes that a worker has taken ahead.
//!
//! When far more lanes are ready than there are workers, a worker takes some of them at once: one
//! visit at the queue that all share, instead of one for each lane. They are its own only for as long
//! as its handlers do not wait. When one does, or takes long, or blocks its thread, the rest goes back
//! to where it came from, so that no lane ever waits for the handler of another.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::ready::TopicId;
use super::shards::LaneId;

/// The lanes of one worker, all of the topic that it runs.
#[derive(Debug, Default)]
pub(super) struct Stash(Mutex<Lanes>);

#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// To be run next.
    pub(super) ahead: VecDeque<LaneId>,
    /// Had their turn and have more; they go to the end of the queue.
    pub(super) again: Vec<LaneId>,
    /// Where they belong.
    pub(super) topic: Option<TopicId>,
}

impl Lanes {
    pub(super) fn is_empty(&self) -> bool {
        self.ahead.is_empty() && self.again.is_empty()
    }
}

impl Stash {
    /// A turn ended; its lane may have more. Answers the lane to run next, if there is one.
    pub(super) fn next_after(&self, again: Option<LaneId>) -> Option<LaneId> {
        let mut lanes = self.lanes();
        lanes.again.extend(again);
        lanes.ahead.pop_front()
    }

    pub(super) fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
