//! Copies in a real Redis: wiped, killed, old, foreign, forged, restored.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use laneway_backup::{Backup, RedisOptions};
use laneway_cluster::apply::{Head, Identity, Kept, Shard};
use laneway_cluster::checker::LogEntry;
use laneway_cluster::record::{Chain, Record};
use laneway_rpc::proto::State;
use laneway_view::View;
use tokio::net::TcpListener;
use waiting::wait_for;

use super::receiver::Say;
use super::redis_server::Server;
use super::world::{CLUSTER, Make, World, id, now, soon, submit};

/// A Redis of its own, or the end of the test.
macro_rules! own_redis {
    ($arguments:expr) => {
        match Server::start($arguments) {
            Some(server) => server,
            None => {
                needs::skip!("needs redis: LANEWAY_TEST_REDIS_BIN is not set");
                return;
            }
        }
    };
}

fn backup(url: &str) -> Backup {
    Backup::open(RedisOptions::new(url).unwrap()).unwrap()
}

/// One that waits for as long as a busy machine takes.
fn patient(url: &str) -> Backup {
    let mut options = RedisOptions::new(url).unwrap();
    options.answer_within = Duration::from_secs(20);
    Backup::open(options).unwrap()
}

/// A center with a backup.
fn backed_up(url: &str) -> Make {
    Make {
        backup: Some(patient(url)),
        ..Make::default()
    }
}

/// A center with a backup, that has all shards, and workers.
async fn started(url: &str, shards: u32, workers: &[&str]) -> World {
    let mut world = World::new(shards);
    for name in workers {
        world.start_worker(name);
    }
    let center = world.start_center(backed_up(url));
    world.assign_all(center);
    world.owned(center).await;
    world
}

async fn keep(world: &World, names: std::ops::Range<u32>) {
    for number in names {
        // No two rows are alike, also those of one millisecond.
        let due = soon(600_000 + u64::from(number) * 1_000);
        world.submit(submit(&format!("m{number}"), due, &[])).await;
    }
}

/// The next center, in a directory that has nothing.
async fn cold(world: &mut World, make: Make) -> u8 {
    let center = world.start_center(make);
    world.assign_all(center);
    world.owned(center).await;
    center
}

fn names_what_is_before(entry: Option<&LogEntry>) -> bool {
    let record = entry.and_then(|entry| Record::decode(&entry.bytes).ok());
    matches!(record, Some(Record::Fact(fact)) if fact.rows.is_empty())
}

/// Waits until the copies are as far as the logs, and the logs bear them out.
async fn copied(world: &World, url: &str) {
    let questions = patient(url).questions(CLUSTER, world.shards);
    wait_for!({
        let copies = questions.counts().await;
        copies.is_ok_and(|copies| {
            copies.iter().all(|copy| {
                let log = world.log.all(copy.shard);
                copy.applied == Some(log.len() as u64) && names_what_is_before(log.last())
            })
        })
    });
}

fn behind(world: &World, center: u8) -> u64 {
    let stats = world.centers[&center].center.backup_stats();
    stats.unwrap().behind
}

fn refills(world: &World, center: u8) -> u64 {
    let stats = world.centers[&center].center.backup_stats();
    stats.unwrap().refills
}

