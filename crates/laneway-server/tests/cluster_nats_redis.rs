//! `laneway serve --log nats://… --backup redis://…`: centers of real processes that copy their shards to a real Redis.

mod cluster;
#[path = "../../laneway-backup/tests/support/server.rs"]
mod redis_server;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use laneway::Bus;
use laneway_backup::{Backup, RedisOptions};
use laneway_cluster::record::Record;
use serde_json::Value;
use waiting::wait_for_blocking;

use cluster::harness::{Server, empty_directory, laneway};
use cluster::receiver::Receivers;
use cluster::{ALL_WITHIN, Came, Cluster, SHARDS, is_whole, listed, message, submit};
use redis_server::Server as Redis;

/// Puts one row of a copy in the place of another.
const SWAP: &str = "local ids = redis.call('HKEYS', KEYS[1]) \
    return redis.call('HSET', KEYS[1], ids[1], redis.call('HGET', KEYS[1], ids[2]))";

/// A day: such a message waits while this runs.
const LATER: u64 = 86_400_000;

/// Waits until all copies are as far as the logs of their shards, and the logs bear them out: their last records are facts
/// without rows.
fn wait_until_copied(cluster: &Cluster, redis: &Redis) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let shards = u32::try_from(SHARDS).expect("few");
    let backup = RedisOptions::new(&redis.url()).and_then(Backup::open);
    let questions = backup
        .expect("an address")
        .questions(cluster.name(), shards);
    let bus = runtime.block_on(Bus::open(cluster.log())).expect("a bus");
    let log = runtime.block_on(bus.log("laneway.delay.log", shards));
    let log = log.expect("a log");
    let is_copied = async || {
        let Ok(copies) = questions.counts().await else {
            return false;
        };
        for copy in copies {
            let end = log.bounds(copy.shard).await.expect("bounds").end;
            let last = log.read(copy.shard, end - 1).await.expect("a record");
            let last = last.and_then(|bytes| Record::decode(&bytes).ok());
            let names_all = matches!(last, Some(Record::Fact(fact)) if fact.rows.is_empty());
            if copy.applied != Some(end) || !names_all {
                return false;
            }
        }
        true
    };
    wait_for_blocking!(runtime.block_on(is_copied()), "all shards are copied");
    let closed = runtime.block_on(bus.close(Duration::from_secs(10)));
    closed.expect("closed");
}

fn figure(center: &Server, name: &str) -> u64 {
    center.figure(&format!("laneway_{name}"))
}

/// A center whose views are gone.
fn start_cold(cluster: &Cluster, front: &Server, name: &str, redis: &Redis) -> Server {
    let directory = Arc::new(empty_directory());
    let center = cluster.start_backed_up(directory, name, &redis.url());
    wait_for_blocking!(is_whole(front, &[name], 1), "{name} owns all shards");
    center
}

#[test]
fn redis_is_wiped_and_killed_under_load_and_views_are_restored_from_it_only_where_the_log_bears_it_out()
 {
    let nats = needs::service!("nats");
    let Some(mut redis) = Redis::start(Redis::plain) else {
        needs::skip!("needs redis: LANEWAY_TEST_REDIS_BIN is not set");
        return;
    };
    let directory = empty_directory();
    let mut doctor = laneway(&directory);
    let doctor = doctor.args(["doctor", &redis.url()]).output();
    let said = String::from_utf8(doctor.expect("it runs").stdout).expect("text");
    assert!(said.contains("answers"), "{said}");
    assert!(said.contains("evicts nothing"), "{said}");

    let cluster = Cluster::on_nats(&nats);
    let receiver = Receivers::start("200 OK");
    let front = cluster.start("receive,admin", "front");
    let _worker = cluster.start("worker", "worker-1");
    let center = start_cold(&cluster, &front, "center-1", &redis);
    wait_for_blocking!(figure(&center, "backup_behind") == 0, "all is copied");

    // Under load it is wiped, then away, then back.
    let later: Vec<Value> = (0..100)
        .map(|n| message(&format!("later-{n}"), LATER, &receiver.url()))
        .collect();
    let waiting: BTreeSet<String> = submit(&front, &later).into_iter().map(|it| it.0).collect();
    let soon: Vec<Value> = (0..200_u64)
        .map(|n| message(&format!("m-{n}"), 1_000 + n * 25, &receiver.url()))
        .collect();
    submit(&front, &soon);
    let mut came = Came::default();
    came.take(&receiver.next());
    let refills = figure(&center, "backup_refills_total");
    assert_eq!(redis.say("FLUSHALL"), "+OK");
    wait_for_blocking!(
        figure(&center, "backup_refills_total") > refills,
        "it is filled again"
    );
    redis.kill();
    let began = Instant::now();
    while came.0.len() < 200 {
        let count = came.0.len();
        assert!(began.elapsed() < ALL_WITHIN, "{count} of 200 came");
        for callback in receiver.pending() {
            came.take(&callback);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(came.twice(), Vec::<&String>::new());
    wait_for_blocking!(
        {
            let ready = center.get("/readyz");
            ready.status == 200
                && ready
                    .body
                    .contains("the backup lacks something of 4 shards: Redis")
        },
        "it is told that the backup is away"
    );
    assert!(figure(&center, "backup_failures_total") > 0);
    redis.resume();
    wait_for_blocking!(figure(&center, "backup_behind") == 0, "all is copied");
    wait_for_blocking!(
        !center.get("/readyz").body.contains("backup"),
        "it is told that the backup is back"
    );

    // The center and its disk are gone.
    wait_until_copied(&cluster, &redis);
    drop(center.kill());
    let center = start_cold(&cluster, &front, "center-2", &redis);
    assert_eq!(figure(&center, "center_restored_total"), 4);
    assert_eq!(figure(&center, "center_rebuilds_total"), 0);
    assert_eq!(listed(&front, "scheduled"), waiting);
    assert_eq!(listed(&front, "delivered").len(), 200);

    // So is the next one, and a row of each copy is that of another message.
    wait_until_copied(&cluster, &redis);
    drop(center.kill());
    for shard in 0..SHARDS {
        let rows = format!("{}:{{{shard}}}:row", cluster.name());
        assert_eq!(redis.say(&format!("EVAL \"{SWAP}\" 1 {rows}")), ":0");
    }
    let center = start_cold(&cluster, &front, "center-3", &redis);
    assert_eq!(figure(&center, "center_restored_total"), 0);
    assert_eq!(figure(&center, "center_rebuilds_total"), 4);
    assert_eq!(listed(&front, "scheduled"), waiting);
    assert_eq!(listed(&front, "delivered").len(), 200);
    wait_for_blocking!(figure(&center, "backup_behind") == 0, "all is copied");
    // Nothing came again because of any of it.
    assert!(receiver.pending().is_empty());
    center.stop();
}
