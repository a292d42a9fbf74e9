//! What may be started.

use std::time::Duration;

use laneway_rpc::proto;
use laneway_rpc::proto::ending::How;
use laneway_rpc::proto::status::What;
use waiting::wait_for;

use crate::rig::{BEGAN, Center, at, go, how, rig, was_delivered};

#[tokio::test]
async fn an_attempt_is_started_after_its_go_and_not_before_its_moment() {
    let rig = rig();
    let mut center = rig.center();
    center.go(at(go("second", "a"), BEGAN + 1_000));
    center.go(at(go("first", "b"), BEGAN + 999));
    assert_eq!(center.ping().await.held, 2);
    assert!(rig.sink.sent().is_empty());
    rig.time.clock.advance(Duration::from_millis(999));
    let first = center.outcome().await;
    assert!(first.id == "first" && was_delivered(&first));
    assert_eq!(rig.sink.sent(), ["first"]);
    rig.time.clock.advance(Duration::from_millis(1));
    assert_eq!(center.outcome().await.id, "second");
    for (_, _, when) in rig.sink.sent.lock().iter() {
        assert!(when.as_millis() >= BEGAN + 999);
    }
}

#[tokio::test]
async fn owners_of_the_past_are_refused_shard_by_shard() {
    let rig = rig();
    let mut center = rig.center();
    center.ask(5, "other");
    assert_eq!(center.status().await, What::Disclaimed(true));
    let of = |epoch, shard| proto::Go {
        epoch,
        shard,
        ..go("a", "a")
    };
    center.go(of(4, 1));
    let refused = center.refused().await;
    assert_eq!((refused.shard, refused.epoch, refused.attempt), (1, 4, 1));
    center.ask(4, "other");
    assert_eq!(center.status().await, What::Refused(true));
    for (epoch, shard) in [(5, 1), (1, 2)] {
        center.go(of(epoch, shard));
        let outcome = center.outcome().await;
        assert!(outcome.shard == shard && was_delivered(&outcome));
    }
    assert_eq!(rig.worker.stats().refused, 1);
}

#[tokio::test]
async fn questions_are_answered() {
    let rig = rig();
    let mut center = rig.center();
    // Held: disclaimed, and never started.
    center.go(at(go("held", "a"), BEGAN + 10));
    center.ask(1, "held");
    assert_eq!(center.status().await, What::Disclaimed(true));
    center.go(at(go("held", "a"), BEGAN + 10));
    center.refused().await;
    assert_eq!(rig.worker.stats().held, 0);
    // Running, then ended, then logged.
    center.go(at(go("runs", "hangs"), BEGAN + 11));
    rig.time.clock.advance(Duration::from_millis(11));
    wait_for!(rig.worker.stats().running == 1);
    center.ask(2, "runs");
    assert_eq!(center.status().await, What::Runs(true));
    rig.sink.gate.add_permits(1);
    let outcome = center.outcome().await;
    assert!(was_delivered(&outcome));
    center.ask(3, "runs");
    match center.status().await {
        What::Ended(ending) => assert_eq!(ending.how, Some(How::Delivered(true))),
        other => panic!("{other:?}"),
    }
    center.log(&outcome);
    center.ask(3, "runs");
    assert_eq!(center.status().await, What::Disclaimed(true));
    assert_eq!(rig.sink.sent(), ["runs"]);
}

#[tokio::test]
async fn a_go_that_comes_twice_is_one_attempt() {
    let rig = rig();
    let mut center = rig.center();
    center.go(go("a", "hangs"));
    center.go(go("a", "hangs"));
    wait_for!(rig.worker.stats().running == 1);
    assert_eq!(center.ping().await.held, 0);
    rig.sink.gate.add_permits(2);
    center.outcome().await;
    // The center may have missed it.
    center.go(go("a", "hangs"));
    assert!(was_delivered(&center.outcome().await));
    assert_eq!(rig.sink.sent(), ["a"]);
}

#[tokio::test]
async fn a_center_of_another_cluster_gets_nothing() {
    let rig = rig();
    let mut center = Center::connect(&rig.worker, "another");
    assert!(center.frame().await.is_none());
    assert_eq!(center.credit, 0);
    assert_eq!(rig.worker.stats().connections, 0);
}

#[tokio::test]
async fn what_cannot_be_read_or_served_is_told() {
    let rig = crate::rig::rig_with(|options| options.sinks.bus = None);
    let mut center = rig.center();
    center.go(proto::Go {
        attempt: 0,
        ..go("a", "a")
    });
    center.refused().await;
    center.go(proto::Go {
        content: None,
        ..go("b", "a")
    });
    center.go(crate::rig::event("c", "orders", "Placed"));
    for id in ["b", "c"] {
        let outcome = center.outcome().await;
        assert_eq!(outcome.id, id);
        assert!(matches!(how(&outcome), How::Failed(failure) if !failure.is_final));
    }
    assert!(rig.sink.sent().is_empty());
}
