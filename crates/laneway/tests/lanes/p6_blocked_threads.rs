//! 1.6: a handler that blocks its thread is reported, and the others go on.
//!
//! The runtime has two threads; one of them is blocked. Waits here do not rely on the runtime: its
//! timers are one of the things that must go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use laneway::lanes::{Drain, Engine, Event, Failure, Intake, Options};

use crate::support::{Item, Log, Probe, item, wait_until};

/// Blocks threads until it is opened, or for so long that a test which waits for it fails.
#[derive(Clone, Default)]
struct Block(Arc<AtomicBool>);

impl Block {
    fn here(&self) {
        let began = Instant::now();
        while !self.0.load(Ordering::SeqCst) && began.elapsed() < Duration::from_secs(15) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn open(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A handler that finds its own intake, to submit from within.
type Within = Arc<OnceLock<Intake<Item>>>;

/// Nobody waits for the runtime to end if a test fails while a thread is blocked.
struct Rig {
    engine: Engine,
    intake: Intake<Item>,
    log: Arc<Log>,
    block: Block,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Rig {
    fn new<F, Fut>(options: Options, run: F) -> Self
    where
        F: Fn(crate::support::Call, Block, Within) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_time()
            .build()
            .expect("a runtime");
        let block = Block::default();
        let within = Within::default();
        let probe = Probe::new({
            let (block, within) = (block.clone(), Arc::clone(&within));
            move |call| run(call, block.clone(), Arc::clone(&within))
        });
        let log = probe.log();
        let engine = {
            let _entered = runtime.enter();
            Engine::start(options).expect("the options are good")
        };
        let intake = engine.topic("payments", probe).expect("a new topic");
        assert!(within.set(intake.clone()).is_ok());
        Self {
            engine,
            intake,
            log,
            block,
            runtime: Some(runtime),
        }
    }

    fn submit(&self, key: &str, seq: u64) {
        self.intake
            .try_submit(item(key, seq))
            .expect("there is room");
    }

    fn has_begun(&self, key: &str) -> bool {
        self.log.begun().iter().any(|call| call.key == key)
    }

    fn done(&self, key: &str) -> usize {
        self.log
            .finished()
            .iter()
            .filter(|(item, _)| item.key.as_deref() == Some(key))
            .count()
    }

    fn runtime(&self) -> &tokio::runtime::Runtime {
        self.runtime.as_ref().expect("it is taken when dropped")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.block.open();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[test]
fn a_handler_that_blocks_its_thread_is_reported_within_10_s_with_topic_and_key() {
    let rig = Rig::new(Options::default().workers(8), |call, block, _| async move {
        if call.key == "blocker" {
            block.here();
        }
        Ok(())
    });
    let mut events = rig.engine.events();
    rig.submit("blocker", 1);
    let began = Instant::now();
    // Its own runtime: the other one may not be able to wake anybody.
    let report = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime")
        .block_on(async { tokio::time::timeout(Duration::from_secs(10), events.next()).await });
    assert!(began.elapsed() < Duration::from_secs(10));
    match report {
        Ok(Some(Event::HandlerStuck {
            topic,
            key,
            running_for,
            ..
        })) => {
            assert_eq!(&*topic, "payments");
            assert_eq!(key.as_deref(), Some("blocker"));
            assert!(running_for >= Duration::from_secs(5));
        }
        other => panic!("expected a report, got {other:?}"),
    }
    // Meanwhile and afterwards the others go on.
    for seq in 0..100 {
        rig.submit(&format!("k{}", seq % 10), seq);
    }
    wait_until(|| rig.log.finished().len() == 100);
    assert_eq!(rig.done("blocker"), 0);
}

#[test]
fn a_stuck_handler_is_reported_once() {
    let options = Options::default()
        .workers(2)
        .stuck_after(Duration::from_millis(50));
    let rig = Rig::new(options, |_, block, _| async move {
        block.here();
        Ok(())
    });
    let mut events = rig.engine.events();
    rig.submit("blocker", 1);
    let patient = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let mut within =
        |time| patient.block_on(async { tokio::time::timeout(time, events.next()).await });
    assert!(within(Duration::from_secs(10)).is_ok());
    assert!(within(Duration::from_millis(500)).is_err(), "only once");
}

/// The runtime keeps the task that was woken last for the thread that woke it. If that thread is
/// then blocked, nobody else can have it.
#[test]
fn others_go_on_when_the_worker_that_was_woken_for_them_sits_behind_the_blocked_thread() {
    let rig = Rig::new(
        Options::default().workers(8),
        |call, block, within| async move {
            if call.key == "blocker" {
                let intake = within.get().expect("it was set");
                intake.try_submit(item("woken", 1))?;
                block.here();
            }
            Ok(())
        },
    );
    rig.submit("blocker", 1);
    wait_until(|| rig.has_begun("blocker"));
    let waited = wait_until(|| rig.done("woken") == 1);
    assert!(waited < Duration::from_secs(2), "{waited:?}");
    assert_eq!(rig.done("blocker"), 0);
}

/// As before, but one worker is at work all the time: work is handed out, only not to enough workers.
#[test]
fn a_busy_worker_does_not_hide_that_a_woken_one_is_missing() {
    let options = Options::default().workers(64);
    let rig = Rig::new(options, |call, block, within| async move {
        match call.key.as_str() {
            "blocker" => {
                let intake = within.get().expect("it was set");
                intake.try_submit(item("woken", 1))?;
                block.here();
            }
            "busy" => {
                tokio::time::sleep(Duration::from_millis(1)).await;
                let intake = within.get().expect("it was set");
                // Another lane each time, so that lanes are handed out without a break.
                intake.try_submit(item("busy", call.seq() + 1))?;
            }
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
        Ok(())
    });
    rig.submit("busy", 1);
    wait_until(|| rig.done("busy") > 10);
    rig.submit("blocker", 1);
    wait_until(|| rig.has_begun("blocker"));
    for key in 0..50 {
        rig.submit(&format!("k{key}"), 1);
    }
    let others = |log: &Log| {
        log.finished()
            .iter()
            .filter(|(item, _)| item.key.as_deref().is_some_and(|key| key.starts_with('k')))
            .count()
    };
    let waited = wait_until(|| others(&rig.log) == 50);
    assert!(
        waited < Duration::from_millis(2500),
        "one after the other they take five seconds: {waited:?}"
    );
    assert_eq!(rig.done("blocker"), 0);
}

/// The thread that looks after the timers is the one that is blocked.
#[test]
fn timers_of_others_go_on_when_the_thread_that_served_them_is_blocked() {
    let rig = Rig::new(Options::default().workers(8), |call, block, _| async move {
        if call.key == "blocker" {
            tokio::time::sleep(Duration::from_millis(30)).await;
            block.here();
        } else {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        Ok(())
    });
    rig.submit("other", 1);
    wait_until(|| rig.has_begun("other"));
    rig.submit("blocker", 1);
    let waited = wait_until(|| rig.done("other") == 1);
    assert!(waited < Duration::from_secs(3), "{waited:?}");
    assert_eq!(rig.done("blocker"), 0);
}

/// The task that releases parked lanes was woken by the thread that is then blocked.
#[test]
fn retries_of_others_go_on_while_a_thread_is_blocked() {
    // The second one is for the retry.
    let options = Options::default().workers(2);
    let rig = Rig::new(options, |call, block, within| async move {
        match (call.key.as_str(), call.attempt) {
            ("failing", 1) => {
                let intake = within.get().expect("it was set");
                intake.try_submit(item("blocker", 1))?;
                Err(Failure::new("not yet"))
            }
            ("blocker", _) => {
                block.here();
                Ok(())
            }
            _ => Ok(()),
        }
    });
    rig.submit("failing", 1);
    wait_until(|| rig.has_begun("blocker"));
    let waited = wait_until(|| rig.done("failing") == 1);
    assert!(waited < Duration::from_secs(3), "{waited:?}");
    assert_eq!(rig.done("blocker"), 0);
}

/// A submitter that waits for room was woken by the thread that is then blocked.
#[test]
fn submitters_go_on_while_a_thread_is_blocked() {
    // One worker: it makes the room, and takes the blocking lane without a break.
    let options = Options::default().workers(1).lane_bound(4);
    let gate = Block::default();
    let first = gate.clone();
    let rig = Rig::new(options, move |call, block, _| {
        let first = first.clone();
        async move {
            match call.key.as_str() {
                // Not a wait that the engine can see: the turn goes on in one piece.
                "first" if call.seq() == 0 => first.here(),
                "blocker" => block.here(),
                _ => {}
            }
            Ok(())
        }
    });
    for seq in 0..4 {
        rig.submit("first", seq);
    }
    wait_until(|| rig.has_begun("first"));
    // The lane of `first` is full.
    let waiting = rig.runtime().spawn({
        let intake = rig.intake.clone();
        async move { intake.submit(item("first", 4)).await }
    });
    wait_until(|| rig.engine.stats().topics[0].saturated == 1);
    rig.submit("blocker", 1);
    gate.open();
    let waited = wait_until(|| waiting.is_finished());
    assert!(waited < Duration::from_secs(3), "{waited:?}");
    assert_eq!(rig.done("blocker"), 0);
}

#[test]
fn closing_does_not_wait_for_a_blocked_thread_and_names_what_it_is_at() {
    let rig = Rig::new(Options::default().workers(8), |call, block, _| async move {
        if call.key == "blocker" {
            block.here();
        }
        Ok(())
    });
    rig.submit("blocker", 1);
    wait_until(|| rig.has_begun("blocker"));
    for seq in 0..20 {
        rig.submit("other", seq);
    }
    wait_until(|| rig.done("other") == 20);
    let began = Instant::now();
    let report = rig.runtime().block_on(async {
        rig.engine
            .close(Drain::Queued, Duration::from_millis(200))
            .await
    });
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(report.left.len(), 1);
    assert_eq!(report.left[0].stuck, 1);
    assert_eq!(report.left[0].stuck_keys, ["blocker"]);
    assert_eq!(report.left[0].abandoned, 0);
    rig.block.open();
    wait_until(|| rig.done("blocker") == 1);
    rig.log.assert_finished_once(21);
}
