//! 1.2: how many workers, how much room, and what happens when there is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use laneway_lanes::{
    Bound, Engine, Full, Options, OptionsError, Outcome, Refusal, Scope, StartError, SubmitError,
    TopicOptions,
};
use tokio::time::Instant;
use waiting::wait_for;

use crate::support::{Item, PATIENCE, Probe, closed_gate, item, keyless, one_topic, open, settle};

/// Room that no test fills.
const PLENTY: Bound = Bound::new(100_000, 1 << 30);

fn refusal(answer: Result<(), SubmitError<Item>>) -> Refusal {
    answer.expect_err("there is no room").reason
}

fn sized(seq: u64, bytes: usize) -> Item {
    Item {
        bytes,
        ..keyless(seq)
    }
}

#[tokio::test(start_paused = true)]
async fn there_are_256_workers_and_1000_jobs_to_a_lane_by_default() {
    let gate = closed_gate();
    let (engine, intake, log) = one_topic(Options::default(), Probe::gated(&gate));
    assert_eq!(engine.stats().workers.len(), 256);
    for seq in 0..1000 {
        intake.try_submit(item("k", seq)).expect("within the bound");
    }
    assert_eq!(
        refusal(intake.try_submit(item("k", 1000))),
        Refusal::QueueFull(Full::Lane)
    );
    for seq in 0..300 {
        intake.try_submit(keyless(seq)).expect("another lane");
    }
    settle().await;
    assert_eq!(log.begun().len(), 256, "so many run at a time");
}

#[tokio::test(start_paused = true)]
async fn at_most_65536_messages_and_256_mib_are_under_way_by_default() {
    let gate = closed_gate();
    // All that a single topic can have: its own reserve, and what is shared.
    let most = 65_536 - 63 * (65_536 / 4 / 64);
    let (_engine, intake, _) = one_topic(Options::default(), Probe::gated(&gate));
    for seq in 0..most {
        intake.try_submit(sized(seq, 0)).expect("within the bound");
    }
    assert_eq!(
        refusal(intake.try_submit(sized(most, 0))),
        Refusal::QueueFull(Full::Engine)
    );

    let (_engine, intake, _) = one_topic(Options::default(), Probe::gated(&gate));
    let mib = 1 << 20;
    // A quarter is set aside for 64 topics in equal parts of 1 MiB.
    for seq in 0..193 {
        intake
            .try_submit(sized(seq, mib))
            .expect("within the bound");
    }
    assert_eq!(
        refusal(intake.try_submit(sized(193, mib))),
        Refusal::QueueFull(Full::Engine)
    );
}

#[tokio::test(start_paused = true)]
async fn a_full_lane_refuses_and_the_others_do_not() {
    let gate = closed_gate();
    let options = Options::default().workers(2).lane_bound(3);
    let (engine, intake, log) = one_topic(options, Probe::gated(&gate));
    for seq in 0..3 {
        intake.try_submit(item("full", seq)).expect("there is room");
    }
    settle().await;
    assert_eq!(
        refusal(intake.try_submit(item("full", 3))),
        Refusal::QueueFull(Full::Lane),
        "what runs counts"
    );
    intake.try_submit(item("other", 0)).expect("there is room");
    assert_eq!(
        intake.depth(),
        Bound::new(4, 4),
        "the refused one took no room"
    );

    gate.add_permits(1);
    wait_for!(log.ended().len() == 1);
    settle().await;
    intake
        .try_submit(item("full", 3))
        .expect("room for one again");
    assert!(intake.try_submit(item("full", 4)).is_err(), "and only one");
    assert_eq!(engine.stats().topics[0].lanes, 2);
}

#[tokio::test(start_paused = true)]
async fn the_window_of_a_topic_is_kept_in_messages_and_in_bytes() {
    let gate = closed_gate();
    let engine = Engine::start(Options::default().workers(2).total(PLENTY)).expect("good options");
    let window = |bound| TopicOptions::default().window(bound);
    let few = engine
        .topic_with("few", window(Bound::new(5, 1 << 20)), Probe::gated(&gate))
        .expect("a new topic");
    let small = engine
        .topic_with("small", window(Bound::new(1000, 100)), Probe::gated(&gate))
        .expect("a new topic");
    for seq in 0..5 {
        few.try_submit(keyless(seq)).expect("within the window");
    }
    assert_eq!(
        refusal(few.try_submit(keyless(5))),
        Refusal::QueueFull(Full::Topic)
    );
    small.try_submit(sized(0, 60)).expect("within the window");
    assert_eq!(
        refusal(small.try_submit(sized(1, 41))),
        Refusal::QueueFull(Full::Topic)
    );
    small.try_submit(sized(1, 40)).expect("to the last byte");
    assert_eq!(small.depth(), Bound::new(2, 100));
}

