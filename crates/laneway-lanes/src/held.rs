//! Lanes that wait together until their handler admits one of them.
//!
//! When the lease of a partition is not valid, no lane of it may run, and there may be fifty thousand. If
//! each of them asked every few milliseconds, that alone would keep all cores busy, just when the owner
//! has to reach its broker again. So lanes of one *group* share one question: now and then a single lane
//! of the group is made ready and asks. Once it hears anything but "not yet", all of them are.
//!
//! Pure: time is an argument.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::ready::TopicId;
use super::shards::LaneId;

#[derive(Debug, Default)]
pub(super) struct Held {
    groups: BTreeMap<(TopicId, u64), Group>,
    /// Lanes that were sent to ask, and for which group.
    asking: HashMap<(TopicId, LaneId), u64>,
}

#[derive(Debug)]
struct Group {
    lanes: VecDeque<LaneId>,
    ask_at: Instant,
    every: Duration,
}

impl Held {
    /// The lane waits with its group, which asks again after `every`.
    pub(super) fn hold(
        &mut self,
        topic: TopicId,
        group: u64,
        lane: LaneId,
        (now, every): (Instant, Duration),
    ) {
        self.asking.remove(&(topic, lane));
        let entry = self.groups.entry((topic, group)).or_insert_with(|| Group {
            lanes: VecDeque::new(),
            ask_at: now + every,
            every,
        });
        entry.lanes.push_back(lane);
    }

    /// When the next group has to ask.
    pub(super) fn next(&self) -> Option<Instant> {
        self.groups.values().map(|group| group.ask_at).min()
    }

    /// One lane of each group that has to ask by now. A group whose lanes are all out asking is gone;
    /// it is made anew when one of them comes back.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(TopicId, LaneId)> {
        let mut due = Vec::new();
        self.groups.retain(|&(topic, number), group| {
            if group.ask_at <= now
                && let Some(lane) = group.lanes.pop_front()
            {
                group.ask_at = now + group.every;
                self.asking.insert((topic, lane), number);
                due.push((topic, lane));
            }
            !group.lanes.is_empty()
        });
        due
    }

    /// A lane heard something else than "not yet". If it was asking for its group, answers the others.
    pub(super) fn answered(&mut self, topic: TopicId, lane: LaneId) -> VecDeque<LaneId> {
        let group = self.asking.remove(&(topic, lane));
        group
            .and_then(|group| self.groups.remove(&(topic, group)))
            .map(|group| group.lanes)
            .unwrap_or_default()
    }

    pub(super) fn is_asking(&self) -> bool {
        !self.asking.is_empty()
    }

    /// Forgets the lanes of a topic that is gone.
    pub(super) fn forget(&mut self, gone: TopicId) {
        self.groups.retain(|(topic, _), _| *topic != gone);
        self.asking.retain(|(topic, _), _| *topic != gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPIC: TopicId = TopicId(0);
    const EVERY: Duration = Duration::from_millis(20);

    fn held(lanes: u64, now: Instant) -> Held {
        let mut held = Held::default();
        for lane in 0..lanes {
            held.hold(TOPIC, lane % 2, LaneId(lane), (now, EVERY));
        }
        held
    }

    #[test]
    fn one_lane_of_each_group_asks_at_a_time() {
        let now = Instant::now();
        let mut held = held(1000, now);
        assert_eq!(held.due(now), [], "not yet");
        assert_eq!(held.next(), Some(now + EVERY));
        let asking = held.due(now + EVERY);
        assert_eq!(asking, [(TOPIC, LaneId(0)), (TOPIC, LaneId(1))]);
        assert_eq!(held.due(now + EVERY), [], "each group once");
        held.hold(TOPIC, 0, LaneId(0), (now + EVERY, EVERY));
        assert_eq!(held.due(now + 2 * EVERY).len(), 2, "and again");
    }

    #[test]
    fn all_of_a_group_go_when_one_of_them_may() {
        let now = Instant::now();
        let mut held = held(1000, now);
        assert!(held.answered(TOPIC, LaneId(4)).is_empty(), "it did not ask");
        held.due(now + EVERY);
        assert_eq!(held.answered(TOPIC, LaneId(1)).len(), 499);
        assert_eq!(held.answered(TOPIC, LaneId(0)).len(), 499);
        assert_eq!((held.next(), held.is_asking()), (None, false));
    }

    #[test]
    fn a_lane_that_does_not_come_back_strands_no_other() {
        let now = Instant::now();
        let mut held = held(4, now);
        held.due(now + EVERY);
        assert_eq!(held.due(now + 2 * EVERY).len(), 2, "the next ones ask");
        assert_eq!(held.next(), None, "none is left behind");
    }
}
