//! 1.8: coming to rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use laneway_lanes::{
    Drain, Engine, Failure, Handler, Jobs, Options, Outcome, Refusal, Scope, TopicError,
};
use tokio::time::Instant;
use waiting::wait_for;

use crate::support::{
    Item, PATIENCE, Probe, closed_gate, item, keyless, one_topic, open, retry, settle,
};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_closed_engine_takes_nothing() {
    let (engine, intake, _) = one_topic(Options::default().workers(2), Probe::ok());
    assert!(engine.close(Drain::Queued, SECOND).await.is_clean());
    for answer in [
        intake.try_submit(item("k", 1)),
        intake.submit(item("k", 1)).await,
        intake.submit_timeout(item("k", 1)).await,
    ] {
        let error = answer.expect_err("it is closed");
        assert_eq!(error.reason, Refusal::Closed);
        assert_eq!(error.job, item("k", 1));
    }
    let more = engine.topic("more", Probe::ok()).map(drop);
    assert_eq!(more, Err(TopicError::Closed));
    assert!(
        engine.close(Drain::Queued, SECOND).await.is_clean(),
        "again"
    );
}

#[tokio::test(start_paused = true)]
async fn submitters_that_wait_are_told_that_it_closed() {
    let gate = closed_gate();
    let (engine, intake, _) = one_topic(Options::default().lane_bound(1), Probe::gated(&gate));
    intake.submit(item("k", 0)).await.expect("there is room");
    let waiting = tokio::spawn(async move { intake.submit(item("k", 1)).await });
    settle().await;
    let (report, answer) = tokio::join!(engine.close(Drain::Queued, 5 * SECOND), async {
        let began = Instant::now();
        let answer = waiting.await.expect("no panic");
        assert_eq!(began.elapsed().as_secs(), 0, "at once");
        answer
    });
    assert_eq!(answer.expect_err("closed").reason, Refusal::Closed);
    assert_eq!(report.left[0].abandoned, 1, "the one that never ended");
}

#[tokio::test(start_paused = true)]
async fn closing_finishes_what_was_accepted_and_answers_as_soon_as_it_is_done() {
    let options = Options::default()
        .workers(4)
        .retry(retry(3, SECOND, SECOND));
    let (engine, intake, log) = one_topic(
        options,
        Probe::new(|call| async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            match (call.seq(), call.attempt) {
                (5, 1 | 2) => Err(Failure::new("twice")),
                _ => Ok(()),
            }
        }),
    );
    for seq in 0..50 {
        intake
            .submit(item(["a", "b"][seq % 2], seq as u64))
            .await
            .expect("there is room");
    }
    let began = Instant::now();
    let report = engine.close(Drain::Queued, 3600 * SECOND).await;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(began.elapsed().as_secs(), 2, "two retries of one key");
    log.assert_finished_once(50);
    assert_eq!(log.count(Outcome::Done), 50);
}

#[tokio::test(start_paused = true)]
async fn closing_without_the_queue_finishes_what_runs_and_hands_the_rest_back() {
    let gate = closed_gate();
    let (engine, intake, log) = one_topic(Options::default().workers(2), Probe::gated(&gate));
    for seq in 0..150 {
        intake.submit(item("a", seq)).await.expect("there is room");
    }
    intake.submit(item("b", 0)).await.expect("there is room");
    intake.submit(keyless(0)).await.expect("there is room");
    settle().await;
    let (report, ()) = tokio::join!(engine.close(Drain::Running, 60 * SECOND), async {
        settle().await;
        open(&gate);
    });
    assert_eq!(log.count(Outcome::Done), 2, "one of each worker");
    assert_eq!(log.count(Outcome::Abandoned), 150);
    log.assert_finished_once(152);
    let left = &report.left[0];
    assert_eq!((&*left.topic, left.abandoned, left.stuck), ("t", 150, 0));
    assert_eq!(left.keys, ["a"], "each key is named once");
}

#[tokio::test(start_paused = true)]
async fn closing_names_a_hundred_keys_and_no_more() {
    let gate = closed_gate();
    let (engine, intake, _) = one_topic(Options::default().workers(1), Probe::gated(&gate));
    for key in 0..150 {
        let job = item(&format!("key-{key}"), 0);
        intake.submit(job).await.expect("there is room");
    }
    settle().await;
    let report = engine.close(Drain::Running, SECOND).await;
    let left = &report.left[0];
    assert_eq!(left.abandoned, 150);
    let names: std::collections::HashSet<_> = left.keys.iter().collect();
    assert_eq!((left.keys.len(), names.len()), (100, 100));
}

#[tokio::test(start_paused = true)]
async fn what_still_runs_at_the_deadline_is_cancelled_and_handed_back() {
    for drain in [Drain::Queued, Drain::Running] {
        let never = closed_gate();
        let (engine, intake, log) = one_topic(Options::default().workers(2), Probe::gated(&never));
        for seq in 0..3 {
            for key in ["a", "b", "c"] {
                intake.submit(item(key, seq)).await.expect("there is room");
            }
        }
        settle().await;
        let began = Instant::now();
        let report = engine.close(drain, 7 * SECOND).await;
        assert_eq!(began.elapsed().as_secs(), 7);
        log.assert_finished_once(9);
        assert_eq!(log.count(Outcome::Abandoned), 9);
        assert_eq!((report.left[0].abandoned, report.left[0].stuck), (9, 0));
        assert_eq!(intake.depth().messages, 0, "all room is given back");
    }
}

