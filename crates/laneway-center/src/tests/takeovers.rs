//! Centers that die, freeze and give shards up.

use std::time::Duration;

use laneway_cluster::owner::Order;
use laneway_rpc::proto::{Refusal, State};
use waiting::wait_for;

use super::receiver::Say;
use super::world::{Make, World, now, soon, submit};

/// Submits with due times on both sides of what happens to the center.
async fn load(world: &World, count: u64) {
    load_from(world, 0, count).await;
}

async fn load_from(world: &World, first: u64, count: u64) {
    for number in 0..count {
        let due = soon(200 + number * 10);
        world
            .submit(submit(&format!("m{}", first + number), due, &[200, 200]))
            .await;
    }
}

async fn all_delivered(world: &World, count: u64) {
    for number in 0..count {
        world.reaches(&format!("m{number}"), State::Delivered).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_center_owned_goes_on_elsewhere_and_nothing_comes_twice() {
    let mut world = World::started(4, &["w1", "w2"]).await;
    let second = world.start_center(Make::default());
    world.connected(second, 2).await;
    load(&world, 100).await;
    wait_for!(world.receiver.count() >= 20);
    world.kill(1);
    world.assign_all(second);
    world.owned(second).await;
    let healed = now();
    all_delivered(&world, 100).await;
    // The workers lived on: what they had begun they told the new owner.
    assert_eq!(world.receiver.count(), 100);
    assert_eq!(world.judge(Some(healed)), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_that_run_through_a_takeover_are_asked_for_and_not_begun_anew() {
    let mut world = World::started(1, &["w1"]).await;
    let second = world.start_center(Make::default());
    world.connected(second, 1).await;
    world.receiver.says("a", &[Say::Hang]);
    world.submit(submit("a", soon(20), &[])).await;
    wait_for!(world.receiver.count() == 1);
    world.kill(1);
    world.assign_all(second);
    world.owned(second).await;
    // It may have been delivered, also to the new owner.
    let answer = world.command("a", Order::Withdraw, None).await;
    assert_eq!(answer.refusal(), Refusal::MayHaveBeenDelivered);
    tokio::time::sleep(Duration::from_millis(300)).await;
    world.receiver.let_go("a");
    world.reaches("a", State::Delivered).await;
    assert_eq!(world.receiver.count(), 1);
    assert_eq!(world.judge(Some(now())), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_frozen_owner_appends_late_is_void_and_its_gos_are_refused() {
    let mut world = World::started(2, &["w1"]).await;
    let second = world.start_center(Make::default());
    world.connected(second, 1).await;
    load(&world, 50).await;
    wait_for!(world.receiver.count() >= 5);
    world.centers[&1].log.freeze(true);
    world.assign_all(second);
    world.owned(second).await;
    wait_for!(world.receiver.count() >= 30);
    // It still believes that it owns, and wakes up with facts under way.
    assert_eq!(world.stats(1).owned, 2);
    world.centers[&1].log.freeze(false);
    let healed = now();
    wait_for!(world.stats(1).step_downs == 2);
    // It has the assignment, too, and would take the shards again and again.
    world.assign(1, &[]);
    world.owned(second).await;
    all_delivered(&world, 50).await;
    let starts = world.receiver.count();
    assert!(starts <= 53, "{starts} starts of 50 messages");
    assert_eq!(world.judge(Some(healed)), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_is_released_when_its_attempts_have_ended() {
    let mut world = World::started(1, &["w1"]).await;
    let second = world.start_center(Make::default());
    world.receiver.says("a", &[Say::Hang]);
    world.submit(submit("a", soon(20), &[])).await;
    let hour = Duration::from_hours(1);
    world.submit(submit("b", now() + hour, &[])).await;
    wait_for!(world.receiver.count() == 1);
    world.assign(1, &[]);
    world.revoked(1).await;
    world.clock.pass(hour);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(world.stats(1).owned, 1, "an attempt is under way");
    assert_eq!(world.receiver.count(), 1, "nothing new begins");
    world.receiver.let_go("a");
    wait_for!(world.stats(1).owned == 0);
    world.assign_all(second);
    world.reaches("b", State::Delivered).await;
    assert_eq!(world.state("a").await, State::Delivered);
    assert_eq!(world.receiver.count(), 2);
    assert_eq!(world.judge(Some(world.now())), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_is_released_after_the_drain_time_whatever_runs() {
    let mut world = World::new(1);
    world.start_worker("w1");
    let mut make = Make::default();
    make.settings.drain = Duration::from_millis(300);
    let center = world.start_center(make);
    world.assign_all(center);
    world.owned(center).await;
    world.receiver.says("a", &[Say::Hang]);
    world.submit(submit("a", soon(20), &[])).await;
    wait_for!(world.receiver.count() == 1);
    world.assign(center, &[]);
    wait_for!(world.stats(center).owned == 0);
    world.assign_all(center);
    world.owned(center).await;
    world.receiver.let_go("a");
    world.reaches("a", State::Delivered).await;
    assert_eq!(world.receiver.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn centers_that_die_one_after_the_other_lose_nothing() {
    let mut world = World::started(2, &["w1", "w2"]).await;
    for round in 0..4 {
        let last = *world.centers.keys().next_back().unwrap();
        let next = world.start_center(Make::default());
        world.connected(next, 2).await;
        let before = world.receiver.count();
        load_from(&world, round * 40, 40).await;
        wait_for!(world.receiver.count() > before);
        world.kill(last);
        world.assign_all(next);
        world.owned(next).await;
    }
    let healed = now();
    all_delivered(&world, 160).await;
    assert_eq!(world.receiver.count(), 160);
    assert_eq!(world.judge(Some(healed)), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_centers_that_both_have_the_assignment_do_no_harm() {
    let mut world = World::started(1, &["w1"]).await;
    let second = world.start_center(Make::default());
    world.assign_all(second);
    load(&world, 60).await;
    world.assign(1, &[]);
    world.owned(second).await;
    let healed = now();
    all_delivered(&world, 60).await;
    assert_eq!(world.judge(Some(healed)), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_center_that_is_stopped_gives_its_shards_up() {
    let mut world = World::started(2, &["w1"]).await;
    let second = world.start_center(Make::default());
    world.connected(second, 1).await;
    load(&world, 20).await;
    let node = world.centers.remove(&1).unwrap();
    world.assign_all(second);
    node.center.stop(Duration::from_mins(1)).await;
    world.owned(second).await;
    all_delivered(&world, 20).await;
    assert_eq!(world.receiver.count(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_without_an_answer_stays_in_doubt_for_the_next_owner() {
    let mut world = World::started(1, &["w1"]).await;
    let second = world.start_center(Make::default());
    world.receiver.says("a", &[Say::Unknown, Say::No]);
    let hour = Duration::from_hours(1);
    world
        .submit(submit("a", soon(20), &[3_600_000, 3_600_000]))
        .await;
    // The worker forgets the attempt then.
    wait_for!(world.stats(1).outcomes == 1);
    wait_for!(world.worker("w1").stats().unlogged == 0);
    world.kill(1);
    world.assign_all(second);
    world.owned(second).await;
    // Waits are a little longer each time.
    world.clock.pass(2 * hour);
    wait_for!(world.stats(second).outcomes == 1);
    let attempts: Vec<_> = world.receiver.of("a").iter().map(|it| it.attempt).collect();
    assert_eq!(attempts, [1, 2]);
    // The second one failed, and the first one may have been delivered.
    let answer = world.command("a", Order::Withdraw, None).await;
    assert_eq!(answer.refusal(), Refusal::MayHaveBeenDelivered);
    assert_eq!(world.judge(Some(world.now())), []);
}
