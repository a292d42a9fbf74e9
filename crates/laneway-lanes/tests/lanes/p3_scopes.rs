//! 1.3: a stuck topic never stops another one.

use std::time::Duration;

use laneway_lanes::{Bound, Engine, Intake, Options, Scope, TopicError, TopicOptions};
use waiting::wait_for;

use crate::support::{Item, Log, Probe, closed_gate, item, keyless, settle};

const SCOPES: [Scope; 2] = [Scope::Shared, Scope::PerTopic];

fn engine(scope: Scope, workers: usize) -> Engine {
    let options = Options::default()
        .workers(workers)
        .scope(scope)
        .most_topics(4)
        .total(Bound::new(64, 64 << 10))
        .time_limit(None);
    Engine::start(options).expect("the options are good")
}

/// Submits keyless jobs until there is no room.
fn fill(intake: &Intake<Item>) -> usize {
    let mut taken = 0;
    while intake.try_submit(keyless(taken)).is_ok() {
        taken += 1;
    }
    usize::try_from(taken).expect("bounded")
}

async fn goes_on(intake: &Intake<Item>, log: &Log, rounds: u64) {
    let before = log.finished().len();
    for seq in 0..rounds {
        let second = Duration::from_secs(1);
        tokio::time::timeout(second, intake.submit(item(&format!("k{}", seq % 5), seq)))
            .await
            .expect("there is always room for this topic")
            .expect("it is open");
    }
    let all = before + usize::try_from(rounds).expect("small");
    wait_for!(log.finished().len() == all);
}

#[tokio::test(start_paused = true)]
async fn a_topic_whose_handlers_hang_leaves_workers_and_room_to_the_others() {
    for scope in SCOPES {
        let engine = engine(scope, 8);
        let never = closed_gate();
        let stuck = engine
            .topic("stuck", Probe::gated(&never))
            .expect("a new topic");
        let fine = Probe::ok();
        let log = fine.log();
        let fine = engine.topic("fine", fine).expect("a new topic");
        assert!(fill(&stuck) >= 16, "most of the room");
        settle().await;
        assert!(stuck.try_submit(keyless(0)).is_err(), "it is full");
        goes_on(&fine, &log, 200).await;
        assert!(stuck.depth().messages >= 16, "and is so still");
    }
}

#[tokio::test(start_paused = true)]
async fn several_stuck_topics_do_not_stop_the_last_one() {
    for scope in SCOPES {
        let engine = engine(scope, 4);
        let never = closed_gate();
        let fine = Probe::ok();
        let log = fine.log();
        let fine = engine.topic("fine", fine).expect("a new topic");
        for name in ["stuck-1", "stuck-2", "stuck-3"] {
            let stuck = engine
                .topic(name, Probe::gated(&never))
                .expect("a new topic");
            assert!(fill(&stuck) > 0);
        }
        settle().await;
        goes_on(&fine, &log, 100).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_only_fails_does_not_stop_another_one() {
    for scope in SCOPES {
        let engine = engine(scope, 2);
        let failing = Probe::new(|_| async { Err(laneway_lanes::Failure::new("never")) });
        let failing = engine
            .topic_with(
                "failing",
                TopicOptions::default().retry(crate::support::retry(
                    u32::MAX,
                    Duration::from_millis(1),
                    Duration::from_secs(1),
                )),
                failing,
            )
            .expect("a new topic");
        let fine = Probe::ok();
        let log = fine.log();
        let fine = engine.topic("fine", fine).expect("a new topic");
        fill(&failing);
        goes_on(&fine, &log, 200).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_topic_without_neighbours_may_use_every_shared_worker() {
    let engine = engine(Scope::Shared, 8);
    let gate = closed_gate();
    let probe = Probe::gated(&gate);
    let log = probe.log();
    let alone = engine.topic("alone", probe).expect("a new topic");
    fill(&alone);
    settle().await;
    assert_eq!(log.begun().len(), 8);
}

#[tokio::test(start_paused = true)]
async fn a_topic_per_engine_has_workers_and_bounds_of_its_own() {
    let engine = engine(Scope::PerTopic, 3);
    let gate = closed_gate();
    let (first, second) = (Probe::gated(&gate), Probe::gated(&gate));
    let logs = [first.log(), second.log()];
    let first = engine.topic("first", first).expect("a new topic");
    let second = engine.topic("second", second).expect("a new topic");
    assert_eq!((fill(&first), fill(&second)), (64, 64), "the total each");
    settle().await;
    for log in logs {
        assert_eq!(log.begun().len(), 3, "all workers each");
    }
    assert_eq!(engine.stats().workers.len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_topic_has_one_handler_and_its_name_is_free_after_it_closed() {
    for scope in SCOPES {
        let engine = engine(scope, 2);
        let first = engine.topic("t", Probe::ok()).expect("a new topic");
        let again = engine.topic("t", Probe::ok()).map(drop);
        assert_eq!(again, Err(TopicError::AlreadyThere("t".into())));
        first
            .close(laneway_lanes::Drain::Queued, Duration::from_secs(1))
            .await;
        let probe = Probe::ok();
        let log = probe.log();
        let second = engine.topic("t", probe).expect("the name is free");
        assert!(first.try_submit(item("k", 1)).is_err(), "closed for good");
        goes_on(&second, &log, 10).await;
    }
}

#[tokio::test(start_paused = true)]
async fn more_topics_than_there_is_room_for_are_refused() {
    let engine = engine(Scope::Shared, 2);
    for name in ["a", "b", "c", "d"] {
        engine.topic(name, Probe::ok()).expect("room for four");
    }
    let error = engine
        .topic("e", Probe::ok())
        .map(drop)
        .expect_err("a fifth");
    assert_eq!(error, TopicError::TooMany(4));
    assert_eq!(
        error.to_string(),
        "the engine has its 4 topics, of which every subscription of a bus is one: raise most_topics in \
         the options of the lanes, or use Scope::PerTopic"
    );
}
