//! Destinations delay none but themselves.

use std::collections::BTreeSet;
use std::time::Duration;

use laneway_rpc::proto::ending::How;
use waiting::wait_for;

use crate::rig::{BEGAN, at, go, how, rig, was_delivered};

#[tokio::test]
async fn a_host_that_hangs_delays_no_other_one() {
    let rig = rig();
    let mut center = rig.center();
    for number in 0..400 {
        center.go(go(&format!("hangs-{number}"), "hangs"));
    }
    for number in 0..200 {
        let host = format!("host-{}", number % 20);
        center.go(go(&format!("fine-{number}"), &host));
    }
    for outcome in center.outcomes(200).await {
        assert!(outcome.id.starts_with("fine-") && was_delivered(&outcome));
        center.log(&outcome);
    }
    assert!(rig.sink.count("hangs-") <= 64);
}

#[tokio::test]
async fn those_that_wait_for_a_host_that_hangs_do_not_keep_the_credit() {
    let rig = rig();
    let mut center = rig.center();
    for number in 0..1_000 {
        center.go(go(&format!("hangs-{number}"), "hangs"));
    }
    wait_for!(rig.worker.stats().running == 64 && rig.worker.stats().held == 936);
    rig.time.count(Duration::from_millis(1_100));
    let excess = 1_000 - 64 - 256;
    for outcome in center.outcomes(excess).await {
        assert_eq!(how(&outcome), How::HandedBackMs(1_000));
    }
    assert_eq!(rig.worker.stats().held, 256);
    // The others go back, too, when they have waited for too long; what runs goes on.
    rig.time.count(Duration::from_secs(3));
    for outcome in center.outcomes(256).await {
        assert_eq!(how(&outcome), How::HandedBackMs(1_000));
    }
    rig.sink.gate.add_permits(64);
    for outcome in center.outcomes(64).await {
        assert!(was_delivered(&outcome));
    }
    assert_eq!(rig.sink.sent().len(), 64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_attempts_of_one_moment_are_made_once_each() {
    let rig = rig();
    let mut centers = [rig.center(), rig.center()];
    for number in 0..2_000_u64 {
        let host = format!("host-{}", number % 50);
        let due = at(go(&format!("m-{number}"), &host), BEGAN + 50);
        let shard = u32::try_from(number % 8).expect("small");
        centers[usize::from(number % 2 == 0)].go(laneway_rpc::proto::Go { shard, ..due });
    }
    wait_for!(rig.worker.stats().held == 2_000);
    assert!(rig.sink.sent().is_empty());
    rig.time.clock.advance(Duration::from_millis(50));
    let mut ended = BTreeSet::new();
    for center in &mut centers {
        for outcome in center.outcomes(1_000).await {
            assert!(was_delivered(&outcome));
            center.log(&outcome);
            assert!(ended.insert(outcome.id));
        }
    }
    let sent: BTreeSet<String> = rig.sink.sent().into_iter().collect();
    assert_eq!(rig.sink.sent().len(), 2_000);
    assert_eq!(sent, ended);
    wait_for!(rig.worker.stats().unlogged == 0);
}
