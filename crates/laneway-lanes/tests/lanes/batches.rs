//! Batches: a handler may take several queued jobs of one key at once.

use std::sync::Arc;
use std::time::Duration;

use laneway_lanes::{Failure, LaneBy, Options, Outcome};

use crate::support::{Call, Log, Probe, closed_gate, item, one_topic, open, pass, retry};

const SECOND: Duration = Duration::from_secs(1);

fn batches(log: &Log) -> Vec<(String, Vec<u64>, u32)> {
    log.begun()
        .into_iter()
        .filter(|call| call.key != "first")
        .map(|call| (call.key, call.seqs, call.attempt))
        .collect()
}

/// Queues `jobs` behind a held worker, then lets it go.
async fn run(
    options: Options,
    most: usize,
    jobs: &[(&str, u64)],
    handle: impl Fn(&Call) -> Result<(), Failure> + Send + Sync + 'static,
) -> Arc<Log> {
    let gate = closed_gate();
    let handle = Arc::new(handle);
    let probe = Probe::new({
        let gate = Arc::clone(&gate);
        move |call| {
            let (gate, handle) = (Arc::clone(&gate), Arc::clone(&handle));
            async move {
                match call.key.as_str() {
                    "first" => pass(gate).await,
                    _ => handle(&call),
                }
            }
        }
    });
    let options = options.workers(1).retry(retry(3, SECOND, SECOND));
    let (_engine, intake, log) = one_topic(options, probe.batch(most));
    intake
        .submit(item("first", 0))
        .await
        .expect("there is room");
    for (key, seq) in jobs {
        intake.submit(item(key, *seq)).await.expect("there is room");
    }
    open(&gate);
    intake.quiet().await;
    log.assert_finished_once(jobs.len() + 1);
    log
}

#[tokio::test(start_paused = true)]
async fn a_batch_has_up_to_so_many_queued_jobs_of_its_key_in_order() {
    let jobs: Vec<_> = (0..10).map(|seq| ("k", seq)).collect();
    let log = run(Options::default(), 4, &jobs, |_| Ok(())).await;
    assert_eq!(
        batches(&log),
        [
            ("k".into(), vec![0, 1, 2, 3], 1),
            ("k".into(), vec![4, 5, 6, 7], 1),
            ("k".into(), vec![8, 9], 1)
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_batch_may_be_larger_than_a_turn() {
    let jobs: Vec<_> = (0..100).map(|seq| ("k", seq)).collect();
    let log = run(Options::default(), 60, &jobs, |_| Ok(())).await;
    let sizes: Vec<_> = batches(&log)
        .iter()
        .map(|(_, seqs, _)| seqs.len())
        .collect();
    assert_eq!(sizes, [60, 40]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_never_mixes_keys_not_even_in_a_shared_lane() {
    let jobs = [("a", 0), ("a", 1), ("b", 2), ("a", 3), ("a", 4)];
    let options = Options::default().lane_by(LaneBy::hash(1));
    let log = run(options, 10, &jobs, |_| Ok(())).await;
    assert_eq!(
        batches(&log),
        [
            ("a".into(), vec![0, 1], 1),
            ("b".into(), vec![2], 1),
            ("a".into(), vec![3, 4], 1)
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_batch_says_how_far_it_got_and_the_one_that_failed_is_tried_alone() {
    let jobs: Vec<_> = (0..6).map(|seq| ("k", seq)).collect();
    let log = run(Options::default(), 10, &jobs, |call| {
        match call.seqs.iter().position(|seq| *seq == 2) {
            Some(done) if call.attempt < 3 => Err(Failure::new("the third").after(done)),
            _ => Ok(()),
        }
    })
    .await;
    assert_eq!(
        batches(&log),
        [
            ("k".into(), vec![0, 1, 2, 3, 4, 5], 1),
            ("k".into(), vec![2], 2),
            ("k".into(), vec![2], 3),
            ("k".into(), vec![3, 4, 5], 1)
        ]
    );
    assert_eq!(log.count(Outcome::Done), 7);
    let order: Vec<_> = log
        .finished()
        .iter()
        .skip(1)
        .map(|(item, _)| item.seq)
        .collect();
    assert_eq!(order, [0, 1, 2, 3, 4, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_claims_to_have_done_all_and_failed_is_believed_but_for_the_last() {
    let jobs: Vec<_> = (0..3).map(|seq| ("k", seq)).collect();
    let log = run(Options::default(), 10, &jobs, |call| {
        if call.seqs.len() > 1 {
            return Err(Failure::new("odd").after(99));
        }
        Ok(())
    })
    .await;
    assert_eq!(
        batches(&log),
        [("k".into(), vec![0, 1, 2], 1), ("k".into(), vec![2], 2)]
    );
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_panics_is_retried_from_its_first_job_alone() {
    let jobs: Vec<_> = (0..3).map(|seq| ("k", seq)).collect();
    let log = run(Options::default(), 10, &jobs, |call| {
        if call.seqs.contains(&0) && call.attempt == 1 {
            std::panic::resume_unwind(Box::new("boom"));
        }
        Ok(())
    })
    .await;
    assert_eq!(
        batches(&log),
        [
            ("k".into(), vec![0, 1, 2], 1),
            ("k".into(), vec![0], 2),
            ("k".into(), vec![1, 2], 1)
        ]
    );
}
