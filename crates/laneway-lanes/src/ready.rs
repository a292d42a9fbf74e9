//! Which lane runs next, and which worker sleeps: one queue, nothing is ever searched.
//!
//! Every topic has a FIFO of its ready lanes. Topics with a ready lane and a worker to spare stand
//! in a rotation, so that a worker asking for work gets the next lane of the next topic in constant
//! time, however many lanes and topics there are.
//!
//! A topic may hold all workers but a few: each of the others keeps a reserve, so that a topic whose
//! handlers hang can never take the last worker from them.

use std::collections::VecDeque;

use super::shards::LaneId;

/// A topic of one pool of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TopicId(pub(super) usize);

/// A worker's slot in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct WorkerId(pub(super) usize);

/// At most so many workers are on their way from sleep to the queue. The first of them wakes the
/// next if it finds more than it can take, so that a burst wakes as many workers as it needs, and a
/// trickle of short jobs wakes one.
const WAKE_AHEAD: usize = 1;

/// The most lanes that a worker takes ahead.
const MOST_AHEAD: usize = 15;

/// An emptied queue of lanes keeps room for so many. A million keys must not cost for ever.
const KEEP_LANES: usize = 4096;

/// What a worker that asked for work gets.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A lane to run, and perhaps a worker to wake before running it.
    Run {
        topic: TopicId,
        lane: LaneId,
        wake: Option<WorkerId>,
    },
    /// Nothing: the worker is on the idle list now and must sleep until it is woken.
    Sleep,
}

/// The queue. It lives behind one lock; every method is a few moves long.
#[derive(Debug)]
pub(super) struct Ready {
    workers: usize,
    topics: Vec<Option<TopicQueue>>,
    /// Topics that have a ready lane and may have another worker.
    rotation: VecDeque<TopicId>,
    /// Sleeping workers. The one that slept longest is woken first, which spreads single jobs over
    /// the workers in turn.
    idle: VecDeque<WorkerId>,
    waking: usize,
    queued: usize,
    arrivals: u64,
}

#[derive(Debug, Default)]
struct TopicQueue {
    lanes: VecDeque<LaneId>,
    running: usize,
    most_workers: usize,
    in_rotation: bool,
}

impl TopicQueue {
    fn may_run(&self) -> bool {
        !self.lanes.is_empty() && self.running < self.most_workers
    }
}

