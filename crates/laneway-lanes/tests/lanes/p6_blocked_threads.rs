//! 1.6: a handler that blocks its thread is reported, and the others go on.
//!
//! The runtime has two threads; one of them is blocked. Waits here do not rely on the runtime: its
//! timers are one of the things that must go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use laneway_lanes::{Drain, Engine, Event, Failure, Intake, Options};
use waiting::wait_for_blocking;

use crate::support::{Item, Log, Probe, item};

/// What goes on while a thread is blocked has gone on by then, on a machine that is as busy as can be. How soon it does is
/// measured by the benchmarks.
const WHILE_BLOCKED: Duration = Duration::from_mins(1);

/// Blocks threads until it is opened, or for so long that a test which waits for it fails.
#[derive(Clone, Default)]
struct Block(Arc<AtomicBool>);

impl Block {
    fn here(&self) {
        let began = Instant::now();
        while !self.0.load(Ordering::SeqCst) && began.elapsed() < 4 * WHILE_BLOCKED {
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

/// Blocks a thread, and checks what is told of that. Answers how long it had been blocked by then.
fn reported_after() -> Duration {
    let rig = Rig::new(Options::default().workers(8), |call, block, _| async move {
        if call.key == "blocker" {
            block.here();
        }
        Ok(())
    });
    let mut events = rig.engine.events();
    rig.submit("blocker", 1);
    // Its own runtime: the other one may not be able to wake anybody.
    let report = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime")
        .block_on(async { tokio::time::timeout(WHILE_BLOCKED, events.next()).await });
    let Ok(Some(Event::HandlerStuck {
        topic,
        key,
        running_for,
        ..
    })) = report
    else {
        panic!("expected a report, got {report:?}");
    };
    assert_eq!(&*topic, "payments");
    assert_eq!(key.as_deref(), Some("blocker"));
    assert!(running_for >= Duration::from_secs(5));
    // Meanwhile and afterwards the others go on.
    for seq in 0..100 {
        rig.submit(&format!("k{}", seq % 10), seq);
    }
    wait_for_blocking!(rig.log.finished().len() == 100);
    assert_eq!(rig.done("blocker"), 0);
    running_for
}

#[test]
fn a_handler_that_blocks_its_thread_is_reported_within_10_s_with_topic_and_key() {
    // A machine that is too busy to run the watchdog for five seconds is not so five times.
    let mut times = std::iter::repeat_with(reported_after).take(5);
    assert!(
        times.any(|time| time < Duration::from_secs(10)),
        "it is always reported later"
    );
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
    assert!(within(WHILE_BLOCKED).is_ok());
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
    wait_for_blocking!(rig.has_begun("blocker"));
    let waited = wait_for_blocking!(rig.done("woken") == 1);
    assert!(waited < WHILE_BLOCKED, "{waited:?}");
    assert_eq!(rig.done("blocker"), 0);
}

/// As before, but one worker is at work all the time: work is handed out, only not to enough workers.
#[test]
fn a_busy_worker_does_not_hide_that_a_woken_one_is_missing() {
    /// So many wait for each other: one after the other they would never end.
    const TOGETHER: usize = 10;
    let options = Options::default().workers(64);
    let together = Arc::new(tokio::sync::Barrier::new(TOGETHER));
    let rig = Rig::new(options, move |call, block, within| {
        let together = together.clone();
        async move {
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
                "woken" => {}
                _ => {
                    together.wait().await;
                }
            }
            Ok(())
        }
    });
    rig.submit("busy", 1);
    wait_for_blocking!(rig.done("busy") > 10);
    rig.submit("blocker", 1);
    wait_for_blocking!(rig.has_begun("blocker"));
    for key in 0..5 * TOGETHER {
        rig.submit(&format!("k{key}"), 1);
    }
    let others = |log: &Log| {
        log.finished()
            .iter()
            .filter(|(item, _)| item.key.as_deref().is_some_and(|key| key.starts_with('k')))
            .count()
    };
    wait_for_blocking!(others(&rig.log) == 5 * TOGETHER);
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
    wait_for_blocking!(rig.has_begun("other"));
    rig.submit("blocker", 1);
    let waited = wait_for_blocking!(rig.done("other") == 1);
    assert!(waited < WHILE_BLOCKED, "{waited:?}");
    assert_eq!(rig.done("blocker"), 0);
}

/// The task that wakes lanes that back off was woken by the thread that is then blocked.
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
    wait_for_blocking!(rig.has_begun("blocker"));
    let waited = wait_for_blocking!(rig.done("failing") == 1);
    assert!(waited < WHILE_BLOCKED, "{waited:?}");
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
    wait_for_blocking!(rig.has_begun("first"));
    // The lane of `first` is full.
    let waiting = rig.runtime().spawn({
        let intake = rig.intake.clone();
        async move { intake.submit(item("first", 4)).await }
    });
    wait_for_blocking!(rig.engine.stats().topics[0].saturated == 1);
    rig.submit("blocker", 1);
    gate.open();
    let waited = wait_for_blocking!(waiting.is_finished());
    assert!(waited < WHILE_BLOCKED, "{waited:?}");
    assert_eq!(rig.done("blocker"), 0);
}

/// A worker that yields may not get its thread back for as long as a handler blocks it. What it has
/// taken ahead, and the lane that would be next, must not wait with it.
#[test]
fn a_blocked_thread_holds_up_no_key_but_its_own() {
    const KEYS: u64 = 20_000;
    for round in 0..6 {
        let options = Options::default().workers(16);
        let rig = Rig::new(options, |call, block, _| async move {
            if call.key == "blocker" {
                block.here();
            }
            Ok(())
        });
        for seq in 0..KEYS {
            if seq == KEYS / 2 {
                rig.submit("blocker", 1);
            }
            rig.submit(&format!("k{seq}"), 1);
        }
        wait_for_blocking!(rig.has_begun("blocker"));
        let waited = wait_for_blocking!(rig.log.finished().len() as u64 == KEYS);
        assert!(waited < WHILE_BLOCKED, "{waited:?} in round {round}");
        assert_eq!(rig.done("blocker"), 0, "round {round}");
    }
}

/// The watchdog goes on while the engine is drained: handlers that block a thread then are reported,
/// too, and hold up no key but their own.
#[test]
fn a_thread_that_is_blocked_while_the_engine_closes_is_reported_and_the_rest_is_worked_off() {
    const KEYS: u64 = 400;
    let gate = Block::default();
    let first = gate.clone();
    let options = Options::default()
        .workers(4)
        .stuck_after(Duration::from_millis(50));
    let rig = Rig::new(options, move |call, block, _| {
        let first = first.clone();
        async move {
            match call.key.as_str() {
                "gate-1" | "gate-2" => first.here(),
                "blocker" => block.here(),
                _ => {}
            }
            Ok(())
        }
    });
    // Both threads are held until all lanes are queued and the engine closes. A worker that goes on
    // then takes lanes ahead, the blocker among them, and others behind it.
    rig.submit("gate-1", 1);
    wait_for_blocking!(rig.has_begun("gate-1"));
    rig.submit("gate-2", 1);
    wait_for_blocking!(rig.has_begun("gate-2"));
    for seq in 0..KEYS {
        if seq == 8 {
            rig.submit("blocker", 1);
        }
        rig.submit(&format!("k{seq}"), 1);
    }
    let report = std::thread::scope(|scope| {
        let closing = scope.spawn(|| {
            tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
                .expect("a runtime")
                .block_on(rig.engine.close(Drain::Queued, 3 * WHILE_BLOCKED))
        });
        wait_for_blocking!(rig.intake.try_submit(item("late", 1)).is_err());
        // The blocker begins after that: a watchdog that leaves a closed engine alone never reports it.
        let mut events = rig.engine.events();
        gate.open();
        wait_for_blocking!(rig.has_begun("blocker"));
        let of_blocker = |event: &Event| matches!(event, Event::HandlerStuck { key: Some(key), .. } if key == "blocker");
        let patient = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        patient
            .block_on(async {
                tokio::time::timeout(WHILE_BLOCKED, async {
                    while !events.next().await.as_ref().is_some_and(of_blocker) {}
                })
                .await
            })
            .expect("it is reported");
        let others = |(item, _): &(Item, _)| item.key.as_ref().is_some_and(|k| k.starts_with('k'));
        wait_for_blocking!(rig.log.finished().into_iter().filter(others).count() as u64 == KEYS);
        assert_eq!(rig.done("blocker"), 0);
        rig.block.open();
        closing.join().expect("it closes")
    });
    assert!(report.is_clean(), "{report:?}");
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
    wait_for_blocking!(rig.has_begun("blocker"));
    for seq in 0..20 {
        rig.submit("other", seq);
    }
    wait_for_blocking!(rig.done("other") == 20);
    let began = Instant::now();
    let report = rig.runtime().block_on(async {
        rig.engine
            .close(Drain::Queued, Duration::from_millis(200))
            .await
    });
    assert!(began.elapsed() < WHILE_BLOCKED);
    assert_eq!(report.left.len(), 1);
    assert_eq!(report.left[0].stuck, 1);
    assert_eq!(report.left[0].stuck_keys, ["blocker"]);
    assert_eq!(report.left[0].abandoned, 0);
    rig.block.open();
    wait_for_blocking!(rig.done("blocker") == 1);
    rig.log.assert_finished_once(21);
}
