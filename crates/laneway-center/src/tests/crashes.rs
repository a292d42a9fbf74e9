//! Tasks that crash, views that are gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use laneway_rpc::proto::{State, reply, request};
use waiting::wait_for;

use super::world::{Make, World, now, soon, submit};

/// A center that crashes so often at a record with this text.
fn crashing(text: &'static str, times: u32) -> Make {
    let left = Arc::new(AtomicU32::new(times));
    let planted = move |_: u32, record: &[u8]| {
        let has = record
            .windows(text.len())
            .any(|part| part == text.as_bytes());
        let less = |left: u32| left.checked_sub(1);
        has && left.fetch_update(SeqCst, SeqCst, less).is_ok()
    };
    Make {
        planted: Some(Arc::new(planted)),
        ..Make::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_crashes_is_started_again_and_loses_nothing() {
    let mut world = World::new(1);
    world.start_worker("w1");
    let center = world.start_center(crashing("poison", 2));
    world.assign_all(center);
    world.owned(center).await;
    world.submit(submit("a", soon(100), &[])).await;
    world.submit(submit("poison", soon(100), &[])).await;
    world.reaches("a", State::Delivered).await;
    world.reaches("poison", State::Delivered).await;
    let stats = world.stats(center);
    assert_eq!((stats.crashes, stats.quarantined), (2, 0));
    assert_eq!(world.receiver.count(), 2);
    assert_eq!(world.judge(Some(now())), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_crashes_too_often_is_quarantined_here_and_goes_on_elsewhere() {
    let mut world = World::new(1);
    world.start_worker("w1");
    let center = world.start_center(crashing("poison", u32::MAX));
    world.assign_all(center);
    world.owned(center).await;
    let mailboxes = world.centers[&center].center.mailboxes.clone();
    let poison = submit("poison", soon(100), &[]);
    // The first crash takes its caller with it.
    assert!(
        crate::intake::deliver(&mailboxes, 0, poison.clone())
            .await
            .is_err()
    );
    wait_for!(world.stats(center).quarantined == 1);
    let what = request::What::Status(laneway_rpc::proto::StatusRequest {});
    wait_for!({
        let reply::What::Status(status) = world.call(center, 0, what.clone()).await else {
            panic!("no status");
        };
        status.stopped.contains("quarantined") && !status.is_owner
    });
    assert!(crate::intake::deliver(&mailboxes, 0, poison).await.is_err());
    world.assign(center, &[]);
    let other = world.start_center(Make::default());
    world.assign_all(other);
    world.reaches("poison", State::Delivered).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_that_is_gone_is_built_from_the_log() {
    let mut world = World::started(2, &[]).await;
    for number in 0..50 {
        world
            .submit(submit(&format!("m{number}"), soon(60_000), &[]))
            .await;
    }
    let directory = world.kill(1);
    // Its files are closed when its tasks have ended.
    wait_for!(std::fs::remove_dir_all(&directory).is_ok());
    let make = Make {
        directory: Some(directory),
        ..Make::default()
    };
    let center = world.start_center(make);
    world.assign_all(center);
    world.owned(center).await;
    for number in 0..50 {
        assert_eq!(world.state(&format!("m{number}")).await, State::Scheduled);
    }
    assert_eq!(world.judge(Some(now())), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_is_used_again_after_a_restart() {
    let mut world = World::started(1, &[]).await;
    for number in 0..50 {
        world
            .submit(submit(&format!("m{number}"), soon(60_000), &[]))
            .await;
    }
    world.committed(1).await;
    let directory = world.kill(1);
    let make = Make {
        directory: Some(directory),
        ..Make::default()
    };
    let center = world.start_center(make);
    world.assign_all(center);
    world.owned(center).await;
    assert_eq!(world.stats(center).rebuilds, 0);
    assert!(world.stats(center).applied < 10);
    assert_eq!(world.state("m49").await, State::Scheduled);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_of_another_log_is_set_aside() {
    let mut world = World::started(1, &[]).await;
    world.submit(submit("a", soon(60_000), &[])).await;
    world.committed(1).await;
    let directory = world.kill(1);
    // A log of the same identity with another past: it lost its end, and others wrote on.
    let mut other = World::started(1, &[]).await;
    other.submit(submit("b", soon(60_000), &[])).await;
    other.submit(submit("c", soon(60_000), &[])).await;
    let make = Make {
        directory: Some(directory),
        ..Make::default()
    };
    let center = other.start_center(make);
    other.assign(1, &[]);
    other.assign_all(center);
    other.owned(center).await;
    assert_eq!(other.stats(center).rebuilds, 1);
    assert_eq!(other.look_up("a").await, None);
    assert_eq!(other.state("b").await, State::Scheduled);
}
