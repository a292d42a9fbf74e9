//! The scheduling core under shuttle: thousands of interleavings of submitters, workers and timer.
//!
//! The files of the core are compiled here once more, against locks and atomics at which shuttle
//! decides who runs next. Explored are random schedules, and schedules with few, well placed changes
//! of thread (PCT), which find rarer bugs. A failure prints the schedule to replay it.

#[path = "lanes/interleavings/sync.rs"]
mod sync;

#[path = "../src/cache_padded.rs"]
mod cache_padded;

#[path = "../src/capacity.rs"]
#[expect(unreachable_pub, reason = "it is public in the crate it is made for")]
mod capacity;
#[path = "../src/ready.rs"]
#[expect(dead_code, reason = "what the watchdog uses is not explored here")]
mod ready;
#[path = "../src/shards.rs"]
mod shards;
#[path = "../src/stash.rs"]
mod stash;

#[path = "lanes/interleavings/rig.rs"]
mod rig;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use shuttle::thread;

use capacity::{Bound, Gate};
use ready::TopicId;
use rig::{Does, Rig, Setup, Token};
use shards::{LaneId, Pushed};

/// Of each kind, for each scenario.
const ITERATIONS: usize = 1000;

/// Explores `scenario` under both kinds of schedules.
fn explore(scenario: fn()) {
    shuttle::check_random(scenario, ITERATIONS);
    shuttle::check_pct(scenario, ITERATIONS, 3);
}

const SETUP: Setup = Setup {
    workers: 2,
    lane_bound: 2,
    room: 4,
    turn: 2,
    does: Does::Finish,
    places_change: false,
    looks: 0,
};

/// Starts a submitter of `each` jobs of every lane.
fn submitter(
    rig: &Arc<Rig>,
    topic: TopicId,
    lanes: std::ops::Range<u64>,
    each: u64,
) -> thread::JoinHandle<usize> {
    let rig = Arc::clone(rig);
    let shards = rig.shards(topic).expect("the topic is there");
    thread::spawn(move || {
        let mut accepted = 0;
        for seq in 0..each {
            for lane in lanes.clone() {
                accepted += usize::from(rig.submit(topic, &shards, Token { lane, seq }));
            }
        }
        accepted
    })
}

/// Every lane of `finished` in order, without gaps from the start.
fn assert_in_order(finished: &[(TopicId, Token)]) {
    let mut next: HashMap<_, u64> = HashMap::new();
    for (topic, token) in finished {
        let expected = next.entry((*topic, token.lane)).or_default();
        assert_eq!(token.seq, *expected, "in the order of lane {}", token.lane);
        *expected += 1;
    }
}

/// Two submitters on lanes of their own, two workers, too little room for all.
fn submitters_and_workers() {
    let rig = Rig::new(&SETUP);
    let topic = rig.add_topic();
    let threads = rig.start();
    let submitters = [
        submitter(&rig, topic, 0..2, 2),
        submitter(&rig, topic, 2..4, 2),
    ];
    rig.finish(8, threads);
    for submitter in submitters {
        assert_eq!(submitter.join().expect("no panic"), 4);
    }
    assert_in_order(&rig.finished());
    assert_eq!(rig.finished().len(), 8);
    assert_eq!(rig.shards(topic).map(|shards| shards.live()), Some(0));
}

#[test]
fn no_wake_up_is_lost_and_no_lane_forgotten() {
    explore(submitters_and_workers);
}

#[test]
fn a_lane_has_one_owner_and_is_on_the_queue_once() {
    explore(|| {
        // Both submit to the same lane: order is theirs to keep, ownership is ours.
        let rig = Rig::new(&Setup {
            workers: 3,
            lane_bound: 10,
            room: 10,
            ..SETUP
        });
        let topic = rig.add_topic();
        let threads = rig.start();
        let submitters = [
            submitter(&rig, topic, 0..1, 3),
            submitter(&rig, topic, 0..2, 2),
        ];
        rig.finish(7, threads);
        for submitter in submitters {
            submitter.join().expect("no panic");
        }
        assert_eq!(rig.finished().len(), 7);
    });
}

#[test]
fn a_lane_that_backs_off_comes_back_once_and_goes_on_in_order() {
    explore(|| {
        let rig = Rig::new(&Setup {
            does: Does::FailOnce,
            lane_bound: 3,
            ..SETUP
        });
        let topic = rig.add_topic();
        let threads = rig.start();
        let submitter = submitter(&rig, topic, 0..2, 3);
        rig.finish(6, threads);
        submitter.join().expect("no panic");
        assert_in_order(&rig.finished());
        assert_eq!(rig.finished().len(), 6);
    });
}

#[test]
fn what_is_accepted_while_it_closes_is_over_exactly_once() {
    explore(|| {
        let rig = Rig::new(&Setup {
            does: Does::FailOnce,
            ..SETUP
        });
        let topic = rig.add_topic();
        let shards = rig.shards(topic).expect("the topic is there");
        let threads = rig.start();
        let submitters = [
            submitter(&rig, topic, 0..2, 2),
            submitter(&rig, topic, 2..3, 2),
        ];
        rig.close(topic, &shards);
        let mut accepted = 0;
        for submitter in submitters {
            accepted += submitter.join().expect("no panic");
        }
        rig.finish(accepted, threads);
        assert_in_order(&rig.finished());
        let (finished, back) = (rig.finished(), rig.handed_back());
        assert_eq!(finished.len() + back.len(), accepted);
        let different: HashSet<_> = finished.into_iter().chain(back).collect();
        assert_eq!(different.len(), accepted, "nothing is over twice");
        assert_eq!(shards.live(), 0);
    });
}

