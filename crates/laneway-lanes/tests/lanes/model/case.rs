//! A random case, and what the model says about it.

use std::num::NonZeroU32;
use std::time::Duration;

use laneway_lanes::retry::RetryPolicy;
use laneway_lanes::{Bound, Drain, LaneBy, Options, Scope};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    Paused,
    Real,
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) clock: Clock,
    pub(crate) workers: usize,
    pub(crate) scope: Scope,
    pub(crate) lane_by: LaneBy,
    pub(crate) lane_bound: usize,
    pub(crate) total: Bound,
    pub(crate) topics: usize,
    pub(crate) batch: usize,
    pub(crate) attempts: u32,
    pub(crate) plans: Vec<Plan>,
    pub(crate) close: Option<Close>,
}

/// What becomes of one job.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) topic: usize,
    pub(crate) key: Option<u8>,
    pub(crate) bytes: usize,
    pub(crate) submit: Submit,
    pub(crate) pace: Pace,
    /// How its tries go wrong; the one after the last of these succeeds.
    pub(crate) mishaps: Vec<Mishap>,
    /// How often handing it over fails, should it come to that.
    pub(crate) handover_failures: u8,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Submit {
    IfRoom,
    Wait,
    WaitALittle,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    AtOnce,
    Yield,
    Sleep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mishap {
    Fail,
    Fatal,
    Panic,
    Hang,
}

/// In the middle of it all, the engine or its first topic is closed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Close {
    pub(crate) after_submits: usize,
    pub(crate) only_first_topic: bool,
    pub(crate) drain: Drain,
    pub(crate) deadline: Duration,
}

/// How a job must end if nothing is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fate {
    pub(crate) done: bool,
    pub(crate) tries: usize,
}

impl Plan {
    pub(crate) fn fate(&self, attempts: u32) -> Fate {
        for (tried, mishap) in self.mishaps.iter().enumerate() {
            let tries = tried + 1;
            if *mishap == Mishap::Fatal || tries == attempts as usize {
                return Fate { done: false, tries };
            }
        }
        Fate {
            done: true,
            tries: self.mishaps.len() + 1,
        }
    }
}

impl Case {
    pub(crate) fn options(&self) -> Options {
        // Long enough that no wait of a good try comes near it, and nothing on a jumping clock.
        let limit = match self.clock {
            Clock::Paused => Some(Duration::from_secs(1)),
            Clock::Real => None,
        };
        let retry = RetryPolicy::exponential(
            self.attempts,
            Duration::from_millis(1),
            Duration::from_millis(5),
        );
        Options::default()
            .workers(self.workers)
            .scope(self.scope)
            .lane_by(self.lane_by)
            .lane_bound(self.lane_bound)
            .most_topics(self.topics)
            .total(self.total)
            .time_limit(limit)
            .retry(retry.expect("the policy is good"))
    }
}

fn mishaps(clock: Clock) -> impl Strategy<Value = Vec<Mishap>> {
    // What hangs needs a time limit, and a time limit needs a clock that does not depend on how busy
    // the machine is.
    let hang = match clock {
        Clock::Paused => Mishap::Hang,
        Clock::Real => Mishap::Fail,
    };
    let mishap = prop_oneof![
        4 => Just(Mishap::Fail),
        1 => Just(Mishap::Fatal),
        2 => Just(Mishap::Panic),
        1 => Just(hang),
    ];
    prop_oneof![
        6 => Just(Vec::new()),
        3 => vec(mishap, 1..5),
    ]
}

fn plan(clock: Clock, topics: usize) -> impl Strategy<Value = Plan> {
    let submit = prop_oneof![
        Just(Submit::IfRoom),
        Just(Submit::Wait),
        Just(Submit::WaitALittle)
    ];
    let pace = prop_oneof![
        3 => Just(Pace::AtOnce),
        2 => Just(Pace::Yield),
        1 => Just(Pace::Sleep),
    ];
    (
        0..topics,
        option::weighted(0.85, 0_u8..5),
        0_usize..30,
        submit,
        pace,
        mishaps(clock),
        prop_oneof![4 => Just(0_u8), 1 => 1..3_u8],
    )
        .prop_map(
            |(topic, key, bytes, submit, pace, mishaps, handover_failures)| Plan {
                topic,
                key,
                bytes,
                submit,
                pace,
                mishaps,
                handover_failures,
            },
        )
}

fn close() -> impl Strategy<Value = Close> {
    (
        0_usize..60,
        any::<bool>(),
        prop_oneof![Just(Drain::Queued), Just(Drain::Running)],
        prop_oneof![Just(0), 0_u64..20, Just(5000)],
    )
        .prop_map(|(after_submits, only_first_topic, drain, deadline)| Close {
            after_submits,
            only_first_topic,
            drain,
            deadline: Duration::from_millis(deadline),
        })
}

pub(crate) fn cases(clock: Clock) -> impl Strategy<Value = Case> {
    let lane_by = prop_oneof![
        Just(LaneBy::Key),
        (1_u32..6).prop_map(|lanes| LaneBy::Hash(NonZeroU32::new(lanes).expect("from 1")))
    ];
    let scope = prop_oneof![Just(Scope::Shared), Just(Scope::PerTopic)];
    let set_up = (1_usize..7, scope, lane_by, 1_usize..25, 1_usize..4);
    set_up.prop_flat_map(move |(workers, scope, lane_by, lane_bound, topics)| {
        (
            4 * topics..80,
            100_usize..400,
            prop_oneof![Just(1_usize), 2..7_usize, Just(20)],
            1_u32..5,
            vec(plan(clock, topics), 1..80),
            option::weighted(0.4, close()),
        )
            .prop_map(
                move |(messages, bytes, batch, attempts, plans, close)| Case {
                    clock,
                    workers,
                    scope,
                    lane_by,
                    lane_bound,
                    total: Bound::new(messages, bytes),
                    topics,
                    batch,
                    attempts,
                    plans,
                    close,
                },
            )
    })
}
