//! Workers that die, refuse or come back.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use laneway_rpc::proto::{State, reply, request};
use waiting::wait_for;

use super::receiver::Say;
use super::world::{Make, World, now, soon, submit};
use crate::options::Settings;

#[tokio::test(flavor = "multi_thread")]
async fn the_messages_of_a_dead_worker_are_given_to_others() {
    let mut world = World::new(2);
    world.start_worker("w1");
    let mut make = Make::default();
    make.settings.grace = Duration::from_secs(1);
    let center = world.start_center(make);
    world.assign_all(center);
    world.owned(center).await;
    for number in 0..10 {
        let text = format!("m{number}");
        world.receiver.says(&text, &[Say::Hang]);
        world.submit(submit(&text, soon(50), &[])).await;
    }
    wait_for!(world.receiver.count() == 10);
    world.start_worker("w2");
    world.kill_worker("w1");
    wait_for!(world.receiver.count() == 20);
    for number in 0..10 {
        world.reaches(&format!("m{number}"), State::Delivered).await;
    }
    assert_eq!(world.stats(1).dead_workers, 1);
    assert_eq!(world.judge(Some(now())), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_counts_after_its_worker_died_goes_to_another_one() {
    let mut world = World::new(1);
    world.start_worker("w1");
    let mut make = Make::default();
    make.settings.grace = Duration::from_secs(1);
    let center = world.start_center(make);
    world.assign_all(center);
    world.owned(center).await;
    world.submit(submit("m", soon(300), &[])).await;
    // The attempt is on the way into the log when the worker dies, which the registry still lists.
    world.centers[&1].log.freeze(true);
    tokio::time::sleep(Duration::from_millis(600)).await;
    world.kill_worker("w1");
    wait_for!(world.stats(1).dead_workers == 1);
    world.centers[&1].log.freeze(false);
    world.start_worker("w2");
    world.reaches("m", State::Delivered).await;
    assert_eq!(world.judge(Some(now())), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_started_again_at_once_is_not_taken_for_the_one_that_died() {
    let mut world = World::started(2, &["w1"]).await;
    for number in 0..10 {
        let text = format!("m{number}");
        world.receiver.says(&text, &[Say::Hang]);
        world.submit(submit(&text, soon(50), &[])).await;
    }
    wait_for!(world.receiver.count() == 10);
    world.kill_worker("w1");
    // At the same address, long before the one that died would be given up.
    world.start_worker("w1");
    for number in 0..10 {
        world.reaches(&format!("m{number}"), State::Delivered).await;
    }
    assert_eq!(world.stats(1).dead_workers, 1);
    let seen = world.centers[&1].center.shared.workers.seen();
    let connected = seen.iter().filter(|it| it.is_connected).count();
    assert_eq!(connected, 1, "one process, one stream: {seen:?}");
    assert_eq!(world.judge(Some(now())), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_workers_messages_stay_and_fire_late() {
    let mut world = World::started(1, &[]).await;
    for number in 0..200 {
        world
            .submit(submit(&format!("m{number}"), soon(10), &[]))
            .await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(world.receiver.count(), 0);
    world.start_worker("w1");
    wait_for!(world.receiver.count() == 200);
    // A worker that hears nothing for a while says an outcome again.
    wait_for!(world.stats(1).outcomes >= 200);
    assert_eq!(world.judge(Some(now())), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_loses_nothing_and_makes_nothing_twice() {
    let world = World::started(2, &["w1"]).await;
    for round in 0..4 {
        let before = world.receiver.count();
        for number in 0..15 {
            let (text, due) = (format!("m{}", round * 15 + number), soon(50 + number * 15));
            world.submit(submit(&text, due, &[])).await;
        }
        wait_for!(world.receiver.count() > before);
        world.cut("w1");
    }
    for number in 0..60 {
        world.reaches(&format!("m{number}"), State::Delivered).await;
    }
    assert_eq!(world.receiver.count(), 60);
    assert_eq!(world.stats(1).dead_workers, 0);
    assert_eq!(world.judge(Some(now())), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_drains_hands_its_messages_to_others() {
    let mut world = World::started(1, &["w1"]).await;
    for number in 0..40 {
        let due = soon(100 + number * 10);
        world.submit(submit(&format!("m{number}"), due, &[])).await;
    }
    wait_for!(world.receiver.count() >= 5);
    world.start_worker("w2");
    let drained = world.worker("w1").drain(Duration::from_mins(1)).await;
    assert!(drained.is_clean(), "{drained:?}");
    for number in 0..40 {
        world.reaches(&format!("m{number}"), State::Delivered).await;
    }
    assert_eq!(world.receiver.count(), 40, "nothing comes twice");
    assert_eq!(world.judge(Some(now())), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_on_a_slow_wire_do_not_make_a_worker_look_dead() {
    let mut world = World::new(1);
    // 200 kB of a body in 1 s: all of them take 12 s, and a worker is dead after 4 s of silence.
    *world.connector.per_byte.lock() = Duration::from_micros(5);
    world.start_worker("w1");
    let settings = Settings {
        ping: Duration::from_millis(200),
        silence: Duration::from_secs(4),
        ..Settings::default()
    };
    let center = world.start_center(Make {
        settings,
        ..Make::default()
    });
    world.assign_all(center);
    world.owned(center).await;
    let texts: Vec<String> = (0..12).map(|number| format!("m{number}")).collect();
    for text in &texts {
        // No outcome is a sign of life meanwhile.
        world.receiver.says(text, &[Say::Hang]);
        world.submit(large(text, 200_000)).await;
    }
    wait_for!(world.receiver.count() >= 12, "all of them came");
    assert_eq!(world.stats(1).dead_workers, 0);
    for text in &texts {
        world.receiver.let_go(text);
    }
    for text in &texts {
        world.reaches(text, State::Delivered).await;
    }
    assert_eq!(world.receiver.count(), 12, "nothing came twice");
}

/// A submit with a payload of so many bytes, due soon.
fn large(text: &str, bytes: usize) -> laneway_cluster::owner::Submit {
    let due = soon(100);
    let target = laneway_delay::Target::callback("https://example.com/");
    let when = laneway_delay::When::At(due);
    let submission = laneway_delay::Submission::new("reminders", when, target);
    let body = laneway_rpc::convert::Parts::from(submission.payload(vec![b'x'; bytes]));
    laneway_cluster::owner::Submit {
        body: laneway_rpc::convert::body(&body),
        ..submit(text, due, &[])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_are_shown_with_their_clocks() {
    let world = World::started(1, &["w1"]).await;
    wait_for!({
        let what = request::What::Status(laneway_rpc::proto::StatusRequest {});
        let reply::What::Status(status) = world.call(1, 0, what).await else {
            panic!("no status");
        };
        assert!(status.is_owner && status.is_assigned && status.stopped.is_empty());
        let workers = &status.workers;
        workers.len() == 1 && workers[0].is_connected && workers[0].offset_ms.abs() < 100
    });
}

const AN_HOUR: i64 = 3_600_000;

/// One worker of three has this clock; messages are due one after the other, and it has to start some of them.
async fn with_a_wrong_clock(ahead: i64) {
    let mut world = World::new(2);
    world.start_worker_ahead("w1", ahead);
    world.start_worker("w2");
    world.start_worker("w3");
    let center = world.start_center(Make::default());
    world.assign_all(center);
    world.owned(center).await;
    world.connected(center, 3).await;
    wait_for!(is_known(&world, center).await);
    for number in 0..60 {
        let due = soon(1_000 + number * 20);
        world.submit(submit(&format!("m{number}"), due, &[])).await;
    }
    for number in 0..60 {
        world.reaches(&format!("m{number}"), State::Delivered).await;
    }
    let starts = world.receiver.came();
    assert!(
        starts.iter().any(|start| start.worker == "w1"),
        "{starts:?}"
    );
    // No start is early.
    assert_eq!(world.judge(Some(now())), []);
}

/// Whether a center has heard of the clock that is wrong.
async fn is_known(world: &World, center: u8) -> bool {
    let workers = workers(world, center).await;
    workers.iter().any(|it| it.offset_ms.abs() > AN_HOUR / 2)
}

async fn workers(world: &World, center: u8) -> Vec<laneway_rpc::proto::WorkerStatus> {
    let what = request::What::Status(laneway_rpc::proto::StatusRequest {});
    let reply::What::Status(status) = world.call(center, 0, what).await else {
        panic!("no status");
    };
    status.workers
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_clock_is_an_hour_behind_does_its_share() {
    with_a_wrong_clock(-AN_HOUR).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_clock_is_an_hour_ahead_is_not_early() {
    with_a_wrong_clock(AN_HOUR).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_center_whose_clock_is_an_hour_ahead_begins_nothing_before_it_knows_another_clock() {
    let mut world = World::new(1);
    world.connector.keeps_pongs.store(true, SeqCst);
    world.start_worker("w1");
    let center = world.start_center(Make {
        ahead_ms: AN_HOUR,
        ..Make::default()
    });
    world.assign_all(center);
    world.owned(center).await;
    world.connected(center, 1).await;
    world.submit(submit("m", soon(600_000), &[])).await;
    // Many ticks, in which it would be begun.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(world.stats(center).begun, 0);
    world.connector.keeps_pongs.store(false, SeqCst);
    wait_for!(is_known(&world, center).await);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(world.stats(center).begun, 0);
}
