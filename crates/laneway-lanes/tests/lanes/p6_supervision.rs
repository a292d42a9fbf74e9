//! 1.6: panics and time limits.

use std::future::Future;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use laneway_lanes::retry::RetryPolicy;
use laneway_lanes::{
    Drain, Engine, Event, Failure, FailureKind, Handler, Jobs, Options, Outcome, WorkerState,
};
use tokio::time::Instant;
use waiting::wait_for;

use crate::support::{Item, PATIENCE, Probe, item, keyless, next_event, one_topic, retry, settle};

const MILLIS: Duration = Duration::from_millis(1);

/// A panic that does not fill the output of the tests.
fn panic(message: &'static str) -> ! {
    resume_unwind(Box::new(message))
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_caught_and_the_attempt_counts_as_failed() {
    let options = Options::default()
        .workers(1)
        .retry(retry(3, MILLIS, MILLIS));
    let (engine, intake, log) = one_topic(
        options,
        Probe::new(|call| async move {
            match (call.key.as_str(), call.attempt) {
                ("always", _) | ("once", 1) => panic("boom"),
                _ => Ok(()),
            }
        }),
    );
    for key in ["always", "once", "never"] {
        intake.submit(item(key, 1)).await.expect("there is room");
    }
    intake.quiet().await;
    log.assert_finished_once(3);
    assert_eq!(
        log.exhausted(),
        [(item("always", 1), "panicked: boom".to_owned(), 3)]
    );
    let topic = &engine.stats().topics[0];
    assert_eq!((topic.panicked, topic.failed, topic.processed), (4, 4, 2));
}

/// Panics while it makes its future, as a closure that looks at the job first can.
struct HastyHandler(Arc<AtomicUsize>);

impl Handler<Item> for HastyHandler {
    fn handle(&self, jobs: Jobs<'_, Item>) -> impl Future<Output = Result<(), Failure>> + Send {
        if jobs.first().seq == 1 {
            self.0.fetch_add(1, Ordering::SeqCst);
            panic("before the future");
        }
        std::future::ready(Ok(()))
    }

    async fn exhausted(
        &self,
        _job: &Item,
        failure: &Failure,
        attempts: u32,
    ) -> Result<laneway_lanes::Disposition, Failure> {
        assert_eq!(failure.kind(), FailureKind::Panicked);
        assert_eq!(attempts, 2);
        Ok(laneway_lanes::Disposition::DeadLettered)
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_before_the_handler_returns_its_future_counts_as_well() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let options = Options::default()
        .workers(1)
        .retry(retry(2, MILLIS, MILLIS));
    let engine = Engine::start(options).expect("the options are good");
    let intake = engine
        .topic("t", HastyHandler(Arc::clone(&attempts)))
        .expect("a new topic");
    for seq in 1..=2 {
        intake.submit(item("k", seq)).await.expect("there is room");
    }
    tokio::time::timeout(PATIENCE, intake.quiet())
        .await
        .expect("the attempts are used up some day");
    assert_eq!(attempts.load(Ordering::SeqCst), 2);
    assert_eq!(engine.stats().topics[0].exhausted, 1);
}

/// Panics when it is dropped.
struct Grenade;

impl Drop for Grenade {
    fn drop(&mut self) {
        panic("in a destructor");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_a_cancelled_attempt_is_dropped_counts_as_well() {
    let options = Options::default()
        .workers(1)
        .time_limit(MILLIS)
        .retry(retry(2, MILLIS, MILLIS));
    let (engine, intake, log) = one_topic(
        options,
        Probe::new(|call| async move {
            if call.seq() == 1 {
                let _grenade = Grenade;
                std::future::pending::<()>().await;
            }
            Ok(())
        }),
    );
    for seq in 1..=2 {
        intake.submit(item("k", seq)).await.expect("there is room");
    }
    tokio::time::timeout(PATIENCE, intake.quiet())
        .await
        .expect("the attempts are used up some day");
    log.assert_finished_once(2);
    assert_eq!(log.begun().len(), 3);
    assert_eq!(engine.stats().topics[0].panicked, 2);
}

/// Panics in `finished`, which is no attempt and must not be one.
struct PanicsAtTheEnd {
    handled: AtomicUsize,
    finished: Arc<AtomicUsize>,
}

impl Handler<Item> for PanicsAtTheEnd {
    fn batch(&self) -> std::num::NonZeroUsize {
        std::num::NonZeroUsize::new(4).expect("4 is not 0")
    }

    async fn handle(&self, jobs: Jobs<'_, Item>) -> Result<(), Failure> {
        let before = self.handled.fetch_add(jobs.len(), Ordering::SeqCst);
        assert!(before + jobs.len() <= 8, "nothing is run twice");
        Ok(())
    }

    fn finished(&self, _job: Item, _outcome: Outcome) {
        self.finished.fetch_add(1, Ordering::SeqCst);
        panic("in finished");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_finished_loses_no_job_and_runs_none_twice() {
    let finished = Arc::new(AtomicUsize::new(0));
    let engine = Engine::start(Options::default().workers(1)).expect("the options are good");
    let handler = PanicsAtTheEnd {
        handled: AtomicUsize::new(0),
        finished: Arc::clone(&finished),
    };
    let intake = engine.topic("t", handler).expect("a new topic");
    for seq in 0..8 {
        intake.submit(item("k", seq)).await.expect("there is room");
    }
    tokio::time::timeout(PATIENCE, intake.quiet())
        .await
        .expect("all room is given back");
    assert_eq!(finished.load(Ordering::SeqCst), 8);

    // Those that are handed back unfinished, too.
    let finished = Arc::new(AtomicUsize::new(0));
    let handler = PanicsAtTheEnd {
        handled: AtomicUsize::new(0),
        finished: Arc::clone(&finished),
    };
    let other = engine.topic("other", handler).expect("a new topic");
    for seq in 0..8 {
        other.try_submit(item("k", seq)).expect("there is room");
    }
    let report = engine.close(Drain::Running, Duration::from_secs(1)).await;
    assert_eq!(report.left[0].abandoned, 8);
    assert_eq!(finished.load(Ordering::SeqCst), 8);
}

#[tokio::test(start_paused = true)]
async fn a_worker_restarts_after_a_panic_and_says_so() {
    let options = Options::default().workers(1).retry(RetryPolicy::none());
    let (engine, intake, _) = one_topic(
        options,
        Probe::new(|call| async move {
            match call.seq() {
                1 => panic("boom"),
                _ => Ok(()),
            }
        }),
    );
    let mut events = engine.events();
    for seq in 0..3 {
        intake.submit(keyless(seq)).await.expect("there is room");
    }
    intake.quiet().await;
    let event = next_event(&mut events, |event| {
        matches!(event, Event::WorkerRestarted { .. })
    })
    .await;
    assert_eq!(
        event,
        Event::WorkerRestarted {
            worker: 0,
            restarts: 1,
            pause: None
        }
    );
    assert_eq!(engine.stats().workers[0].restarts, 1);
}

#[tokio::test(start_paused = true)]
async fn more_than_3_restarts_in_a_minute_make_a_worker_degraded_and_its_lanes_wait_longer_each_time()
 {
    let options = Options::default().workers(1).retry(RetryPolicy::none());
    let (engine, intake, log) = one_topic(options, Probe::new(|_| async { panic("boom") }));
    let mut events = engine.events();
    for seq in 0..12 {
        intake.submit(keyless(seq)).await.expect("there is room");
    }
    let mut pauses = Vec::new();
    for _ in 0..12 {
        let event = next_event(&mut events, |event| {
            matches!(event, Event::WorkerRestarted { .. })
        })
        .await;
        if let Event::WorkerRestarted { pause, .. } = event {
            pauses.push(pause.map(|pause| pause.as_millis()));
        }
        if pauses.len() == 4 {
            let states: Vec<_> = engine
                .stats()
                .workers
                .into_iter()
                .map(|w| w.state)
                .collect();
            assert_eq!(states, [WorkerState::Degraded], "and says that it does");
        }
    }
    let expected = [10, 20, 40, 80, 160, 320, 640, 1000, 1000].map(Some);
    assert_eq!(pauses[..3], [None; 3]);
    assert_eq!(pauses[3..], expected);
    wait_for!(log.finished().len() == 12);
    tokio::time::sleep(Duration::from_secs(1)).await;
    settle().await;
    assert_eq!(engine.stats().workers[0].state, WorkerState::Idle);
}

/// Which keys of a topic panic is its own affair: with every one of them, and as many as there are
/// workers, other topics and other keys get a worker at once.
#[tokio::test(start_paused = true)]
async fn keys_that_panic_take_no_worker_from_others() {
    const BAD: u64 = 200;
    let options = Options::default()
        .workers(8)
        .retry(retry(1_000_000, MILLIS * 10, MILLIS * 10));
    let engine = Engine::start(options).expect("the options are good");
    let probe = || {
        Probe::new(|call: crate::support::Call| async move {
            if call.key.starts_with("bad") {
                panic("boom");
            }
            Ok(())
        })
    };
    let (bad, good) = (probe(), probe());
    let (same_log, other_log) = (bad.log(), good.log());
    let bad = engine.topic("bad", bad).expect("a new topic");
    let good = engine.topic("good", good).expect("a new topic");
    for key in 0..BAD {
        let item = item(&format!("bad-{key}"), 1);
        bad.submit(item).await.expect("there is room");
    }
    // Every worker has restarted often enough to be degraded, all the time.
    wait_for!(engine.stats().workers.iter().all(|w| w.restarts > 20));
    for (round, done) in (0..50).zip(1..) {
        let began = Instant::now();
        good.submit(item("k", round)).await.expect("there is room");
        bad.submit(item("k", round)).await.expect("there is room");
        wait_for!(other_log.finished().len() == done && same_log.finished().len() == done);
        assert!(
            began.elapsed() <= 2 * MILLIS,
            "others wait for those that panic: {:?} in round {round}",
            began.elapsed()
        );
    }
    let degraded = |w: &laneway_lanes::WorkerStats| w.state == WorkerState::Degraded;
    assert!(engine.stats().workers.iter().any(degraded), "it is said");
}

/// A job whose key cannot be told.
struct Nameless(u64);

impl laneway_lanes::Job for Nameless {
    fn key(&self) -> Option<&str> {
        if self.0.is_multiple_of(2) && NAMELESS_PANICS.with(std::cell::Cell::get) {
            panic("in key");
        }
        Some("k")
    }
}

thread_local! {
    static NAMELESS_PANICS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

struct Counts(Arc<AtomicUsize>);

impl Handler<Nameless> for Counts {
    async fn handle(&self, _jobs: Jobs<'_, Nameless>) -> Result<(), Failure> {
        Ok(())
    }

    fn finished(&self, _job: Nameless, _outcome: Outcome) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_key_loses_neither_the_lane_nor_its_jobs() {
    let finished = Arc::new(AtomicUsize::new(0));
    let engine = Engine::start(Options::default().workers(2)).expect("the options are good");
    let intake = engine
        .topic("t", Counts(Arc::clone(&finished)))
        .expect("a new topic");
    for seq in 0..64 {
        intake.submit(Nameless(seq)).await.expect("there is room");
    }
    NAMELESS_PANICS.with(|panics| panics.set(true));
    let restarts = || {
        engine
            .stats()
            .workers
            .iter()
            .map(|w| w.restarts)
            .sum::<u64>()
    };
    wait_for!(restarts() > 10);
    NAMELESS_PANICS.with(|panics| panics.set(false));
    wait_for!(finished.load(Ordering::SeqCst) == 64);
}

#[tokio::test(start_paused = true)]
async fn a_worker_never_stays_dead() {
    let options = Options::default().workers(2).retry(RetryPolicy::none());
    let (_engine, intake, log) = one_topic(
        options,
        Probe::new(|call| async move {
            match call.key.as_str() {
                "bad" => panic("boom"),
                _ => Ok(()),
            }
        }),
    );
    for seq in 0..100 {
        intake
            .submit(item("bad", seq))
            .await
            .expect("there is room");
        intake
            .submit(item("good", seq))
            .await
            .expect("there is room");
    }
    let all = Duration::from_secs(200);
    tokio::time::timeout(all, intake.quiet())
        .await
        .expect("both workers come back every time");
    log.assert_finished_once(200);
    assert_eq!(log.count(Outcome::Done), 100);
}

/// Counts how often it is dropped.
struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_over_its_time_limit_is_cancelled_and_has_failed() {
    let cancelled = Arc::new(AtomicUsize::new(0));
    let options = Options::default()
        .workers(1)
        .time_limit(Duration::from_secs(2))
        .retry(retry(2, MILLIS, MILLIS));
    let probe = Probe::new({
        let cancelled = Arc::clone(&cancelled);
        move |call| {
            let cancelled = Arc::clone(&cancelled);
            async move {
                if call.seq() == 1 {
                    let _dropped = Dropped(cancelled);
                    std::future::pending::<()>().await;
                }
                Ok(())
            }
        }
    });
    let (engine, intake, log) = one_topic(options, probe);
    let began = Instant::now();
    for seq in 1..=2 {
        intake.submit(item("k", seq)).await.expect("there is room");
    }
    intake.quiet().await;
    assert_eq!(began.elapsed().as_secs(), 4, "two attempts of two seconds");
    assert_eq!(cancelled.load(Ordering::SeqCst), 2);
    assert_eq!(
        log.exhausted(),
        [(item("k", 1), "over its time limit of 2s".to_owned(), 2)]
    );
    assert_eq!(engine.stats().topics[0].timed_out, 2);
    assert_eq!(log.ended().len(), 1, "the other one");
}

#[tokio::test(start_paused = true)]
async fn the_time_limit_is_30_s_by_default() {
    let (_engine, intake, log) = one_topic(
        Options::default().workers(1).retry(RetryPolicy::none()),
        Probe::new(|_| std::future::pending()),
    );
    let began = Instant::now();
    intake.submit(keyless(1)).await.expect("there is room");
    intake.quiet().await;
    assert_eq!(began.elapsed().as_secs(), 30);
    log.assert_finished_once(1);
}
