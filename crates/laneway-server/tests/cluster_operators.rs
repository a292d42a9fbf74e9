//! What operators do with a cluster of real processes: topics are given workers, processes are drained and removed.

mod cluster;

use std::collections::BTreeSet;
use std::process::Output;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use rustix::process::Signal;
use serde_json::{Value, json};
use waiting::wait_for_blocking;

use cluster::harness::{Server, empty_directory, laneway};
use cluster::receiver::Receivers;
use cluster::{ALL_WITHIN, Came, Cluster, SHARDS, is_whole, message, millis, owners, submit};

/// Runs a command against a server.
fn run(server: &Server, arguments: &[&str]) -> Output {
    let directory = empty_directory();
    let mut command = laneway(&directory);
    command.args(arguments).args(["--server", &server.url()]);
    command.output().expect("it runs")
}

/// What a command that succeeds prints.
fn told(server: &Server, arguments: &[&str]) -> String {
    let output = run(server, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn started(workers: &[&Server]) -> Vec<u64> {
    let of = |worker: &&Server| worker.figure("laneway_worker_started_total");
    workers.iter().map(of).collect()
}

/// Submits so many messages of a topic, due one after the other, and waits until all of them came. How many each worker started.
fn deliver(
    front: &Server,
    receiver: &Receivers,
    (topic, count): (&str, u64),
    workers: &[&Server],
) -> Vec<u64> {
    let before = started(workers);
    let messages: Vec<Value> = (0..count)
        .map(|number| {
            let label = format!("{topic}-{number}");
            let mut message = message(&label, 300 + number * 5, &receiver.url());
            message["topic"] = json!(topic);
            message
        })
        .collect();
    submit(front, &messages);
    let mut came = Came::default();
    let expected = usize::try_from(count).expect("few");
    collect(receiver, &mut came, expected);
    assert_eq!(came.twice(), Vec::<&String>::new());
    let after = started(workers);
    let more = after
        .iter()
        .zip(before)
        .map(|(after, before)| after - before);
    more.collect()
}

fn collect(receiver: &Receivers, came: &mut Came, expected: usize) {
    let began = Instant::now();
    while came.0.len() < expected {
        let count = came.0.len();
        assert!(began.elapsed() < ALL_WITHIN, "{count} of {expected} came");
        came.take(&receiver.next());
    }
}

/// Delivers one message after the other, until the one that was delivered was started by none but these workers.
fn until_only(
    front: &Server,
    receiver: &Receivers,
    topic: &str,
    (own, others): (&[&Server], &[&Server]),
) {
    let all: Vec<&Server> = own.iter().chain(others).copied().collect();
    wait_for_blocking!(
        {
            let started = deliver(front, receiver, (topic, 4), &all);
            started[..own.len()].iter().sum::<u64>() == 4
        },
        "the center has heard of the change"
    );
}

#[test]
fn messages_of_a_topic_go_to_its_workers_alone_and_a_change_counts_while_all_runs() {
    let cluster = Cluster::on_nats(&needs::service!("nats"));
    let receiver = Receivers::start("200 OK");
    let front = cluster.start("receive,admin", "front");
    let center = cluster.start("center", "center");
    let one = cluster.start("worker", "one");
    let two = cluster.start("worker", "two");
    let three = cluster.start("worker", "three");
    wait_for_blocking!(is_whole(&front, &["center"], 3), "it is whole");
    let all = [&one, &two, &three];

    let shown = told(&front, &["topic", "show", "orders"]);
    assert!(shown.contains("workers:  all"), "{shown}");
    let shown = told(&front, &["topic", "map", "orders", "--workers", "one"]);
    assert!(shown.contains("workers:  one\n"), "{shown}");
    until_only(&front, &receiver, "orders", (&[&one], &[&two, &three]));
    assert_eq!(deliver(&front, &receiver, ("orders", 60), &all), [60, 0, 0]);

    // While all runs; and in turns, which is exact.
    told(
        &front,
        &["topic", "map", "orders", "--workers", "two,three"],
    );
    let shown = told(&front, &["topic", "balance", "orders", "round-robin"]);
    assert!(shown.contains("balance:  round-robin"), "{shown}");
    until_only(&front, &receiver, "orders", (&[&two, &three], &[&one]));
    let counts = deliver(&front, &receiver, ("orders", 200), &all);
    assert_eq!(counts[0], 0, "{counts:?}");
    assert!((98..=102).contains(&counts[1]), "{counts:?}");
    // Others are where they were.
    let counts = deliver(&front, &receiver, ("others", 90), &all);
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");

    // A center that starts knows what was set before.
    drop(center.stop());
    let center = cluster.start("center", "later");
    wait_for_blocking!(is_whole(&front, &["later"], 3), "it is whole");
    let counts = deliver(&front, &receiver, ("orders", 40), &all);
    assert_eq!(counts[0], 0, "{counts:?}");

    // Of those that are not there none is waited for.
    let shown = told(&front, &["topic", "map", "orders", "--workers", "four"]);
    assert!(shown.contains("not there now: four"), "{shown}");
    let counts = deliver(&front, &receiver, ("orders", 20), &all);
    assert_eq!(counts.iter().sum::<u64>(), 20, "{counts:?}");

    let shown = told(
        &front,
        &["topic", "map", "orders", "--random", "2", "--json"],
    );
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(
        shown["workers"].as_array().map(Vec::len),
        Some(2),
        "{shown}"
    );
    let listed = front.get("/v1/topics").json();
    assert_eq!(listed["topics"][0], shown, "drawn once, and stored");
    let refused = run(&front, &["topic", "map", "orders", "--random", "4"]);
    let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(errors.contains("3 workers"), "{errors}");
    told(&front, &["topic", "reset", "orders"]);
    let shown = front.get("/v1/topics/orders/placement").json();
    assert_eq!(shown["is_default"], true, "{shown}");
    drop(center);
}

#[test]
fn what_cannot_be_set_is_refused_and_pages_of_other_sites_set_nothing() {
    let cluster = Cluster::on_nats(&needs::service!("nats"));
    let admin = cluster.start("admin", "admin");
    let path = "/v1/topics/orders/placement";
    let refused = admin.send("PUT", path, &json!({ "balance": "fair" }));
    assert_eq!(refused.status, 422, "{refused:?}");
    assert_eq!(refused.json()["field"], "balance");
    let refused = admin.send("PUT", path, &json!({ "worker": [] }));
    assert_eq!(refused.status, 400, "{refused:?}");
    let origin = "content-type: application/json\r\norigin: https://evil.example\r\n";
    let body = r#"{"workers":["mine"]}"#;
    assert_eq!(admin.send_with("PUT", path, origin, body).status, 403);
    assert_eq!(
        admin
            .send_with("PUT", path, "content-type: text/plain\r\n", body)
            .status,
        415
    );
    let origin = "origin: https://evil.example\r\n";
    let instance = "/v1/cluster/instances/admin";
    assert_eq!(admin.send_with("DELETE", instance, origin, "").status, 403);
    let drain = format!("{instance}/drain");
    assert_eq!(admin.send_with("POST", &drain, origin, "").status, 403);
    assert_eq!(admin.get(path).json()["all"], true);
    let unknown = admin.request("DELETE", "/v1/cluster/instances/nothing");
    assert_eq!(unknown.status, 404, "{unknown:?}");
    assert_eq!(unknown.json()["code"], "no_such_instance");
    // A worker has none of these routes.
    let worker = cluster.start("worker", "worker");
    assert_eq!(worker.get(path).status, 404);
}

/// What a center says about a worker.
fn seen(admin: &Server, worker: &str) -> Vec<Value> {
    let cluster = admin.get("/v1/cluster").json();
    let clocks = cluster["clocks"].as_array().expect("clocks").iter();
    let of = clocks.filter(|clock| clock["worker"] == worker);
    of.cloned().collect()
}

#[test]
fn processes_that_are_drained_under_load_finish_and_nothing_is_lost_or_comes_twice() {
    let cluster = Cluster::on_nats(&needs::service!("nats"));
    let receiver = Receivers::start("200 OK");
    let front = cluster.start("receive,admin", "front");
    let first_center = cluster.start("center", "center-1");
    let drained = cluster.start("worker", "drained");
    let stays = cluster.start("worker", "stays");
    wait_for_blocking!(is_whole(&front, &["center-1"], 2), "it is whole");

    let messages: Vec<Value> = (0..400_u64)
        .map(|number| message(&format!("m-{number}"), 500 + number * 10, &receiver.url()))
        .collect();
    submit(&front, &messages);
    let mut came = Came::default();
    collect(&receiver, &mut came, 40);
    let shown = told(&front, &["cluster", "drain", "drained"]);
    assert!(shown.starts_with("drained: drained (worker)"), "{shown}");
    collect(&receiver, &mut came, 100);
    let second_center = cluster.start("center", "center-2");
    wait_for_blocking!(
        is_whole(&front, &["center-1", "center-2"], 2),
        "it is whole"
    );
    told(&front, &["cluster", "drain", "center-1"]);
    collect(&receiver, &mut came, 400);
    wait_for_blocking!(
        {
            let owners = owners(&front);
            owners.len() == 4 && owners.iter().all(|owner| owner == "center-2")
        },
        "the drained center has given up its shards"
    );

    wait_for_blocking!(
        seen(&front, "drained")
            .iter()
            .all(|it| { it["is_draining"] == true && it["held"] == 0 && it["unsettled"] == 0 }),
        "nothing is left of the drained worker"
    );
    let shown = told(&front, &["cluster", "status"]);
    for (line, state) in [
        ("center  center-1", " drained "),
        ("worker  drained", " drained "),
        ("center-2  drained", " draining "),
        ("receive  front", ""),
        ("admin    front", ""),
    ] {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_of = |line: &&str| line.split_whitespace().take(2).eq(words.iter().copied());
        let found = shown
            .lines()
            .find(is_of)
            .unwrap_or_else(|| panic!("{line}: {shown}"));
        assert!(found.contains(state), "{shown}");
    }
    assert_eq!(drained.get("/readyz").status, 503);
    let counts = deliver(&front, &receiver, ("more", 50), &[&drained, &stays]);
    assert_eq!(counts, [0, 50]);
    assert_eq!(came.twice(), Vec::<&String>::new());
    assert!(receiver.pending().is_empty(), "nothing came twice");
    drained.stop();
    first_center.stop();
    drop((stays, second_center));
}

#[test]
fn a_frozen_worker_that_is_removed_ends_when_it_wakes_up() {
    let cluster = Cluster::on_nats(&needs::service!("nats"));
    let receiver = Receivers::start("200 OK");
    let front = cluster.start("receive,admin,center", "front");
    let stuck = cluster.start("worker", "twin");
    let other = cluster.start("worker", "twin");
    wait_for_blocking!(is_whole(&front, &["front"], 2), "it is whole");
    let refused = run(&front, &["cluster", "remove", "twin"]);
    assert_eq!(refused.status.code(), Some(4));
    let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
    let instances = front.get("/v1/cluster").json()["instances"].clone();
    let twins: BTreeSet<String> = instances
        .as_array()
        .expect("instances")
        .iter()
        .filter(|it| it["name"] == "twin")
        .map(|it| it["id"].as_str().expect("an id").to_owned())
        .collect();
    assert_eq!(twins.len(), 2);
    assert!(twins.iter().all(|id| errors.contains(id)), "{errors}");

    let id = stuck
        .log_so_far()
        .into_iter()
        .find_map(|line| twins.iter().find(|id| line.contains(*id)).cloned());
    let id = id.expect("it logs its id");
    stuck.signal(Signal::STOP);
    let shown = told(&front, &["cluster", "remove", &id]);
    assert!(shown.contains(&id), "{shown}");
    // Before it is silent for long enough to be taken for dead by itself.
    wait_for_blocking!(seen(&front, "twin").len() == 1, "the center has dropped it");
    let counts = deliver(&front, &receiver, ("t", 40), &[&other]);
    assert_eq!(counts, [40]);
    let instances = front.get("/v1/cluster").json()["instances"].to_string();
    assert!(!instances.contains(&id), "{instances}");

    stuck.signal(Signal::CONT);
    let (status, log) = stuck.wait();
    assert_eq!(status.code(), Some(1));
    let log = log.join("\n");
    assert!(
        log.contains("an operator has removed this instance"),
        "{log}"
    );
    assert!(receiver.pending().is_empty(), "it started nothing");
}

#[test]
fn a_center_on_which_shards_go_no_further_leaves_them_to_another_one() {
    let cluster = Cluster::on_nats(&needs::service!("nats"));
    let receiver = Receivers::start("200 OK");
    let front = cluster.start("receive,admin,worker", "front");
    // It crashed three times at every shard, just now.
    let directory = Arc::new(empty_directory());
    let now = millis(SystemTime::now());
    for shard in 0..SHARDS {
        let view = directory
            .path()
            .join(format!("laneway-data/views/shard-{shard}"));
        std::fs::create_dir_all(&view).expect("a directory");
        std::fs::write(view.join("crashes"), format!("{now}\n{now}\n{now}")).expect("written");
    }
    let crashed = cluster.start_in(directory, "center", "crashed");
    let stopped = || {
        let cluster = front.get("/v1/cluster").json();
        let shards = cluster["shards"].as_array().expect("shards").clone();
        let stopped = shards
            .iter()
            .filter(|it| it["stopped"]["crashed"].is_string());
        stopped.count()
    };
    wait_for_blocking!(stopped() == SHARDS, "no shard goes on there");
    // Alone, it stays: there is no other one that could go on.
    wait_for_blocking!(crashed.get("/readyz").status == 200, "it is ready");
    let well = cluster.start("center", "well");
    wait_for_blocking!(
        is_whole(&front, &["well"], 1),
        "the other one has all shards"
    );
    let lacks = crashed.get("/readyz");
    assert_eq!(lacks.status, 503);
    assert!(lacks.body.contains("has given up"), "{lacks:?}");
    assert_eq!(deliver(&front, &receiver, ("t", 20), &[&front]), [20]);
    drop(well);
}
