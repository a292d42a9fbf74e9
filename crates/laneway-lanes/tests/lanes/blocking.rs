//! Blocking handlers: plain functions on the runtime's threads for blocking work.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use laneway_lanes::{Blocking, Drain, Engine, Event, Failure, FailureKind, Options, TopicOptions};
use waiting::wait_for;

use crate::support::{Item, PATIENCE, item, keyless, next_event, retry, settle};

const MILLIS: Duration = Duration::from_millis(1);

fn engine() -> Engine {
    Engine::start(Options::default().workers(4)).expect("the options are good")
}

/// A runtime of one thread, which a blocking call would stop.
#[tokio::test]
async fn a_blocking_handler_never_holds_up_an_async_thread() {
    let engine = engine();
    let threads = Arc::new(Mutex::new(Vec::<ThreadId>::new()));
    let seen = Arc::clone(&threads);
    let released = Arc::new(AtomicBool::new(false));
    let release = Arc::clone(&released);
    let handler = Blocking::new(move |_: &Item| {
        seen.lock()
            .expect("no panic")
            .push(std::thread::current().id());
        let began = Instant::now();
        while !release.load(Ordering::SeqCst) && began.elapsed() < PATIENCE {
            std::thread::sleep(MILLIS);
        }
        Ok(())
    });
    let intake = engine.topic("t", handler).expect("a new topic");
    for seq in 0..3 {
        intake.submit(keyless(seq)).await.expect("there is room");
    }
    // The timer of this thread goes on, and all three run.
    wait_for!(threads.lock().expect("no panic").len() == 3);
    released.store(true, Ordering::SeqCst);
    intake.quiet().await;
    let here = std::thread::current().id();
    assert!(
        threads
            .lock()
            .expect("no panic")
            .iter()
            .all(|id| *id != here)
    );
    assert_eq!(engine.stats().topics[0].processed, 3);
}

#[tokio::test]
async fn a_blocking_handler_keeps_the_order_and_retries_like_any_other() {
    let engine = engine();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&calls);
    let handler = Blocking::new(move |item: &Item| {
        let mut calls = seen.lock().expect("no panic");
        let first = !calls.contains(&item.seq);
        calls.push(item.seq);
        match item.seq {
            1 if first => Err(Failure::new("once")),
            2 if first => {
                drop(calls);
                std::panic::resume_unwind(Box::new("boom"))
            }
            _ => Ok(()),
        }
    });
    let options = TopicOptions::default().retry(retry(2, MILLIS, MILLIS));
    let intake = engine
        .topic_with("t", options, handler)
        .expect("a new topic");
    let mut events = engine.events();
    for seq in 0..4 {
        intake.submit(item("k", seq)).await.expect("there is room");
    }
    intake.quiet().await;
    assert_eq!(*calls.lock().expect("no panic"), [0, 1, 1, 2, 2, 3]);
    let topic = &engine.stats().topics[0];
    assert_eq!((topic.failed, topic.panicked, topic.processed), (2, 1, 4));
    next_event(&mut events, |event| {
        matches!(event, Event::WorkerRestarted { .. })
    })
    .await;
}

/// The clock stands still unless this test moves it: while a blocking handler runs it does not go on by itself. So only the
/// first call is over its limit, however busy the machine is.
#[tokio::test(start_paused = true)]
async fn a_blocking_handler_over_its_limit_has_failed_but_its_lane_waits_for_it() {
    let engine = engine();
    let running = Arc::new(AtomicUsize::new(0));
    let calls = Arc::new(AtomicUsize::new(0));
    let released = Arc::new(AtomicBool::new(false));
    let (inside, count) = (Arc::clone(&running), Arc::clone(&calls));
    let release = Arc::clone(&released);
    let handler = Blocking::new(move |_: &Item| {
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
        if count.fetch_add(1, Ordering::SeqCst) == 0 {
            let began = Instant::now();
            while !release.load(Ordering::SeqCst) && began.elapsed() < PATIENCE {
                std::thread::sleep(MILLIS);
            }
        }
        inside.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    });
    let options = TopicOptions::default()
        .time_limit(10 * MILLIS)
        .retry(retry(2, MILLIS, MILLIS));
    let intake = engine
        .topic_with("t", options, handler)
        .expect("a new topic");
    for seq in 0..2 {
        intake.submit(item("k", seq)).await.expect("there is room");
    }
    while calls.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    tokio::time::advance(20 * MILLIS).await;
    settle().await;
    assert_eq!(calls.load(Ordering::SeqCst), 1, "its lane waits for it");
    released.store(true, Ordering::SeqCst);
    intake.quiet().await;
    let topic = &engine.stats().topics[0];
    assert_eq!(
        (topic.timed_out, topic.panicked, topic.processed),
        (1, 0, 2)
    );
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    assert_eq!(Failure::new("").kind(), FailureKind::Failed);
}

#[tokio::test]
async fn a_blocking_handler_that_does_not_return_is_left_behind_and_named() {
    let engine = engine();
    let released = Arc::new(AtomicBool::new(false));
    let release = Arc::clone(&released);
    let handler = Blocking::new(move |_: &Item| {
        let began = Instant::now();
        while !release.load(Ordering::SeqCst) && began.elapsed() < PATIENCE {
            std::thread::sleep(MILLIS);
        }
        Ok(())
    });
    let intake = engine.topic("t", handler).expect("a new topic");
    intake
        .submit(item("stubborn", 1))
        .await
        .expect("there is room");
    wait_for!(engine.stats().topics[0].queue_time.count() > 0);
    let began = Instant::now();
    let report = engine.close(Drain::Queued, 50 * MILLIS).await;
    assert!(began.elapsed() < PATIENCE, "it does not wait for it");
    assert_eq!((report.left[0].abandoned, report.left[0].stuck), (0, 1));
    assert_eq!(report.left[0].stuck_keys, ["stubborn"]);
    released.store(true, Ordering::SeqCst);
    tokio::time::timeout(PATIENCE, intake.quiet())
        .await
        .expect("it is handed back when it returns");
}