impl Ready {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            workers,
            topics: Vec::new(),
            rotation: VecDeque::new(),
            idle: VecDeque::with_capacity(workers),
            waking: 0,
            queued: 0,
            arrivals: 0,
        }
    }

    pub(super) fn add_topic(&mut self) -> TopicId {
        let slot = self.topics.iter().position(Option::is_none);
        let index = slot.unwrap_or(self.topics.len());
        if index == self.topics.len() {
            self.topics.push(None);
        }
        self.topics[index] = Some(TopicQueue::default());
        self.share_workers();
        TopicId(index)
    }

    /// Forgets a topic and its ready lanes. Its last running turn must have ended. Answers a worker to
    /// wake: the others may have more of them now.
    pub(super) fn remove_topic(&mut self, id: TopicId) -> Option<WorkerId> {
        if let Some(topic) = self.topics[id.0].take() {
            debug_assert_eq!(topic.running, 0, "a topic is removed after its last turn");
            self.queued -= topic.lanes.len();
            self.rotation.retain(|&other| other != id);
            self.share_workers();
        }
        self.wake_one()
    }

    /// Puts a lane at the end of its topic's queue; answers a worker to wake.
    pub(super) fn push(&mut self, id: TopicId, lane: LaneId) -> Option<WorkerId> {
        self.enqueue(id, lane);
        self.wake_one()
    }

    /// A worker asks for work. `woken`: it comes from sleep.
    pub(super) fn next(&mut self, worker: WorkerId, woken: bool) -> Next {
        if woken {
            self.waking = self.waking.saturating_sub(1);
            self.arrivals += 1;
        }
        let Some(topic_id) = self.rotation.pop_front() else {
            self.idle.push_back(worker);
            return Next::Sleep;
        };
        let topic = self.topics[topic_id.0]
            .as_mut()
            .expect("a topic leaves the rotation when it is removed");
        let lane = topic
            .lanes
            .pop_front()
            .expect("a topic in the rotation has a ready lane");
        if topic.lanes.is_empty() && topic.lanes.capacity() > KEEP_LANES {
            topic.lanes = VecDeque::new();
        }
        topic.running += 1;
        topic.in_rotation = false;
        self.queued -= 1;
        self.rotate(topic_id);
        Next::Run {
            topic: topic_id,
            lane,
            wake: self.wake_one(),
        }
    }

    /// A worker is done with `id` for now; lanes that have more go to the end of the queue.
    pub(super) fn turn_ended(
        &mut self,
        id: TopicId,
        again: impl IntoIterator<Item = LaneId>,
    ) -> Option<WorkerId> {
        if let Some(topic) = self.topics[id.0].as_mut() {
            topic.running -= 1;
            self.rotate(id);
            for lane in again {
                self.enqueue(id, lane);
            }
        }
        self.wake_one()
    }

    /// Further lanes for a worker that has just got one of this topic: none, unless more are waiting
    /// than all workers together could begin with.
    pub(super) fn take_ahead(&mut self, id: TopicId, into: &mut VecDeque<LaneId>) {
        if let Some(topic) = self.topics[id.0].as_mut() {
            let count = (topic.lanes.len() / self.workers).min(MOST_AHEAD);
            into.extend(topic.lanes.drain(..count));
            self.queued -= count;
        }
    }

    /// Lanes that were taken ahead come back to the front, those that have more to the end. Answers
    /// a worker to wake.
    pub(super) fn bring_back(
        &mut self,
        id: TopicId,
        ahead: impl DoubleEndedIterator<Item = LaneId>,
        again: impl Iterator<Item = LaneId>,
    ) -> Option<WorkerId> {
        if let Some(topic) = self.topics[id.0].as_mut() {
            for lane in ahead.rev() {
                topic.lanes.push_front(lane);
                self.queued += 1;
            }
            self.rotate(id);
            for lane in again {
                self.enqueue(id, lane);
            }
        }
        self.wake_one()
    }

    /// How many lanes wait for a worker.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// How many turns of `id` are running.
    pub(super) fn running(&self, id: TopicId) -> usize {
        self.topics[id.0].as_ref().map_or(0, |t| t.running)
    }

    /// Counts the woken workers that came. If it stands still while lanes wait and others sleep, the
    /// one that was woken for them is not getting a thread.
    pub(super) fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// Wakes one more worker than [`push`](Self::push) would, for the watchdog.
    pub(super) fn nudge(&mut self) -> Option<WorkerId> {
        if self.rotation.is_empty() {
            return None;
        }
        self.waking = 0;
        self.wake_one()
    }

    fn enqueue(&mut self, id: TopicId, lane: LaneId) {
        if let Some(topic) = self.topics[id.0].as_mut() {
            topic.lanes.push_back(lane);
            self.queued += 1;
            self.rotate(id);
        }
    }

    fn rotate(&mut self, id: TopicId) {
        if let Some(topic) = self.topics[id.0].as_mut()
            && !topic.in_rotation
            && topic.may_run()
        {
            topic.in_rotation = true;
            self.rotation.push_back(id);
        }
    }

    fn wake_one(&mut self) -> Option<WorkerId> {
        if self.rotation.is_empty() || self.waking >= WAKE_AHEAD {
            return None;
        }
        let worker = self.idle.pop_front()?;
        self.waking += 1;
        Some(worker)
    }

    /// Each topic may have all workers but what the others keep in reserve: together a quarter of
    /// the workers, at least one each.
    fn share_workers(&mut self) {
        let count = self.topics.iter().flatten().count();
        if count == 0 {
            return;
        }
        let reserve = (self.workers / (4 * count)).max(1);
        let most = self.workers.saturating_sub((count - 1) * reserve).max(1);
        for topic in self.topics.iter_mut().flatten() {
            topic.most_workers = most;
            topic.in_rotation = false;
        }
        // From the start: a topic that stood in it may have all the workers it is now allowed.
        self.rotation.clear();
        for index in 0..self.topics.len() {
            self.rotate(TopicId(index));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: WorkerId = WorkerId(0);

    fn lane(next: &Next) -> Option<(usize, u64)> {
        match next {
            Next::Run { topic, lane, .. } => Some((topic.0, lane.0)),
            Next::Sleep => None,
        }
    }

    #[test]
    fn topics_take_turns_and_lanes_are_first_in_first_out() {
        let mut ready = Ready::new(8);
        let (a, b) = (ready.add_topic(), ready.add_topic());
        for id in 0..3 {
            ready.push(a, LaneId(id));
        }
        ready.push(b, LaneId(100));
        let order: Vec<_> = (0..4)
            .filter_map(|_| lane(&ready.next(FIRST, false)))
            .collect();
        assert_eq!(order, [(0, 0), (1, 100), (0, 1), (0, 2)]);
        assert_eq!(ready.queued(), 0);
    }

    #[test]
    fn a_hanging_topic_leaves_the_others_their_reserve() {
        let mut ready = Ready::new(8);
        let (stuck, fine) = (ready.add_topic(), ready.add_topic());
        for id in 0..100 {
            ready.push(stuck, LaneId(id));
        }
        let mut held = 0;
        while lane(&ready.next(FIRST, false)).is_some() {
            held += 1;
        }
        assert_eq!(held, 7, "all workers but the other topic's reserve");
        ready.push(fine, LaneId(1));
        assert_eq!(lane(&ready.next(FIRST, false)), Some((fine.0, 1)));
        ready.turn_ended(stuck, None);
        assert_eq!(lane(&ready.next(FIRST, false)), Some((stuck.0, 7)));
    }

    #[test]
    fn a_topic_takes_no_further_worker_of_those_that_a_new_one_is_to_have() {
        let mut ready = Ready::new(4);
        let old = ready.add_topic();
        for id in 0..10 {
            ready.push(old, LaneId(id));
        }
        for _ in 0..3 {
            assert!(lane(&ready.next(FIRST, false)).is_some());
        }
        let new = ready.add_topic();
        assert_eq!(
            lane(&ready.next(FIRST, false)),
            None,
            "it has three of four"
        );
        ready.push(new, LaneId(1));
        assert_eq!(lane(&ready.next(FIRST, false)), Some((new.0, 1)));
    }

    #[test]
    fn the_workers_of_a_topic_that_goes_are_woken_for_the_others() {
        let mut ready = Ready::new(2);
        let (stays, goes) = (ready.add_topic(), ready.add_topic());
        for id in 0..2 {
            ready.push(stays, LaneId(id));
        }
        assert!(lane(&ready.next(WorkerId(0), false)).is_some());
        assert_eq!(
            ready.next(WorkerId(1), false),
            Next::Sleep,
            "kept for the other"
        );
        assert_eq!(ready.remove_topic(goes), Some(WorkerId(1)));
    }

    #[test]
    fn a_single_topic_may_have_every_worker() {
        let mut ready = Ready::new(3);
        let only = ready.add_topic();
        for id in 0..5 {
            ready.push(only, LaneId(id));
        }
        let held = (0..5)
            .filter(|_| lane(&ready.next(FIRST, false)).is_some())
            .count();
        assert_eq!(held, 3);
    }

    #[test]
    fn the_longest_sleeper_is_woken_first_and_wakes_the_next() {
        let mut ready = Ready::new(3);
        let topic = ready.add_topic();
        for worker in 0..3 {
            assert_eq!(ready.next(WorkerId(worker), false), Next::Sleep);
        }
        assert_eq!(ready.push(topic, LaneId(1)), Some(WorkerId(0)));
        assert_eq!(ready.push(topic, LaneId(2)), None, "one is on its way");
        assert_eq!(
            ready.next(WorkerId(0), true),
            Next::Run {
                topic,
                lane: LaneId(1),
                wake: Some(WorkerId(1))
            }
        );
    }

    #[test]
    fn a_nudge_wakes_another_worker_when_the_woken_one_does_not_come() {
        let mut ready = Ready::new(2);
        let topic = ready.add_topic();
        ready.next(WorkerId(0), false);
        ready.next(WorkerId(1), false);
        assert_eq!(ready.push(topic, LaneId(1)), Some(WorkerId(0)));
        assert_eq!(ready.nudge(), Some(WorkerId(1)));
    }

    #[test]
    fn lanes_are_taken_ahead_only_when_all_workers_have_enough() {
        let mut ready = Ready::new(4);
        let topic = ready.add_topic();
        let mut ahead = VecDeque::new();
        for id in 0..12 {
            ready.push(topic, LaneId(id));
        }
        assert_eq!(lane(&ready.next(FIRST, false)), Some((0, 0)));
        ready.take_ahead(topic, &mut ahead);
        assert_eq!(ahead, [LaneId(1), LaneId(2)], "11 for 4 workers");
        assert_eq!(ready.queued(), 9);
        ready.bring_back(topic, ahead.drain(..), [LaneId(0)].into_iter());
        assert_eq!(ready.queued(), 12);
        let order: Vec<_> = (0..3)
            .filter_map(|_| lane(&ready.next(FIRST, false)))
            .collect();
        assert_eq!(order, [(0, 1), (0, 2), (0, 3)], "as if nothing had been");
        for _ in 0..3 {
            ready.turn_ended(topic, None);
        }
        while ready.queued() > 3 {
            ready.next(FIRST, false);
            ready.turn_ended(topic, None);
        }
        ready.take_ahead(topic, &mut ahead);
        assert!(ahead.is_empty(), "fewer than workers");
    }

    #[test]
    fn an_emptied_queue_returns_its_memory() {
        let mut ready = Ready::new(1);
        let topic = ready.add_topic();
        for id in 0..100_000 {
            ready.push(topic, LaneId(id));
        }
        while lane(&ready.next(FIRST, false)).is_some() {
            ready.turn_ended(topic, None);
        }
        let queue = ready.topics[topic.0].as_ref().map(|t| t.lanes.capacity());
        assert!(queue.is_some_and(|capacity| capacity <= KEEP_LANES));
    }

    #[test]
    fn a_removed_topic_takes_its_lanes_with_it_and_its_place_is_used_again() {
        let mut ready = Ready::new(2);
        let gone = ready.add_topic();
        ready.push(gone, LaneId(1));
        assert_eq!(ready.remove_topic(gone), None);
        assert_eq!(ready.queued(), 0);
        assert_eq!(ready.next(FIRST, false), Next::Sleep);
        assert_eq!(ready.add_topic(), gone);
    }
}