/// Ends a center, and removes all that it had.
async fn lose(world: &mut World, center: u8) -> PathBuf {
    let directory = world.kill(center);
    // Its files are closed when its tasks have ended.
    wait_for!(std::fs::remove_dir_all(&directory).is_ok());
    directory
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_that_is_gone_is_restored_and_the_log_is_read_from_there() {
    let redis = own_redis!(Server::plain);
    let mut world = started(&redis.url(), 1, &["w1"]).await;
    keep(&world, 0..150).await;
    world.submit(submit("done", soon(10), &[])).await;
    world.reaches("done", State::Delivered).await;
    copied(&world, &redis.url()).await;
    let directory = lose(&mut world, 1).await;
    let make = Make {
        directory: Some(directory),
        ..backed_up(&redis.url())
    };
    let center = cold(&mut world, make).await;
    let stats = world.stats(center);
    assert_eq!((stats.restored, stats.rebuilds), (1, 0));
    let from = world.centers[&center].log.read_from();
    assert!(from >= 80, "the log was read from {from} on");
    assert_eq!(world.state("m149").await, State::Scheduled);
    assert_eq!(world.state("done").await, State::Delivered);
    // A duplicate is told from what is restored.
    world.submit(submit("done", soon(10), &[])).await;
    keep(&world, 150..160).await;
    copied(&world, &redis.url()).await;
    assert_eq!(world.receiver.count(), 1);
    assert_eq!(world.judge(Some(now())), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_of_a_log_that_was_trimmed_is_restored_too() {
    let redis = own_redis!(Server::plain);
    let mut world = World::new(1);
    world.start_worker("w1");
    let mut make = backed_up(&redis.url());
    make.settings.trim = Duration::from_millis(20);
    make.settings.trim_bytes = 16 << 10;
    make.settings.forget = Duration::from_millis(20);
    make.settings.owner.keep = Duration::from_millis(300);
    make.settings.owner.keep_offsets = 20;
    let center = cold(&mut world, make).await;
    keep(&world, 0..20).await;
    let mut number = 0;
    let waiting = waiting::Waiting::default();
    while world.stats(center).trims < 2 {
        waiting.check(&"two trims");
        let mut submit = submit(&format!("now{number}"), soon(5), &[]);
        // None is too old, however busy the machine is: so little is remembered here.
        submit.at = soon(60_000);
        world.submit(submit).await;
        number += 1;
    }
    wait_for!(world.receiver.count() == number);
    copied(&world, &redis.url()).await;
    lose(&mut world, center).await;
    assert!(world.log.first(0) > 0);
    let center = cold(&mut world, backed_up(&redis.url())).await;
    let stats = world.stats(center);
    assert_eq!((stats.restored, stats.rebuilds), (1, 0));
    for number in 0..20 {
        assert_eq!(world.state(&format!("m{number}")).await, State::Scheduled);
    }
    assert_eq!(world.judge(Some(now())), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_backup_the_same_view_is_built_from_the_log() {
    let redis = own_redis!(Server::plain);
    let mut world = started(&redis.url(), 1, &[]).await;
    keep(&world, 0..10).await;
    copied(&world, &redis.url()).await;
    lose(&mut world, 1).await;
    let center = cold(&mut world, Make::default()).await;
    let stats = world.stats(center);
    assert_eq!((stats.restored, stats.rebuilds), (0, 1));
    assert_eq!(world.centers[&center].log.read_from(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_wiped_under_load_is_filled_again_and_nothing_is_late_or_lost() {
    let redis = own_redis!(Server::plain);
    let mut world = started(&redis.url(), 2, &["w1", "w2"]).await;
    wait_for!(behind(&world, 1) == 0);
    let mut filled = refills(&world, 1);
    for round in 0..3 {
        for number in 0..60 {
            let name = format!("m{}", round * 60 + number);
            world.submit(submit(&name, soon(100), &[200])).await;
            if number == 30 {
                assert_eq!(redis.say("FLUSHALL"), "+OK");
            }
        }
        wait_for!(refills(&world, 1) > filled);
        filled = refills(&world, 1);
    }
    for number in 0..180 {
        world.reaches(&format!("m{number}"), State::Delivered).await;
    }
    assert_eq!(world.receiver.count(), 180);
    copied(&world, &redis.url()).await;
    wait_for!(behind(&world, 1) == 0);
    lose(&mut world, 1).await;
    let center = cold(&mut world, backed_up(&redis.url())).await;
    assert_eq!(world.stats(center).restored, 2);
    assert_eq!(world.state("m0").await, State::Delivered);
    assert_eq!(world.judge(Some(now())), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_away_stops_nothing_and_that_is_told() {
    let mut redis = own_redis!(Server::plain);
    let world = started(&redis.url(), 2, &["w1"]).await;
    wait_for!(behind(&world, 1) == 0);
    redis.kill();
    for number in 0..50 {
        world
            .submit(submit(&format!("m{number}"), soon(20), &[]))
            .await;
    }
    for number in 0..50 {
        world.reaches(&format!("m{number}"), State::Delivered).await;
    }
    wait_for!({
        let stats = world.centers[&1].center.backup_stats().unwrap();
        stats.behind == 2 && stats.trouble.is_some() && stats.failures > 0
    });
    redis.resume();
    wait_for!(behind(&world, 1) == 0);
    copied(&world, &redis.url()).await;
    wait_for!({
        let stats = world.centers[&1].center.backup_stats().unwrap();
        stats.trouble.is_none()
    });
    assert_eq!(world.receiver.count(), 50);
    assert_eq!(world.judge(Some(now())), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_evicts_and_takes_nothing_stops_nothing_and_is_filled_when_it_has_room() {
    let redis = own_redis!(Server::plain);
    let world = started(&redis.url(), 1, &["w1"]).await;
    keep(&world, 0..50).await;
    copied(&world, &redis.url()).await;
    let filled = refills(&world, 1);
    assert_eq!(
        redis.say("CONFIG SET maxmemory-policy allkeys-random maxmemory 1"),
        "+OK"
    );
    wait_for!(behind(&world, 1) == 1);
    for number in 0..20 {
        let name = format!("now{number}");
        world.submit(submit(&name, soon(20), &[])).await;
        world.reaches(&name, State::Delivered).await;
    }
    assert_eq!(redis.say("CONFIG SET maxmemory 0"), "+OK");
    wait_for!(behind(&world, 1) == 0);
    copied(&world, &redis.url()).await;
    assert!(refills(&world, 1) > filled);
    assert_eq!(world.receiver.count(), 20);
    assert_eq!(world.judge(Some(now())), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn which_worker_was_handed_what_is_in_the_copy_until_the_outcome_is_known() {
    let redis = own_redis!(Server::plain);
    let world = started(&redis.url(), 1, &["w1"]).await;
    let questions = patient(&redis.url()).questions(CLUSTER, 1);
    world.receiver.says("runs", &[Say::Hang]);
    world.submit(submit("runs", soon(20), &[])).await;
    wait_for!(world.receiver.count() == 1);
    wait_for!(questions.worker_of(&id("runs")).await.unwrap().is_some());
    let worker = questions.worker_of(&id("runs")).await.unwrap().unwrap();
    let messages = questions.worker_messages(worker, None, 10);
    let ids: Vec<_> = messages.await.unwrap().into_iter().map(|it| it.1).collect();
    assert_eq!(ids, [id("runs")]);
    world.receiver.let_go("runs");
    wait_for!(questions.worker_of(&id("runs")).await.unwrap().is_none());
    world.reaches("runs", State::Delivered).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_dump_is_filled_anew_by_its_owner_and_read_on_from_by_a_new_center() {
    let mut redis = own_redis!(Server::forgetful);
    let mut world = started(&redis.url(), 1, &["w1"]).await;
    keep(&world, 0..100).await;
    copied(&world, &redis.url()).await;
    assert_eq!(redis.say("SAVE"), "+OK");
    let saved = world.log.all(0).len();
    for number in 0..30 {
        let name = format!("later{number}");
        world.submit(submit(&name, soon(10), &[])).await;
        world.reaches(&name, State::Delivered).await;
    }
    let filled = refills(&world, 1);
    redis.kill();
    redis.resume();
    wait_for!(refills(&world, 1) > filled);
    copied(&world, &redis.url()).await;

    // Its owner is gone, and Redis goes back again.
    lose(&mut world, 1).await;
    redis.kill();
    redis.resume();
    let center = cold(&mut world, backed_up(&redis.url())).await;
    let stats = world.stats(center);
    assert_eq!((stats.restored, stats.rebuilds), (1, 0));
    let from = world.centers[&center].log.read_from();
    assert!(from > 0 && from <= saved as u64, "read from {from} on");
    for number in 0..30 {
        assert_eq!(
            world.state(&format!("later{number}")).await,
            State::Delivered
        );
    }
    // Nothing that was delivered is delivered again.
    assert_eq!(world.receiver.count(), 30);
    assert_eq!(world.judge(Some(now())), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_another_log_is_not_used_and_gives_way() {
    let redis = own_redis!(Server::plain);
    let mut foreign = started(&redis.url(), 1, &[]).await;
    foreign.submit(submit("theirs", soon(600_000), &[])).await;
    copied(&foreign, &redis.url()).await;
    lose(&mut foreign, 1).await;

    // The same cluster by its name, and the same log by what the broker calls it.
    let mut world = World::started(1, &[]).await;
    keep(&world, 0..20).await;
    lose(&mut world, 1).await;
    let center = cold(&mut world, backed_up(&redis.url())).await;
    let stats = world.stats(center);
    assert_eq!((stats.restored, stats.rebuilds), (0, 1));
    assert_eq!(world.look_up("theirs").await, None);
    assert_eq!(world.state("m19").await, State::Scheduled);
    copied(&world, &redis.url()).await;
    lose(&mut world, center).await;
    let center = cold(&mut world, backed_up(&redis.url())).await;
    assert_eq!(world.stats(center).restored, 1);
}

async fn ask<R: redis::FromRedisValue>(url: &str, command: &mut redis::Cmd) -> R {
    let client = redis::Client::open(url).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    command.query_async(&mut connection).await.unwrap()
}

const ROWS: &str = "c:{0}:row";
const META: &str = "c:{0}:meta";

async fn row(url: &str, name: &str) -> Vec<u8> {
    ask(url, redis::cmd("HGET").arg(ROWS).arg(name)).await
}

async fn put_row(url: &str, name: &str, row: &[u8]) {
    let _: u64 = ask(url, redis::cmd("HSET").arg(ROWS).arg(name).arg(row)).await;
}

/// Another row in the place of one: as many rows as before.
async fn swap_a_row(url: &str) {
    let other = row(url, "m1").await;
    put_row(url, "m2", &other).await;
}

/// A row is gone.
async fn evict_a_row(url: &str) {
    let _: u64 = ask(url, redis::cmd("HDEL").arg(ROWS).arg("m3")).await;
}

/// Another payload, and a head that goes with it: count, digest and check are right.
async fn forge_a_row(url: &str) {
    let before = Kept::decode(&row(url, "m4").await.into()).unwrap();
    let mut after = before.clone();
    after.image.topic = "forged".to_owned();
    put_row(url, "m4", &after.encode()).await;
    let head: Vec<u8> = ask(url, redis::cmd("HGET").arg(META).arg("head")).await;
    let mut head = Head::decode(&Bytes::from(head)).unwrap();
    let without = head.digest.without(before.digest(&id("m4")));
    head.digest = without.with(after.digest(&id("m4")));
    let head = head.encode();
    let mut check = String::new();
    for byte in Chain::START.then(&head).0 {
        write!(check, "{byte:02x}").unwrap();
    }
    let mut set = redis::cmd("HSET");
    set.arg(META).arg("head").arg(&head[..]);
    let _: u64 = ask(url, set.arg("check").arg(check)).await;
}

/// A copy that is changed while its owner is gone: the view is built from the log, and the copy is filled anew.
async fn is_not_used(redis: &Server, change: impl AsyncFnOnce(&str)) {
    let url = redis.url();
    let mut world = started(&url, 1, &[]).await;
    keep(&world, 0..20).await;
    copied(&world, &url).await;
    lose(&mut world, 1).await;
    change(&url).await;
    let center = cold(&mut world, backed_up(&url)).await;
    let stats = world.stats(center);
    assert_eq!((stats.restored, stats.rebuilds), (0, 1));
    for number in 0..20 {
        let found = world.look_up(&format!("m{number}")).await.unwrap();
        assert_eq!(found.state(), State::Scheduled);
        assert_eq!(found.topic, "reminders");
    }
    copied(&world, &url).await;
    lose(&mut world, center).await;
    let center = cold(&mut world, backed_up(&url)).await;
    assert_eq!(world.stats(center).restored, 1);
    assert_eq!(world.judge(Some(now())), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_with_another_row_is_not_used() {
    let redis = own_redis!(Server::plain);
    is_not_used(&redis, swap_a_row).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_lacks_a_row_is_not_used() {
    let redis = own_redis!(Server::plain);
    is_not_used(&redis, evict_a_row).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_was_forged_is_not_used_for_the_log_does_not_name_it() {
    let redis = own_redis!(Server::plain);
    is_not_used(&redis, forge_a_row).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_that_was_being_restored_when_its_center_died_is_not_opened() {
    let mut world = World::started(1, &[]).await;
    keep(&world, 0..10).await;
    let mut center = 1;
    for (is_unfinished, rebuilds) in [(false, 0), (true, 1)] {
        let directory = lose(&mut world, center).await;
        let shard = crate::shard::directory(&directory, 0);
        let identity = Identity {
            cluster: CLUSTER.to_owned(),
            topic: "memory".to_owned(),
            shard: 0,
            shards: 1,
        };
        // A good view, as it would be.
        let (view, _) = View::open(&shard.join("view"), &identity).unwrap();
        let mut built = Shard::new(identity, view);
        for entry in world.log.all(0) {
            built.apply(entry.offset, &entry.bytes).unwrap();
        }
        built.table().commit(built.head()).unwrap();
        drop(built);
        let mark = shard.join("view.restoring");
        if is_unfinished {
            std::fs::write(&mark, "").unwrap();
        }
        let make = Make {
            directory: Some(directory),
            ..Make::default()
        };
        center = cold(&mut world, make).await;
        assert_eq!(world.stats(center).rebuilds, rebuilds);
        assert!(!mark.exists());
        assert_eq!(world.state("m9").await, State::Scheduled);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_takes_connections_and_never_answers_delays_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let silent = tokio::spawn(async move {
        let mut taken = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            taken.push(connection);
        }
    });
    let make = || Make {
        backup: Some(backup(&url)),
        ..Make::default()
    };
    let mut world = World::new(2);
    world.start_worker("w1");
    cold(&mut world, make()).await;
    for number in 0..30 {
        world
            .submit(submit(&format!("m{number}"), soon(20), &[]))
            .await;
    }
    for number in 0..30 {
        world.reaches(&format!("m{number}"), State::Delivered).await;
    }
    wait_for!(behind(&world, 1) == 2);
    lose(&mut world, 1).await;
    let center = cold(&mut world, make()).await;
    let stats = world.stats(center);
    assert_eq!((stats.restored, stats.rebuilds), (0, 2));
    assert_eq!(world.state("m0").await, State::Delivered);
    assert_eq!(world.receiver.count(), 30);
    assert_eq!(world.judge(Some(now())), []);
    silent.abort();
}