#[test]
fn topics_share_the_workers_and_none_is_forgotten() {
    explore(|| {
        let rig = Rig::new(&SETUP);
        let topics = [rig.add_topic(), rig.add_topic()];
        let threads = rig.start();
        let submitters = topics.map(|topic| submitter(&rig, topic, 0..2, 2));
        rig.finish(8, threads);
        for submitter in submitters {
            submitter.join().expect("no panic");
        }
        assert_in_order(&rig.finished());
    });
}

/// The watchdog puts back what workers have taken ahead, while they change from topic to topic. A lane
/// that it put on the queue of another topic would never run again.
#[test]
fn what_a_watchdog_puts_back_runs_in_its_own_topic() {
    explore(|| {
        let rig = Rig::new(&Setup {
            workers: 1,
            lane_bound: 8,
            room: 16,
            turn: 1,
            looks: 8,
            ..SETUP
        });
        let (first, second) = (rig.add_topic(), rig.add_topic());
        // The worker begins with a few lanes of the first topic, some of them ahead, and then has to
        // change to lanes of the second one, which have more than one turn each.
        submitter(&rig, first, 0..4, 1).join().expect("no panic");
        let threads = rig.start();
        let submitter = submitter(&rig, second, 10..12, 3);
        rig.finish(10, threads);
        submitter.join().expect("no panic");
        assert_in_order(&rig.finished());
    });
}

#[test]
fn what_a_watchdog_puts_back_is_taken_by_other_workers() {
    explore(|| {
        let rig = Rig::new(&Setup {
            lane_bound: 8,
            room: 16,
            turn: 1,
            looks: 6,
            ..SETUP
        });
        let topic = rig.add_topic();
        let threads = rig.start();
        let submitters = [
            submitter(&rig, topic, 0..4, 2),
            submitter(&rig, topic, 4..6, 2),
        ];
        rig.finish(12, threads);
        for submitter in submitters {
            submitter.join().expect("no panic");
        }
        assert_in_order(&rig.finished());
    });
}

/// A topic closes and goes, and another one takes its place, between the two halves of a submit: the
/// job is in its lane (and was handed back), and the lane is not yet on the ready queue.
#[test]
fn a_late_submit_to_a_closed_topic_does_the_next_one_no_harm() {
    explore(|| {
        let rig = Rig::new(&Setup {
            lane_bound: 4,
            room: 8,
            turn: 4,
            places_change: true,
            ..SETUP
        });
        let old = rig.add_topic();
        let shards = rig.shards(old).expect("the topic is there");
        let token = Token { lane: 0, seq: 0 };
        assert_eq!(rig.enqueue(old, &shards, token), Ok(Pushed::MakeReady));
        rig.close(old, &shards);
        assert!(rig.remove_topic(old));
        let new = rig.add_topic();
        assert_eq!(new, old, "its place is used again");

        let threads = rig.start();
        let submitter = submitter(&rig, new, 0..1, 4);
        let late = Arc::clone(&rig);
        let late = thread::spawn(move || late.make_ready(old, LaneId(0)));
        rig.finish(5, threads);
        submitter.join().expect("no panic");
        late.join().expect("no panic");
        assert_in_order(&rig.finished());
        assert_eq!((rig.finished().len(), rig.handed_back().len()), (4, 1));
    });
}

#[test]
fn a_lane_never_holds_more_than_its_bound_nor_the_gate_more_than_its_own() {
    explore(|| {
        let rig = Rig::new(&Setup { room: 3, ..SETUP });
        let topic = rig.add_topic();
        let threads = rig.start();
        let submitters = [
            submitter(&rig, topic, 0..1, 4),
            submitter(&rig, topic, 1..2, 2),
        ];
        rig.finish(6, threads);
        for submitter in submitters {
            submitter.join().expect("no panic");
        }
        assert_in_order(&rig.finished());
    });
}

#[test]
fn a_gate_never_lets_in_more_than_its_bound() {
    explore(|| {
        // Two at a time, because of the messages; two at a time, because of the bytes.
        for bound in [Bound::new(2, 1000), Bound::new(1000, 25)] {
            let gate = Arc::new(Gate::new(bound));
            let takers: Vec<_> = (0..3)
                .map(|_| {
                    let gate = Arc::clone(&gate);
                    thread::spawn(move || {
                        while !gate.try_take(10) {
                            thread::yield_now();
                        }
                        let used = gate.in_use();
                        assert!(used.messages <= 2 && used.bytes <= 20, "{used:?}");
                        gate.give_back(Bound::new(1, 10));
                    })
                })
                .collect();
            for taker in takers {
                taker.join().expect("no panic");
            }
            assert_eq!(gate.in_use(), Bound::new(0, 0));
        }
    });
}