#[tokio::test(start_paused = true)]
async fn the_total_is_kept_in_messages_and_in_bytes() {
    let gate = closed_gate();
    for (scope, full) in [
        (Scope::Shared, Full::Engine),
        (Scope::PerTopic, Full::Topic),
    ] {
        let options = |total| {
            Options::default()
                .workers(2)
                .scope(scope)
                .most_topics(1)
                .total(total)
        };
        let (_engine, intake, _) = one_topic(options(Bound::new(8, 1 << 20)), Probe::gated(&gate));
        for seq in 0..8 {
            intake.try_submit(keyless(seq)).expect("within the total");
        }
        assert_eq!(
            refusal(intake.try_submit(keyless(8))),
            Refusal::QueueFull(full)
        );
        let (_engine, intake, _) = one_topic(options(Bound::new(1000, 400)), Probe::gated(&gate));
        for seq in 0..8 {
            intake.try_submit(sized(seq, 50)).expect("within the total");
        }
        assert_eq!(
            refusal(intake.try_submit(sized(8, 50))),
            Refusal::QueueFull(full)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_submit_without_room_waits_until_there_is_some() {
    let gate = closed_gate();
    let options = Options::default().workers(2).lane_bound(2).time_limit(None);
    let (_engine, intake, log) = one_topic(options, Probe::gated(&gate));
    for seq in 0..2 {
        intake.submit(item("k", seq)).await.expect("there is room");
    }
    let waiting = tokio::spawn({
        let intake = intake.clone();
        async move { intake.submit(item("k", 2)).await }
    });
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert!(!waiting.is_finished(), "for as long as it takes");
    assert_eq!(intake.depth().messages, 2);

    open(&gate);
    waiting.await.expect("no panic").expect("it was taken");
    intake.quiet().await;
    assert_eq!(log.names(), ["k:0", "k:1", "k:2"], "nothing was dropped");
}

#[tokio::test(start_paused = true)]
async fn a_submit_with_a_time_limit_answers_queue_full_after_200_ms() {
    let gate = closed_gate();
    let (_engine, intake, _) = one_topic(Options::default().lane_bound(1), Probe::gated(&gate));
    intake.submit(item("k", 0)).await.expect("there is room");
    let began = Instant::now();
    let error = intake
        .submit_timeout(item("k", 1))
        .await
        .expect_err("there is no room");
    assert_eq!(began.elapsed().as_millis(), 200);
    assert_eq!(error.reason, Refusal::QueueFull(Full::Lane));
    assert_eq!(error.job, item("k", 1), "the job comes back");
    assert_eq!(
        error.to_string(),
        "queue full (Lane): submit more slowly, or raise the bound"
    );
}

#[tokio::test(start_paused = true)]
async fn a_submit_within_a_time_takes_room_that_comes_in_time() {
    let gate = closed_gate();
    let (_engine, intake, log) = one_topic(Options::default().lane_bound(1), Probe::gated(&gate));
    intake.submit(item("k", 0)).await.expect("there is room");
    let (answer, ()) = tokio::join!(
        intake.submit_within(item("k", 1), Duration::from_secs(10)),
        async {
            tokio::time::sleep(Duration::from_secs(9)).await;
            open(&gate);
        }
    );
    answer.expect("it was taken");
    intake.quiet().await;
    log.assert_finished_once(2);
}

#[tokio::test(start_paused = true)]
async fn a_wait_without_end_is_a_wait_and_not_a_panic() {
    let gate = closed_gate();
    let (_engine, intake, log) = one_topic(Options::default().lane_bound(1), Probe::gated(&gate));
    intake.submit(item("k", 0)).await.expect("there is room");
    let (answer, ()) = tokio::join!(intake.submit_within(item("k", 1), Duration::MAX), async {
        settle().await;
        open(&gate);
    });
    answer.expect("it was taken");
    intake.quiet().await;
    log.assert_finished_once(2);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_can_never_fit_is_refused_at_once() {
    let options = Options::default()
        .most_topics(1)
        .total(Bound::new(100, 1000));
    let (_engine, intake, _) = one_topic(options, Probe::ok());
    let error = intake
        .submit(sized(0, 751))
        .await
        .expect_err("three quarters of the bytes are shared");
    assert_eq!(
        error.reason,
        Refusal::TooLarge {
            bytes: 751,
            largest: 750
        }
    );
    intake
        .submit(sized(0, 750))
        .await
        .expect("to the last byte");
    intake.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_submit_that_is_dropped_has_not_taken_the_job() {
    let gate = closed_gate();
    let (_engine, intake, log) = one_topic(Options::default().lane_bound(1), Probe::gated(&gate));
    intake.submit(item("k", 0)).await.expect("there is room");
    let second = Duration::from_secs(1);
    tokio::time::timeout(second, intake.submit(item("k", 1)))
        .await
        .expect_err("it waits");
    open(&gate);
    intake.quiet().await;
    log.assert_finished_once(1);
}

/// Many submitters at many full lanes of a full engine: everybody gets in, and never more at a time
/// than the bounds allow.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn bounds_are_never_exceeded_and_nothing_is_dropped() {
    const SUBMITTERS: u64 = 20;
    const EACH: u64 = 300;
    let total = Bound::new(40, 400);
    let inside = Arc::new(AtomicI64::new(0));
    let most = Arc::new(AtomicI64::new(0));
    let probe = Probe::new({
        let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
        move |_| {
            let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
            async move {
                most.fetch_max(inside.load(Ordering::SeqCst), Ordering::SeqCst);
                tokio::task::yield_now().await;
                // Counted down before the engine gives the room back.
                inside.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            }
        }
    });
    let options = Options::default()
        .workers(8)
        .lane_bound(4)
        .most_topics(2)
        .total(total);
    let (_engine, intake, log) = one_topic(options, probe);
    let submitters: Vec<_> = (0..SUBMITTERS)
        .map(|key| {
            let (intake, inside) = (intake.clone(), Arc::clone(&inside));
            tokio::spawn(async move {
                for seq in 0..EACH {
                    let job = Item {
                        bytes: 10,
                        ..item(&format!("k{}", key % 7), key * EACH + seq)
                    };
                    tokio::time::timeout(PATIENCE, intake.submit(job))
                        .await
                        .expect("nobody waits for ever")
                        .expect("the topic is open");
                    inside.fetch_add(1, Ordering::SeqCst);
                    assert!(intake.depth().messages <= 40);
                    assert!(intake.depth().bytes <= 400);
                }
            })
        })
        .collect();
    for submitter in submitters {
        submitter.await.expect("no panic");
    }
    intake.quiet().await;
    assert_eq!(intake.depth(), Bound::new(0, 0), "all room is given back");
    log.assert_finished_once(usize::try_from(SUBMITTERS * EACH).expect("small"));
    assert_eq!(log.count(Outcome::Done) as u64, SUBMITTERS * EACH);
    let most = most.load(Ordering::SeqCst);
    // Counted up after the job was taken and down before its room is given back: rather too low than
    // too high, so this is no false alarm.
    assert!(most <= 40, "{most} at a time");
}

#[tokio::test]
async fn options_that_cannot_be_meant_are_refused_by_name() {
    let refused = |options: Options| match Engine::start(options) {
        Err(StartError::Options(error)) => error,
        other => panic!("expected an error, got {other:?}"),
    };
    let good = Options::default;
    assert_eq!(refused(good().workers(0)), OptionsError::NoWorkers);
    assert_eq!(refused(good().lane_bound(0)), OptionsError::NoLaneBound);
    assert_eq!(
        refused(good().time_limit(Duration::ZERO)),
        OptionsError::NoTime
    );
    assert_eq!(
        refused(good().total(Bound::new(0, 0)).scope(Scope::PerTopic)).to_string(),
        "total is 0 messages for up to 1 topics: give at least 4 messages, or fewer by most_topics"
    );
    assert!(matches!(
        refused(good().total(Bound::new(10, 10))),
        OptionsError::TotalTooSmall { .. }
    ));
    assert!(matches!(
        refused(good().most_topics(usize::MAX)),
        OptionsError::TotalTooSmall { .. }
    ));
    assert_eq!(
        refused(good().total(Bound::new(usize::MAX, 1))),
        OptionsError::TotalTooLarge
    );
}
