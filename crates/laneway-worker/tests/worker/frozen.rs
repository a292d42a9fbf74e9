//! A process that stood still starts nothing that another one may have been given meanwhile.

use std::time::Duration;

use laneway_rpc::proto::ending::How;
use waiting::wait_for;

use crate::rig::{BEGAN, at, go, how, rig, was_delivered};

#[tokio::test]
async fn nothing_is_started_long_after_its_moment() {
    let rig = rig();
    let mut center = rig.center();
    for number in 0..50 {
        center.go(at(go(&format!("m-{number}"), "a"), BEGAN + 50));
    }
    wait_for!(rig.worker.stats().held == 50);
    rig.time.freeze(Duration::from_millis(3_051));
    for outcome in center.outcomes(50).await {
        assert_eq!(how(&outcome), How::HandedBackMs(0));
        center.log(&outcome);
    }
    assert!(rig.sink.sent().is_empty());
    // What comes afterwards is started, however long its moment is over.
    center.go(go("new", "a"));
    assert!(was_delivered(&center.outcome().await));
    assert_eq!(rig.worker.stats().handed_back, 50);
}

#[tokio::test]
async fn a_short_freeze_makes_attempts_late_and_no_more() {
    let rig = rig();
    let mut center = rig.center();
    center.go(at(go("a", "a"), BEGAN + 50));
    wait_for!(rig.worker.stats().held == 1);
    rig.time.freeze(Duration::from_secs(3));
    assert!(was_delivered(&center.outcome().await));
}

#[tokio::test]
async fn what_was_running_tells_how_it_ended() {
    let rig = rig();
    let mut center = rig.center();
    center.go(go("a", "hangs"));
    wait_for!(rig.worker.stats().running == 1);
    rig.time.freeze(Duration::from_mins(10));
    rig.sink.gate.add_permits(1);
    assert!(was_delivered(&center.outcome().await));
}
