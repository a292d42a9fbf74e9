//! What a worker has is bounded.

use std::time::Duration;

use laneway_rpc::proto;
use laneway_rpc::proto::ending::How;
use laneway_rpc::proto::to_worker::Frame;
use waiting::wait_for;

use crate::rig::{BEGAN, at, go, how, rig_with};

#[tokio::test]
async fn credit_comes_back_when_outcomes_are_logged_and_not_before() {
    let rig = rig_with(|options| options.credit = 16);
    let mut center = rig.center();
    center.ping().await;
    assert_eq!(center.credit, 16);
    for number in 0..16 {
        center.go(go(&format!("m-{number}"), "a"));
    }
    let outcomes = center.outcomes(16).await;
    center.ping().await;
    assert_eq!(center.credit, 16, "nothing is logged");
    for (logged, outcome) in (1..).zip(&outcomes) {
        center.log(outcome);
        center.ping().await;
        assert!(center.credit <= 16 + logged);
    }
    // It is granted in parts of an eighth, as long as there is some left.
    assert!(center.credit > 32 - 16 / 8);
}

#[tokio::test]
async fn what_is_left_of_a_lost_connection_counts() {
    let rig = rig_with(|options| options.credit = 16);
    let mut lost = rig.center();
    for number in 0..16 {
        lost.go(at(go(&format!("m-{number}"), "a"), BEGAN + 1_000));
    }
    lost.ping().await;
    drop(lost);
    wait_for!(rig.worker.stats().connections == 0);
    let mut next = rig.center();
    next.ping().await;
    assert_eq!(next.credit, 8);
    rig.time.clock.advance(Duration::from_secs(1));
    for outcome in next.outcomes(16).await {
        next.log(&outcome);
    }
    next.ping().await;
    assert_eq!(next.credit, 16);
}

#[tokio::test]
async fn there_is_no_credit_for_more_bytes_than_may_be_held() {
    let rig = rig_with(|options| {
        options.credit = 16;
        options.held_bytes = 1_000;
    });
    let mut center = rig.center();
    let large = |id: &str, bytes: usize| {
        let mut go = at(go(id, "a"), BEGAN + 1_000);
        if let Some(content) = &mut go.content {
            content.payload = vec![b'x'; bytes].into();
        }
        go
    };
    center.go(large("alone", 1_500));
    center.go(large("too-much", 10));
    let outcome = center.outcome().await;
    assert_eq!(outcome.id, "too-much");
    assert_eq!(how(&outcome), How::HandedBackMs(1_000));
    center.log(&outcome);
    // Hints take credit, too, and give it back at once where there is room.
    for number in 0..14 {
        center.send(Frame::Hint(proto::Hint {
            shard: 1,
            id: format!("h-{number}"),
            version: 1,
            due_ms: BEGAN + 60_000,
        }));
    }
    center.ping().await;
    assert_eq!((center.credit, rig.worker.stats().hints), (16, 14));
    assert_eq!(rig.worker.stats().held_bytes, 1_500);
    rig.time.clock.advance(Duration::from_secs(1));
    let outcome = center.outcome().await;
    center.log(&outcome);
    center.ping().await;
    assert!(center.credit > 32 - 16 / 8);
    let unhint = proto::Unhint {
        shard: 1,
        id: "h-3".to_owned(),
    };
    center.send(Frame::Unhint(unhint));
    center.ping().await;
    assert_eq!(rig.worker.stats().hints, 13);
}

#[tokio::test]
async fn a_pong_tells_the_time_and_the_load() {
    let rig = rig_with(|_| {});
    let mut center = rig.center();
    center.go(at(go("a", "a"), BEGAN + 1_000));
    wait_for!(center.ping().await.memory > 0.0);
    let pong = center.ping().await;
    assert_eq!(
        (pong.number, pong.now_ms, pong.held),
        (77, rig.time.now_ms(), 1)
    );
    assert!((0.0..=1.0).contains(&pong.cpu) && !pong.is_draining);
}
