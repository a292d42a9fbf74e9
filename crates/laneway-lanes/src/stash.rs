//! Lanes that a worker has taken ahead.
//!
//! When far more lanes are ready than there are workers, a worker takes some of them at once: one
//! visit at the queue that all share, instead of one for each lane. They are its own only for as long
//! as its handlers do not wait. When one does, or takes long, or blocks its thread, and whenever the
//! worker yields to the runtime, the rest goes back to where it came from, so that no lane ever waits
//! for the handler of another.

use std::collections::VecDeque;

use super::ready::{Next, Ready, TopicId, WorkerId};
use super::shards::LaneId;
use super::sync::{Mutex, MutexGuard, lock};

/// The lanes of one worker, all of the topic that it runs.
#[derive(Debug)]
pub(super) struct Stash(Mutex<Lanes>);

impl Stash {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Lanes::default()))
    }

    /// IMPORTANT: taken before the lock of [`Ready`], never after it.
    pub(super) fn lanes(&self) -> MutexGuard<'_, Lanes> {
        lock(&self.0)
    }
}

/// What a [`Stash`] holds. Between two calls of its worker the watchdog may [put all of it
/// back](Lanes::put_back), so `topic` has to be right whenever a lane is in here.
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
    /// A turn of `topic` ended; its lane may have more. Answers the lane to run next, if there is one.
    pub(super) fn after_turn(&mut self, topic: TopicId, again: Option<LaneId>) -> Option<LaneId> {
        // Set here and not only in `refill`: the worker may have come from another topic, and the
        // watchdog may call `put_back` before the worker calls `refill`.
        self.topic = Some(topic);
        self.again.extend(again);
        self.ahead.pop_front()
    }

    /// The worker has run all that it had taken ahead, and asks for more. Answers what it gets, and a
    /// worker to wake.
    pub(super) fn refill(
        &mut self,
        ready: &mut Ready,
        worker: WorkerId,
        topic: TopicId,
    ) -> (Next, Option<WorkerId>) {
        let wake = ready.turn_ended(topic, self.again.drain(..));
        let next = ready.next(worker, false);
        if let Next::Run { topic: next, .. } = &next
            && *next == topic
        {
            ready.take_ahead(topic, &mut self.ahead);
            self.topic = Some(topic);
        }
        (next, wake)
    }

    /// Puts everything back: the worker will not come to it soon. Answers a worker to wake.
    pub(super) fn put_back(&mut self, ready: &mut Ready) -> Option<WorkerId> {
        let topic = self.topic?;
        ready.bring_back(topic, self.ahead.drain(..), self.again.drain(..))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ahead.is_empty() && self.again.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_go_back_to_the_topic_of_their_last_turn() {
        let mut ready = Ready::new(8);
        let (first, second) = (ready.add_topic(), ready.add_topic());
        let mut lanes = Lanes::default();
        assert_eq!(lanes.after_turn(first, Some(LaneId(1))), None);
        ready.push(second, LaneId(2));
        // A turn of the first topic ended, and its worker goes on with the second one.
        let Next::Run { topic, .. } = ready.next(WorkerId(0), false) else {
            panic!("a lane is ready");
        };
        assert_eq!(topic, second);
        lanes.put_back(&mut ready);
        // One more turn of the second topic, and the watchdog comes before the worker asks.
        lanes.after_turn(second, Some(LaneId(2)));
        lanes.put_back(&mut ready);
        let mut got = Vec::new();
        while let Next::Run { topic, lane, .. } = ready.next(WorkerId(1), false) {
            got.push((topic, lane));
        }
        got.sort();
        assert_eq!(got, [(first, LaneId(1)), (second, LaneId(2))]);
    }
}
