//! 1.1: what a lane is.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use laneway::testing::history::{Attempt, History, Outcome, Rules};
use laneway_lanes::{Drain, LaneBy, Options};
use waiting::wait_for;

use crate::support::{PATIENCE, Probe, closed_gate, item, keyless, one_topic, open, settle};

/// FNV-1a 32 of these, as published by its authors.
const VECTORS: [(&str, u32); 10] = [
    ("a", 0xe40c_292c),
    ("b", 0xe70c_2de5),
    ("c", 0xe60c_2c52),
    ("d", 0xe10c_2473),
    ("e", 0xe00c_22e0),
    ("f", 0xe30c_2799),
    ("fo", 0x6222_e842),
    ("foo", 0xa9f3_7ed7),
    ("foob", 0x3f50_76ef),
    ("foobar", 0xbf9c_f968),
];

/// A handler whose calls are judged by the history checker.
fn recorded(history: &Arc<History>) -> Probe {
    let history = Arc::clone(history);
    Probe::new(move |call| {
        let history = Arc::clone(&history);
        async move {
            let run = history.started(call.key.as_str(), call.seq(), Attempt::default());
            if call.seq().is_multiple_of(3) {
                tokio::task::yield_now().await;
            }
            run.finish(Outcome::Done);
            Ok(())
        }
    })
}

async fn run_recorded(options: Options, rules: Rules) {
    let history = Arc::new(History::new());
    let (engine, intake, log) = one_topic(options, recorded(&history));
    for seq in 0..100 {
        for key in 0..50 {
            let key = format!("k{key}");
            history.submitted(key.as_str(), seq);
            intake.submit(item(&key, seq)).await.expect("there is room");
            history.acked(key.as_str(), seq);
        }
    }
    let report = engine.close(Drain::Queued, PATIENCE).await;
    assert!(report.is_clean(), "{report:?}");
    log.assert_finished_once(50 * 100);
    rules.check(history.records()).assert_ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn jobs_of_one_key_run_one_at_a_time_in_the_order_they_were_submitted() {
    run_recorded(
        Options::default().workers(16),
        Rules::exactly_once().max_running(16),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn hashed_lanes_keep_the_order_of_a_key_and_run_one_job_of_a_lane_at_a_time() {
    let lane_of = |key: &str| {
        let hash = key.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        u64::from(hash % 8)
    };
    run_recorded(
        Options::default().workers(16).lane_by(LaneBy::hash(8)),
        Rules::exactly_once().lanes(lane_of).max_running(8),
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_key_is_in_memory_only_while_it_has_work() {
    let gate = closed_gate();
    let (engine, intake, _) = one_topic(Options::default().workers(4), Probe::gated(&gate));
    for key in 0..1000 {
        let key = format!("k{key}");
        intake.submit(item(&key, 1)).await.expect("there is room");
        intake.submit(item(&key, 2)).await.expect("there is room");
    }
    assert_eq!(engine.stats().topics[0].lanes, 1000);
    open(&gate);
    intake.quiet().await;
    assert_eq!(engine.stats().topics[0].lanes, 0);
}

/// Which keys run at the same time when nobody comes back: the first of every lane.
async fn first_of_every_lane(lane_by: LaneBy) -> HashSet<String> {
    let gate = closed_gate();
    let (_engine, intake, log) = one_topic(
        Options::default().workers(VECTORS.len()).lane_by(lane_by),
        Probe::gated(&gate),
    );
    for (key, _) in VECTORS {
        intake.submit(item(key, 1)).await.expect("there is room");
    }
    settle().await;
    log.begun().into_iter().map(|call| call.key).collect()
}

#[tokio::test(start_paused = true)]
async fn hashed_lanes_are_chosen_by_fnv_1a_of_the_key() {
    for lanes in [1, 2, 3, 7, 16, 255, 256, 1000] {
        let mut taken = HashSet::new();
        let expected: HashSet<_> = VECTORS
            .iter()
            .filter(|(_, hash)| taken.insert(hash % lanes))
            .map(|(key, _)| (*key).to_owned())
            .collect();
        assert_eq!(
            first_of_every_lane(LaneBy::hash(lanes)).await,
            expected,
            "{lanes} lanes"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_lane_per_key_is_the_default_and_runs_all_keys_at_once() {
    assert_eq!(first_of_every_lane(LaneBy::Key).await.len(), VECTORS.len());
    let default = Options::default();
    assert_eq!(
        format!("{:?}", default.topic_options()),
        format!("{:?}", default.clone().lane_by(LaneBy::Key).topic_options()),
    );
}

#[tokio::test(start_paused = true)]
async fn jobs_without_a_key_go_round_the_workers_in_turn() {
    const WORKERS: u64 = 7;
    for lane_by in [LaneBy::Key, LaneBy::hash(3)] {
        let options = Options::default().workers(7).lane_by(lane_by);
        let (_engine, intake, log) = one_topic(options, Probe::ok());
        settle().await;
        for seq in 0..5 * WORKERS {
            intake.submit(keyless(seq)).await.expect("there is room");
            wait_for!(log.finished().len() as u64 == seq + 1);
            settle().await;
        }
        let workers: Vec<_> = log.begun().iter().map(|call| call.worker).collect();
        let expected: Vec<_> = (0..5).flat_map(|_| workers[..7].to_vec()).collect();
        assert_eq!(workers, expected, "the same round again and again");
        let round: HashSet<_> = workers[..7].iter().collect();
        assert_eq!(round.len(), 7, "each worker once in a round");
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_jobs_without_a_key_runs_on_a_different_worker_each() {
    let (_engine, intake, log) = one_topic(
        Options::default().workers(64),
        Probe::new(|_| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(())
        }),
    );
    for seq in 0..64 {
        intake.submit(keyless(seq)).await.expect("there is room");
    }
    settle().await;
    let workers: HashSet<_> = log.begun().iter().map(|call| call.worker).collect();
    assert_eq!(workers.len(), 64);
}

#[tokio::test(start_paused = true)]
async fn a_job_without_a_key_is_a_lane_of_its_own() {
    let gate = closed_gate();
    let options = Options::default()
        .workers(8)
        .lane_by(LaneBy::hash(1))
        .lane_bound(1);
    let (engine, intake, log) = one_topic(options, Probe::gated(&gate));
    for seq in 0..8 {
        intake.submit(keyless(seq)).await.expect("there is room");
    }
    settle().await;
    assert_eq!(log.begun().len(), 8, "all at once, whatever the lanes are");
    assert_eq!(engine.stats().topics[0].lanes, 8);
}
