//! A model of the engine, and random cases that hold the engine to it.
//!
//! Each case is a set-up, a list of jobs with what befalls each of them at every try, and perhaps a
//! close in the middle. From these alone the model knows how every job must end. What really happened
//! is judged twice: by the model (the right end, after the right number of tries, exactly once) and
//! by the history checker (order, nothing lost, nothing twice, one at a time per lane, bounds).
//!
//! A case that fails is made as small as it gets, printed, and its seed is kept in
//! `proptest-regressions/lanes_model.txt`, to be tried first the next time.

#[path = "lanes/model/case.rs"]
mod case;
#[path = "lanes/model/run.rs"]
mod run;

use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestRunner};

use case::{Clock, cases};

/// Runs `count` random cases on the clock.
fn check(clock: Clock, count: u32) {
    let persistence = FileFailurePersistence::Direct("proptest-regressions/lanes_model.txt");
    let config = ProptestConfig {
        cases: count,
        failure_persistence: Some(Box::new(persistence)),
        max_shrink_time: 30_000,
        source_file: Some(file!()),
        ..ProptestConfig::default()
    };
    TestRunner::new(config)
        .run(&cases(clock), |case| {
            run::run(&case).map_err(TestCaseError::fail)
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

/// One thread and a clock that jumps: time-outs, retries and deadlines in no time, and the same
/// result every time.
#[test]
fn the_engine_does_what_the_model_says_on_a_paused_clock() {
    check(Clock::Paused, 400);
}

/// Several threads and the real clock.
#[test]
fn the_engine_does_what_the_model_says_on_several_threads() {
    check(Clock::Real, 100);
}
