//! 1.5: a worker does not stay with one lane.

use std::sync::Arc;
use std::time::Duration;

use laneway_lanes::{LaneBy, Options};

use crate::support::{Log, Probe, closed_gate, item, one_topic, open, pass};

/// Runs of calls with the same key, as (key, how many).
fn turns(log: &Log) -> Vec<(String, usize)> {
    let mut turns: Vec<(String, usize)> = Vec::new();
    for call in log.begun() {
        match turns.last_mut() {
            Some((key, count)) if *key == call.key => *count += 1,
            _ => turns.push((call.key, 1)),
        }
    }
    turns
}

/// One worker is held by the first job of `busy` until all the others are queued.
async fn run_all(options: Options, keys: &[&str], each: u64) -> Arc<Log> {
    let gate = closed_gate();
    let probe = Probe::new({
        let gate = Arc::clone(&gate);
        move |call| {
            let gate = Arc::clone(&gate);
            async move {
                match call.key.as_str() {
                    "first" => pass(gate).await,
                    _ => Ok(()),
                }
            }
        }
    });
    let (_engine, intake, log) = one_topic(options.workers(1), probe);
    intake
        .submit(item("first", 0))
        .await
        .expect("there is room");
    for key in keys {
        for seq in 0..each {
            intake.submit(item(key, seq)).await.expect("there is room");
        }
    }
    open(&gate);
    intake.quiet().await;
    log
}

#[tokio::test(start_paused = true)]
async fn a_worker_runs_at_most_16_jobs_of_a_lane_before_it_looks_at_the_next() {
    let log = run_all(Options::default(), &["a", "b", "c"], 100).await;
    let turns = turns(&log);
    let (first, others) = turns.split_first().expect("there were turns");
    assert_eq!(*first, ("first".to_owned(), 1));
    let mut expected: Vec<(String, usize)> = Vec::new();
    for round in 0..7 {
        let count = if round < 6 { 16 } else { 4 };
        expected.extend(["a", "b", "c"].map(|key| (key.to_owned(), count)));
    }
    assert_eq!(others, expected, "in turn, 16 at a time");
}

#[tokio::test(start_paused = true)]
async fn nobody_starves_behind_a_key_with_endless_work() {
    let gate = closed_gate();
    let (_engine, intake, log) = one_topic(
        Options::default().workers(1).lane_by(LaneBy::Key),
        Probe::gated(&gate),
    );
    for seq in 0..500 {
        intake
            .submit(item("endless", seq))
            .await
            .expect("there is room");
    }
    intake
        .submit(item("modest", 0))
        .await
        .expect("there is room");
    open(&gate);
    intake.quiet().await;
    let place = log.names().iter().position(|name| name == "modest:0");
    assert!(place.is_some_and(|place| place <= 16), "{place:?}");
}

/// Waits of the engine's own clock: not paused.
#[tokio::test]
async fn a_turn_of_slow_jobs_ends_earlier_if_others_wait() {
    let (_engine, intake, log) = one_topic(
        Options::default().workers(1),
        Probe::new(|_| async {
            tokio::time::sleep(Duration::from_millis(6)).await;
            Ok(())
        }),
    );
    for key in ["a", "b"] {
        for seq in 0..4 {
            intake.submit(item(key, seq)).await.expect("there is room");
        }
    }
    intake.quiet().await;
    assert_eq!(turns(&log).len(), 8, "one job each in turn");
}
