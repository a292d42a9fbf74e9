//! 1.4: a slow key delays only itself, a failing one waits without holding a worker.

use std::sync::Arc;
use std::time::Duration;

use laneway::testing::history::{self, Attempt, History, Rules};
use laneway_lanes::{Failure, FailureKind, Options, Outcome};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use waiting::wait_for;

use crate::support::{Probe, closed_gate, item, one_topic, open, pass, retry, settle};

const SECOND: Duration = Duration::from_secs(1);

/// A handler that waits at a gate with key `slow`, and with no other.
fn slow_at(gate: &Arc<Semaphore>) -> Probe {
    let gate = Arc::clone(gate);
    Probe::new(move |call| {
        let gate = Arc::clone(&gate);
        async move {
            match call.key.as_str() {
                "slow" => pass(gate).await,
                _ => Ok(()),
            }
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_slow_key_delays_only_itself() {
    let gate = closed_gate();
    let probe = slow_at(&gate);
    let (_engine, intake, log) = one_topic(Options::default().workers(2), probe);
    for seq in 0..20 {
        for key in ["slow", "a", "b", "c"] {
            intake.submit(item(key, seq)).await.expect("there is room");
        }
    }
    wait_for!(log.finished().len() == 60);
    let finished = log.finished();
    assert!(
        finished
            .iter()
            .all(|(item, _)| item.key.as_deref() != Some("slow"))
    );
    open(&gate);
    intake.quiet().await;
    log.assert_finished_once(80);
}

/// The first job of a key fails a few times; the only worker serves the others meanwhile.
#[tokio::test(start_paused = true)]
async fn a_failing_key_holds_no_worker_while_it_waits_and_resumes_in_order() {
    let history = Arc::new(History::new());
    let probe = Probe::new({
        let history = Arc::clone(&history);
        move |call| {
            let history = Arc::clone(&history);
            async move {
                let attempt = Attempt {
                    number: call.attempt,
                    ..Attempt::default()
                };
                let run = history.started(call.key.as_str(), call.seq(), attempt);
                if call.key == "failing" && call.seq() == 0 && call.attempt < 4 {
                    run.finish(history::Outcome::Failed);
                    return Err(Failure::new("not yet"));
                }
                run.finish(history::Outcome::Done);
                Ok(())
            }
        }
    });
    let options = Options::default()
        .workers(1)
        .retry(retry(4, SECOND, 60 * SECOND));
    let (engine, intake, log) = one_topic(options, probe);
    let submit = async |key: &str, seq| {
        history.submitted(key, seq);
        intake.submit(item(key, seq)).await.expect("there is room");
        history.acked(key, seq);
    };
    for seq in 0..5 {
        submit("failing", seq).await;
    }
    settle().await;
    assert_eq!(log.names(), ["failing:0"]);
    let topic = &engine.stats().topics[0];
    assert_eq!((topic.backing_off, topic.lanes), (1, 1));

    let began = Instant::now();
    for seq in 0..100 {
        submit("fine", seq).await;
    }
    wait_for!(log.finished().len() == 100);
    assert!(began.elapsed() < SECOND / 2, "the worker is not held");

    intake.quiet().await;
    assert_eq!(
        began.elapsed().as_secs(),
        1 + 2 + 4,
        "attempts after a second, two and four"
    );
    let of_failing: Vec<_> = log
        .begun()
        .into_iter()
        .filter(|call| call.key == "failing")
        .map(|call| (call.seq(), call.attempt))
        .collect();
    assert_eq!(
        of_failing,
        [
            (0, 1),
            (0, 2),
            (0, 3),
            (0, 4),
            (1, 1),
            (2, 1),
            (3, 1),
            (4, 1)
        ]
    );
    Rules::exactly_once()
        .max_running(1)
        .check(history.records())
        .assert_ok();
    assert_eq!(engine.stats().topics[0].backing_off, 0);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_goes_on_failing_is_handed_over_and_the_next_one_runs() {
    let options = Options::default()
        .workers(2)
        .retry(retry(3, SECOND, 10 * SECOND));
    let (engine, intake, log) = one_topic(
        options,
        Probe::new(|call| async move {
            match call.seq() {
                1 => Err(Failure::new(format!("no {}", call.attempt))),
                _ => Ok(()),
            }
        }),
    );
    for seq in 0..3 {
        intake.submit(item("k", seq)).await.expect("there is room");
    }
    intake.quiet().await;
    assert_eq!(log.exhausted(), [(item("k", 1), "no 3".to_owned(), 3)]);
    let outcomes: Vec<_> = log.finished().iter().map(|(_, o)| *o).collect();
    let dead = Outcome::Exhausted(laneway_lanes::Disposition::DeadLettered);
    assert_eq!(outcomes, [Outcome::Done, dead, Outcome::Done], "in order");
    let topic = &engine.stats().topics[0];
    assert_eq!((topic.failed, topic.exhausted, topic.processed), (3, 1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_fatal_failure_is_not_tried_again() {
    let (_engine, intake, log) = one_topic(
        Options::default(),
        Probe::new(|_| async { Err(Failure::fatal("this will never do")) }),
    );
    let began = Instant::now();
    intake.submit(item("k", 1)).await.expect("there is room");
    intake.quiet().await;
    assert_eq!(began.elapsed().as_secs(), 0);
    assert_eq!(log.begun().len(), 1);
    assert_eq!(
        log.exhausted(),
        [(item("k", 1), "this will never do".to_owned(), 1)]
    );
    assert_eq!(Failure::fatal("").kind(), FailureKind::Fatal);
}

#[tokio::test(start_paused = true)]
async fn there_are_five_attempts_by_default_with_100_ms_doubling_between_them() {
    let (_engine, intake, log) = one_topic(
        Options::default(),
        Probe::new(|_| async { Err(Failure::new("no")) }),
    );
    let began = Instant::now();
    intake.submit(item("k", 1)).await.expect("there is room");
    intake.quiet().await;
    assert_eq!(log.begun().len(), 5);
    let waited = began.elapsed().as_millis();
    // 100 + 200 + 400 + 800, and up to a fifth less by jitter.
    assert!((1200..=1510).contains(&waited), "{waited}");
}

/// A worker takes lanes ahead when very many are ready. None of them may wait for a handler.
#[tokio::test(start_paused = true)]
async fn a_slow_key_among_very_many_delays_only_itself() {
    let gate = closed_gate();
    let probe = slow_at(&gate);
    let (_engine, intake, log) = one_topic(Options::default().workers(2), probe);
    for key in 0..500 {
        let key = if key == 100 {
            "slow".into()
        } else {
            format!("k{key}")
        };
        intake.try_submit(item(&key, 0)).expect("there is room");
    }
    wait_for!(log.finished().len() == 499);
    open(&gate);
    wait_for!(log.finished().len() == 500);
}