#[tokio::test(start_paused = true)]
async fn lanes_that_wait_for_a_retry_are_handed_back_and_no_longer_counted() {
    let options = Options::default()
        .workers(2)
        .retry(retry(9, 100 * SECOND, 100 * SECOND));
    let gate = closed_gate();
    let probe = Probe::new({
        let gate = Arc::clone(&gate);
        move |call| {
            let gate = Arc::clone(&gate);
            async move {
                match call.key.as_str() {
                    "held" => crate::support::pass(gate).await,
                    _ => Err(Failure::new("later")),
                }
            }
        }
    });
    let (engine, intake, log) = one_topic(options, probe);
    for key in ["held", "x", "y"] {
        intake.submit(item(key, 1)).await.expect("there is room");
    }
    wait_for!(engine.stats().topics[0].backing_off == 2);
    let (report, backing_off) = tokio::join!(engine.close(Drain::Running, SECOND), async {
        settle().await;
        let backing_off = engine.stats().topics[0].backing_off;
        open(&gate);
        backing_off
    });
    assert_eq!(backing_off, 0);
    assert_eq!(report.left[0].abandoned, 2);
    log.assert_finished_once(3);
}

#[tokio::test(start_paused = true)]
async fn a_topic_closes_alone_and_the_others_go_on() {
    for scope in [Scope::Shared, Scope::PerTopic] {
        let engine = Engine::start(Options::default().workers(3).scope(scope)).expect("good");
        let never = closed_gate();
        let (first, second) = (Probe::gated(&never), Probe::ok());
        let logs = [first.log(), second.log()];
        let first = engine.topic("first", first).expect("a new topic");
        let second = engine.topic("second", second).expect("a new topic");
        for seq in 0..10 {
            first.submit(item("k", seq)).await.expect("there is room");
        }
        let report = first.close(Drain::Queued, SECOND).await;
        assert_eq!(report.left[0].abandoned, 10);
        let names: Vec<_> = engine.stats().topics.into_iter().map(|t| t.topic).collect();
        assert_eq!(names, ["second".into()]);
        for seq in 0..10 {
            second.submit(item("k", seq)).await.expect("there is room");
        }
        second.quiet().await;
        logs[0].assert_finished_once(10);
        logs[1].assert_finished_once(10);
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_without_end_is_waited_for_and_not_a_panic() {
    let (engine, intake, log) = one_topic(Options::default(), Probe::ok());
    intake.submit(item("k", 1)).await.expect("there is room");
    assert!(engine.close(Drain::Queued, Duration::MAX).await.is_clean());
    log.assert_finished_once(1);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_engine_finishes_what_runs_and_hands_the_queue_back() {
    let gate = closed_gate();
    let (engine, intake, log) = one_topic(Options::default().workers(1), Probe::gated(&gate));
    for seq in 0..5 {
        intake.submit(item("k", seq)).await.expect("there is room");
    }
    settle().await;
    drop(engine);
    assert_eq!(
        intake.try_submit(item("k", 9)).expect_err("gone").reason,
        Refusal::Closed
    );
    open(&gate);
    wait_for!(log.finished().len() == 5);
    assert_eq!(log.count(Outcome::Done), 1);
    assert_eq!(log.count(Outcome::Abandoned), 4);
    log.assert_finished_once(5);
}

/// Says when it is gone.
struct Mortal {
    alive: Arc<AtomicUsize>,
    wait: Duration,
}

impl Mortal {
    fn new(alive: &Arc<AtomicUsize>, wait: Duration) -> Self {
        alive.fetch_add(1, Ordering::SeqCst);
        Self {
            alive: Arc::clone(alive),
            wait,
        }
    }
}

impl Handler<Item> for Mortal {
    async fn handle(&self, _jobs: Jobs<'_, Item>) -> Result<(), Failure> {
        tokio::time::sleep(self.wait).await;
        Ok(())
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_of_an_engine_that_is_gone() {
    for scope in [Scope::Shared, Scope::PerTopic] {
        for closes in [true, false] {
            let alive = Arc::new(AtomicUsize::new(0));
            let engine = Engine::start(Options::default().workers(4).scope(scope)).expect("good");
            for name in ["idle", "busy"] {
                let handler = Mortal::new(&alive, SECOND);
                let intake = engine.topic(name, handler).expect("a new topic");
                if name == "busy" {
                    intake.submit(item("k", 1)).await.expect("there is room");
                }
            }
            settle().await;
            if closes {
                engine.close(Drain::Queued, PATIENCE).await;
            }
            drop(engine);
            wait_for!(alive.load(Ordering::SeqCst) == 0);
        }
    }
}

/// Submits and closes race: whatever was accepted is finished once, the rest comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_accepted_while_it_closes_is_finished_all_the_same() {
    for round in 0..50 {
        let options = Options::default().workers(4).lane_bound(10);
        let (engine, intake, log) = one_topic(options, Probe::ok());
        let submitters: Vec<_> = (0..4)
            .map(|submitter| {
                let intake = intake.clone();
                tokio::spawn(async move {
                    let mut accepted = 0;
                    for seq in 0.. {
                        let key = format!("k{}", seq % 3);
                        let job = item(&key, submitter * 1_000_000 + seq);
                        match intake.submit(job).await {
                            Ok(()) => accepted += 1,
                            Err(error) => {
                                assert_eq!(error.reason, Refusal::Closed);
                                break;
                            }
                        }
                    }
                    accepted
                })
            })
            .collect();
        while log.finished().len() < 20 {
            tokio::task::yield_now().await;
        }
        let drain = [Drain::Queued, Drain::Running][round % 2];
        engine.close(drain, PATIENCE).await;
        let mut accepted = 0;
        for submitter in submitters {
            accepted += submitter.await.expect("no panic");
        }
        log.assert_finished_once(accepted);
    }
}
