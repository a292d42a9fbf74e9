//! The three designs that the engine descends from, and its presets: each one line for a user.

use std::collections::HashSet;
use std::sync::Arc;
use std::thread::available_parallelism;

use laneway_lanes::retry::RetryPolicy;
use laneway_lanes::{Engine, Event, Full, Options, Refusal};
use tokio::time::Instant;
use waiting::wait_for;

use crate::support::{Probe, closed_gate, item, keyless, one_topic, open, pass, settle};

fn cores() -> usize {
    available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}

fn workers_of(options: Options) -> usize {
    let (engine, ..) = one_topic(options, Probe::ok());
    engine.stats().workers.len()
}

#[tokio::test]
async fn presets_have_the_workers_that_they_document() {
    assert_eq!(workers_of(Options::cpu_bound()), cores());
    assert_eq!(workers_of(Options::io_bound()), 256);
    assert_eq!(workers_of(Options::high_concurrency()), 2048);
}

#[tokio::test(start_paused = true)]
async fn per_topic_pool_has_1024_workers_per_topic_a_queue_of_1000_and_waits_200_ms() {
    let engine = Engine::start(Options::per_topic_pool()).expect("good options");
    let gate = closed_gate();
    let busy = Probe::gated(&gate);
    let log = busy.log();
    let busy = engine.topic("busy", busy).expect("a new topic");
    let other = engine.topic("other", Probe::ok()).expect("a new topic");
    assert_eq!(engine.stats().workers.len(), 2 * 1024);

    // Every worker of one topic is taken, and the other topic does not notice.
    for seq in 0..1100 {
        busy.submit(keyless(seq)).await.expect("there is room");
    }
    wait_for!(log.begun().len() == 1024);
    other.submit(item("k", 1)).await.expect("there is room");
    other.quiet().await;

    for seq in 0..1000 {
        busy.submit_timeout(item("k", seq))
            .await
            .expect("a queue of 1000");
    }
    let began = Instant::now();
    let error = busy
        .submit_timeout(item("k", 1000))
        .await
        .expect_err("the queue is full");
    assert_eq!(error.reason, Refusal::QueueFull(Full::Lane));
    assert_eq!(began.elapsed().as_millis(), 200);
}

#[tokio::test(start_paused = true)]
async fn unified_pool_has_16_workers_per_core_for_all_topics_and_keyless_jobs_find_a_free_one() {
    let workers = 16 * cores();
    let engine = Engine::start(Options::unified_pool()).expect("good options");
    let gate = closed_gate();
    let probe = Probe::new({
        let gate = Arc::clone(&gate);
        move |call| {
            let gate = Arc::clone(&gate);
            async move {
                match call.key.as_str() {
                    "-" => Ok(()),
                    _ => pass(gate).await,
                }
            }
        }
    });
    let log = probe.log();
    let first = engine.topic("first", probe).expect("a new topic");
    let second = engine.topic("second", Probe::ok()).expect("a new topic");
    assert_eq!(engine.stats().workers.len(), workers, "for all topics");

    // Keyed jobs go by hash: two of a lane wait for each other although workers are free.
    let lane_of = |key: &str| {
        let hash = key.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        hash as usize % workers
    };
    let key = "a";
    let same = (0..100_000)
        .map(|n| format!("same-{n}"))
        .find(|other| lane_of(other) == lane_of(key))
        .expect("there is one");
    first.submit(item(key, 1)).await.expect("there is room");
    first.submit(item(&same, 1)).await.expect("there is room");
    settle().await;
    assert_eq!(log.names(), ["a:1"]);

    // Keyless ones go round the workers that are free, never to the busy one.
    for seq in 0..3 * workers as u64 {
        first.submit(keyless(seq)).await.expect("there is room");
        settle().await;
    }
    let calls = log.begun();
    let busy = calls[0].worker;
    let round: HashSet<_> = calls[1..].iter().map(|call| call.worker).collect();
    assert_eq!(calls.len(), 1 + 3 * workers, "none had to wait");
    assert_eq!(round.len(), workers - 1);
    assert!(!round.contains(&busy));
    second.submit(item("k", 1)).await.expect("there is room");
    second.quiet().await;
    open(&gate);
}

#[tokio::test(start_paused = true)]
async fn actor_pool_has_256_workers_an_inbox_of_1000_and_3_restarts() {
    let options = Options::actor_pool().retry(RetryPolicy::none());
    let gate = closed_gate();
    let probe = Probe::new({
        let gate = Arc::clone(&gate);
        move |call| {
            let gate = Arc::clone(&gate);
            async move {
                match call.key.as_str() {
                    "held" => pass(gate).await,
                    _ => std::panic::resume_unwind(Box::new("boom")),
                }
            }
        }
    });
    let (engine, intake, log) = one_topic(options, probe);
    let mut events = engine.events();
    assert_eq!(engine.stats().workers.len(), 256);

    // Each of the 256 inboxes holds a thousand.
    for seq in 0..1000 {
        intake
            .submit(item("held", seq))
            .await
            .expect("an inbox of 1000");
    }
    assert_eq!(
        intake
            .try_submit(item("held", 1000))
            .expect_err("full")
            .reason,
        Refusal::QueueFull(Full::Lane)
    );

    // Restarts and dead letters are events; after three restarts in a minute a worker rests.
    let listener = tokio::spawn(async move {
        let mut told = Vec::new();
        while let Some(event) = events.next().await {
            told.push(event);
        }
        told
    });
    for seq in 0..256 * 4 {
        intake.submit(keyless(seq)).await.expect("there is room");
        tokio::task::yield_now().await;
    }
    wait_for!(log.exhausted().len() == 256 * 4);
    open(&gate);
    intake.quiet().await;
    drop((engine, intake));
    let told = listener.await.expect("no panic");
    let dead = |event: &&Event| matches!(event, Event::DeadLettered { reason, .. } if reason == "panicked: boom");
    assert_eq!(told.iter().filter(dead).count(), 256 * 4);
    for event in &told {
        if let Event::WorkerRestarted {
            restarts, pause, ..
        } = event
        {
            assert_eq!(*restarts > 3, pause.is_some(), "{event:?}");
        }
    }
    let rests = |event: &&Event| matches!(event, Event::WorkerRestarted { pause: Some(_), .. });
    assert!(told.iter().filter(rests).count() > 0);
}
