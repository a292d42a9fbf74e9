//! 1.7: what happened, and how much of it.

use std::sync::Arc;
use std::time::Duration;

use laneway_lanes::retry::RetryPolicy;
use laneway_lanes::{Bound, Event, Failure, Full, Options, Scope, WorkerState};

use crate::support::{
    Item, PATIENCE, Probe, closed_gate, item, keyless, next_event, one_topic, open, retry, settle,
};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_failing_job_is_told_as_backing_off_released_and_dead_lettered() {
    let options = Options::default()
        .workers(1)
        .retry(retry(2, SECOND, SECOND));
    let (engine, intake, _) = one_topic(
        options,
        Probe::new(|_| async { Err(Failure::new("no such account")) }),
    );
    let mut events = engine.events();
    intake
        .submit(item("acc-1", 1))
        .await
        .expect("there is room");
    intake.quiet().await;
    let (topic, key): (Arc<str>, _) = ("t".into(), Some("acc-1".to_owned()));
    let expected = [
        Event::LaneBackingOff {
            topic: topic.clone(),
            key: key.clone(),
            failed_attempts: 1,
            reason: "no such account".to_owned(),
            retry_in: SECOND,
        },
        Event::LaneReleased {
            topic: topic.clone(),
            key: key.clone(),
        },
        Event::DeadLettered {
            topic,
            key,
            attempts: 2,
            reason: "no such account".to_owned(),
        },
    ];
    for event in expected {
        assert_eq!(next_event(&mut events, |_| true).await, event);
    }
}

#[tokio::test(start_paused = true)]
async fn a_submit_that_waits_is_told_as_saturated_with_what_is_full() {
    let gate = closed_gate();
    let small = Bound::new(4, 1 << 20);
    let cases = [
        (Options::default().lane_bound(2), Full::Lane),
        (
            Options::default().scope(Scope::PerTopic).total(small),
            Full::Topic,
        ),
        (Options::default().most_topics(1).total(small), Full::Engine),
    ];
    for (options, full) in cases {
        let (engine, intake, _) = one_topic(options.workers(1), Probe::gated(&gate));
        let mut events = engine.events();
        let mut seq = 0;
        while intake.try_submit(item("k", seq)).is_ok() {
            seq += 1;
        }
        for _ in 0..3 {
            assert!(intake.submit_timeout(item("k", seq)).await.is_err());
        }
        assert_eq!(
            next_event(&mut events, |_| true).await,
            Event::Saturated {
                topic: "t".into(),
                full
            }
        );
        assert_eq!(engine.stats().topics[0].saturated, 3);
        let more = tokio::time::timeout(Duration::from_millis(1), events.next()).await;
        assert!(more.is_err(), "at most once a second");
    }
}

#[tokio::test(start_paused = true)]
async fn events_end_with_the_engine_and_a_slow_reader_never_holds_it_up() {
    let options = Options::default().workers(4).retry(RetryPolicy::none());
    let (engine, intake, log) =
        one_topic(options, Probe::new(|_| async { Err(Failure::fatal("no")) }));
    let mut events = engine.events();
    for seq in 0..3000 {
        intake.submit(item("k", seq)).await.expect("there is room");
    }
    intake.quiet().await;
    log.assert_finished_once(3000);
    drop((engine, intake));
    let mut told = 0;
    while let Ok(Some(_)) = tokio::time::timeout(PATIENCE, events.next()).await {
        told += 1;
    }
    assert_eq!(told, 1024, "the latest");
}

#[tokio::test(start_paused = true)]
async fn figures_of_a_topic_say_what_was_processed_failed_and_is_under_way() {
    let gate = closed_gate();
    let probe = Probe::new({
        let gate = Arc::clone(&gate);
        move |call| {
            let gate = Arc::clone(&gate);
            async move {
                match (call.key.as_str(), call.attempt) {
                    ("held", _) => crate::support::pass(gate).await,
                    ("shaky", 1) => Err(Failure::new("once")),
                    ("failing", _) => Err(Failure::new("for long")),
                    _ => Ok(()),
                }
            }
        }
    });
    let options = Options::default()
        .workers(2)
        .retry(retry(10, SECOND, 100 * SECOND));
    let (engine, intake, _) = one_topic(options, probe);
    for (key, jobs) in [("held", 3), ("shaky", 2), ("fine", 5), ("failing", 1)] {
        for seq in 0..jobs {
            let job = Item {
                bytes: 100,
                ..item(key, seq)
            };
            intake.submit(job).await.expect("there is room");
        }
    }
    tokio::time::sleep(5 * SECOND / 2).await;
    settle().await;
    let stats = engine.stats();
    let topic = &stats.topics[0];
    assert_eq!(&*topic.topic, "t");
    assert_eq!(topic.processed, 2 + 5);
    assert_eq!(
        topic.failed,
        2 + 2,
        "both of shaky, backing off at 0 s and at 1 s"
    );
    assert_eq!(topic.depth, Bound::new(3 + 1, 400));
    assert_eq!((topic.lanes, topic.backing_off), (2, 1));
    assert_eq!(topic.queue_time.count(), 1 + 4 + 5 + 2, "attempts begun");
    assert_eq!(topic.run_time.count(), 4 + 5 + 2, "attempts ended");
    assert_eq!(stats.ready_lanes, 0);
    let running = stats
        .workers
        .iter()
        .filter(|worker| matches!(worker.state, WorkerState::Running(_)))
        .count();
    assert_eq!(running, 1);
    open(&gate);
}

