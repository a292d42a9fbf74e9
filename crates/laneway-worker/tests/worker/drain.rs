//! A worker that ends leaves nothing behind.

use std::collections::BTreeSet;
use std::time::Duration;

use laneway_rpc::proto::ending::How;
use waiting::wait_for;

use crate::rig::{BEGAN, at, go, how, rig, was_delivered};

#[tokio::test]
async fn what_runs_finishes_and_the_rest_is_handed_back() {
    let rig = rig();
    let mut center = rig.center();
    for number in 0..3 {
        center.go(go(&format!("runs-{number}"), "hangs"));
    }
    for number in 0..20 {
        let held = go(&format!("held-{number}"), "a");
        center.go(at(held, BEGAN + 1_000));
    }
    wait_for!(rig.worker.stats().running == 3 && rig.worker.stats().held == 20);
    let worker = rig.worker.clone();
    let draining = tokio::spawn(async move { worker.drain(Duration::from_mins(1)).await });
    wait_for!(rig.worker.is_draining());
    let mut seen = BTreeSet::new();
    for _ in 0..20 {
        let outcome = center.outcome().await;
        assert_eq!(how(&outcome), How::HandedBackMs(0));
        assert!(seen.insert(outcome.id.clone()));
        center.log(&outcome);
    }
    center.go(go("new", "a"));
    assert_eq!(center.refused().await.id, "new");
    assert!(center.ping().await.is_draining);
    // Their moment comes, and nothing of it starts.
    rig.time.clock.advance(Duration::from_secs(2));
    rig.sink.gate.add_permits(3);
    for _ in 0..3 {
        let outcome = center.outcome().await;
        assert!(was_delivered(&outcome));
        assert!(seen.insert(outcome.id.clone()));
        assert!(!draining.is_finished());
        center.log(&outcome);
    }
    assert!(draining.await.expect("it ends").is_clean());
    assert!(center.frame().await.is_none(), "the connection is closed");
    assert_eq!((rig.sink.sent().len(), seen.len()), (3, 23));
}

#[tokio::test]
async fn a_drain_does_not_wait_for_ever() {
    let rig = rig();
    let mut center = rig.center();
    center.go(go("runs", "hangs"));
    center.go(at(go("held", "a"), BEGAN + 1_000));
    wait_for!(rig.worker.stats().running == 1 && rig.worker.stats().held == 1);
    let left = rig.worker.drain(Duration::from_millis(50)).await;
    assert_eq!((left.running, left.unlogged), (1, 1));
    assert_eq!(center.outcome().await.id, "held");
    assert!(center.frame().await.is_none());
}

#[tokio::test]
async fn outcomes_are_offered_to_a_center_that_comes_while_it_drains() {
    let rig = rig();
    let center = rig.center();
    center.go(at(go("held", "a"), BEGAN + 1_000));
    wait_for!(rig.worker.stats().held == 1);
    drop(center);
    wait_for!(rig.worker.stats().connections == 0);
    let worker = rig.worker.clone();
    let draining = tokio::spawn(async move { worker.drain(Duration::from_mins(1)).await });
    wait_for!(rig.worker.stats().unlogged == 1);
    let mut next = rig.center();
    let outcome = next.outcome().await;
    assert_eq!(how(&outcome), How::HandedBackMs(0));
    next.log(&outcome);
    assert!(draining.await.expect("it ends").is_clean());
    assert_eq!(next.credit, 0);
}
