//! Outcomes are kept until they are logged.

use std::time::Duration;

use laneway_rpc::proto;
use laneway_rpc::proto::ending::How;
use waiting::wait_for;

use crate::rig::{go, how, rig, was_delivered};

#[tokio::test]
async fn an_outcome_survives_its_connection_and_is_offered_until_it_is_logged() {
    let rig = rig();
    let lost = rig.center();
    lost.go(go("a", "hangs"));
    wait_for!(rig.worker.stats().running == 1);
    drop(lost);
    wait_for!(rig.worker.stats().connections == 0);
    assert_eq!(rig.worker.stats().running, 1);
    rig.sink.gate.add_permits(1);
    wait_for!(rig.worker.stats().unlogged == 1);

    let (mut next, mut other) = (rig.center(), rig.center());
    assert!(was_delivered(&next.outcome().await));
    assert!(was_delivered(&other.outcome().await));
    // Not before its time, and then to all.
    next.ping().await;
    rig.time.count(Duration::from_secs(5));
    assert!(was_delivered(&next.outcome().await));
    let outcome = other.outcome().await;
    other.log(&outcome);
    wait_for!(rig.worker.stats().unlogged == 0);
    rig.time.count(Duration::from_secs(5));
    // The pong is the first frame: there is nothing to offer.
    rig.center().ping().await;
    next.ping().await;
    assert_eq!(rig.sink.sent(), ["a"]);
}

#[tokio::test]
async fn an_outcome_goes_to_the_center_that_gave_the_attempt() {
    let rig = rig();
    let (mut one, mut other) = (rig.center(), rig.center());
    other.ping().await;
    one.go(go("a", "a"));
    one.outcome().await;
    other.ping().await;
}

#[tokio::test]
async fn every_way_to_end_is_told() {
    let rig = rig();
    let mut center = rig.center();
    let failed = |reason: &str, after_ms, is_final| {
        How::Failed(proto::Failure {
            reason: reason.to_owned(),
            after_ms,
            is_final,
        })
    };
    for (host, ending) in [
        ("fine", How::Delivered(true)),
        ("fails", failed("500", 0, false)),
        ("later", failed("429", 9_000, false)),
        ("never", failed("410", 0, true)),
        ("silent", How::Unknown("no answer".to_owned())),
        ("closed", How::HandedBackMs(7_000)),
        ("postponed", How::HandedBackMs(4_000)),
    ] {
        center.go(go(host, host));
        let outcome = center.outcome().await;
        assert_eq!(how(&outcome), ending, "{host}");
        center.log(&outcome);
    }
    center.go(go("panics", "panics"));
    assert!(matches!(how(&center.outcome().await), How::Unknown(_)));
    // The engine tries none of them again: that is up to the owner.
    rig.time.clock.advance(Duration::from_mins(1));
    center.go(go("last", "fine"));
    assert_eq!(center.outcome().await.id, "last");
    assert_eq!(rig.sink.sent().len(), 9);
    let stats = rig.worker.stats();
    let topic = stats.topics["reminders"];
    assert_eq!((topic.started, topic.delivered, topic.failed), (9, 2, 3));
    assert_eq!((topic.unknown, topic.handed_back), (2, 2));
    assert_eq!(
        (stats.started, stats.handed_back, stats.held_bytes),
        (9, 2, 0)
    );
}