#[tokio::test(start_paused = true)]
async fn figures_of_the_workers_add_up_to_those_of_the_topic() {
    let options = Options::default().workers(5).retry(RetryPolicy::none());
    let (engine, intake, _) = one_topic(
        options,
        Probe::new(|call| async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            match call.seq() % 4 {
                0 => Err(Failure::new("every fourth")),
                _ => Ok(()),
            }
        }),
    );
    for seq in 0..400 {
        intake.submit(keyless(seq)).await.expect("there is room");
    }
    intake.quiet().await;
    let stats = engine.stats();
    assert_eq!(
        (stats.topics[0].processed, stats.topics[0].failed),
        (300, 100)
    );
    assert_eq!(stats.workers.iter().map(|w| w.processed).sum::<u64>(), 300);
    assert_eq!(stats.workers.iter().map(|w| w.failed).sum::<u64>(), 100);
    assert!(
        stats.workers.iter().all(|w| w.processed > 0),
        "all had some"
    );
}

/// On a real clock: what the engine measures is real time.
#[tokio::test]
async fn latencies_are_measured_in_the_queue_and_in_the_handler() {
    let (engine, intake, _) = one_topic(
        Options::default().workers(1),
        Probe::new(|_| async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok(())
        }),
    );
    for seq in 0..5 {
        intake.submit(item("k", seq)).await.expect("there is room");
    }
    intake.quiet().await;
    let topic = &engine.stats().topics[0];
    let run = topic.run_time.quantile(0.0);
    assert!(run >= Duration::from_millis(20), "{run:?}");
    assert!(topic.run_time.sum() >= Duration::from_millis(100));
    let queue = topic.queue_time.quantile(1.0);
    assert!(
        queue >= Duration::from_millis(80),
        "the last waited for four: {queue:?}"
    );
    assert_eq!(topic.run_time.at_most(Duration::from_millis(10)), 0);
    assert_eq!(topic.run_time.at_most(Duration::from_secs(1000)), 5);
}

#[tokio::test(start_paused = true)]
async fn the_hottest_keys_are_known() {
    let (engine, intake, _) = one_topic(Options::default().workers(8), Probe::ok());
    for seq in 0..100_000_u64 {
        let key = match seq % 10 {
            0..5 => "hot".to_owned(),
            5..7 => "warm".to_owned(),
            _ => format!("cold-{}", seq % 5003),
        };
        intake.submit(item(&key, seq)).await.expect("there is room");
    }
    intake.quiet().await;
    let hottest = &engine.stats().topics[0].hottest;
    assert!(hottest.len() <= 10);
    let top: Vec<_> = hottest.iter().take(2).map(|hot| hot.key.as_str()).collect();
    assert_eq!(top, ["hot", "warm"]);
    assert!(
        (0.3..0.7).contains(&hottest[0].share),
        "half of it: {}",
        hottest[0].share
    );
}

#[tokio::test(start_paused = true)]
async fn workers_of_topics_with_their_own_say_whose_they_are() {
    let options = Options::default().workers(2).scope(Scope::PerTopic);
    let (engine, intake, _) = one_topic(options, Probe::ok());
    let other = engine.topic("other", Probe::ok()).expect("a new topic");
    let names = || -> Vec<_> {
        let workers = engine.stats().workers;
        workers
            .into_iter()
            .map(|w| format!("{}/{}", w.topic.as_deref().unwrap_or("-"), w.worker))
            .collect()
    };
    assert_eq!(names(), ["t/0", "t/1", "other/0", "other/1"]);
    intake.close(laneway_lanes::Drain::Queued, SECOND).await;
    assert_eq!(names(), ["other/0", "other/1"], "gone with their topic");
    drop(other);

    let (engine, ..) = one_topic(Options::default().workers(1), Probe::ok());
    assert_eq!(engine.stats().workers[0].topic, None);
}
