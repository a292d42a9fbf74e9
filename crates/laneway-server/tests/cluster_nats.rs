//! `laneway serve --log nats://…`: a cluster of real processes.

#![allow(dead_code, reason = "the harness has more than this program uses")]

#[path = "binary/harness.rs"]
mod harness;
#[path = "binary/receiver.rs"]
mod receiver;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use waiting::wait_for_blocking;

use harness::{Server, empty_directory, laneway};
use receiver::{Callback, Receivers};

/// A takeover takes seconds, and there may be two.
const ALL_WITHIN: Duration = Duration::from_mins(1);

/// An address that no other test uses.
fn fresh(address: &str) -> String {
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970");
    format!("{address}?namespace=cluster{}", now.as_nanos())
}

/// A process of the cluster.
fn start(log: &str, roles: &str, name: &str) -> Server {
    Server::start(&[
        "--log",
        log,
        "--roles",
        roles,
        "--name",
        name,
        "--shards",
        "4",
        "--max-delay",
        "30d",
    ])
}

fn cluster(admin: &Server) -> Value {
    let answer = admin.get("/v1/cluster");
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// Whether every shard has an owner, and every owner so many workers.
fn is_whole(admin: &Server, workers: usize) -> bool {
    let cluster = cluster(admin);
    let shards = cluster["shards"].as_array().expect("shards");
    let owners: BTreeSet<&str> = shards
        .iter()
        .filter_map(|it| it["owner"].as_str())
        .collect();
    let clocks = cluster["clocks"].as_array().expect("clocks");
    let are_connected = owners.iter().all(|owner| {
        let connected = clocks
            .iter()
            .filter(|clock| clock["center"] == *owner && clock["is_connected"] == true);
        connected.count() >= workers
    });
    shards.len() == 4 && shards.iter().all(|it| it["owner"].is_string()) && are_connected
}

fn millis(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    i64::try_from(since.expect("after 1970").as_millis()).expect("not yet")
}

fn date(text: &Value) -> i64 {
    let text = text.as_str().expect("a date");
    let moment: laneway::Timestamp = text.parse().expect("RFC 3339");
    moment.as_millisecond()
}

fn message(id: &str, delay_ms: u64, url: &str) -> Value {
    let delay = format!("{delay_ms}ms");
    json!({
        "id": id, "topic": "t", "delay": delay, "payload": { "id": id },
        "target": { "callback": { "url": url } },
    })
}

/// Submits together; the ids and when they are due.
fn submit(server: &Server, messages: &[Value]) -> BTreeMap<String, i64> {
    let answer = server.send(
        "POST",
        "/v1/messages:batch",
        &json!({ "messages": messages }),
    );
    assert_eq!(answer.status, 202, "{answer:?}");
    let answer = answer.json();
    assert_eq!(answer["refused"], 0, "{answer}");
    let results = answer["results"].as_array().expect("results").iter();
    results
        .map(|it| {
            (
                it["id"].as_str().expect("an id").to_owned(),
                date(&it["due"]),
            )
        })
        .collect()
}

/// Which message a callback delivers.
fn id_of(callback: &Callback) -> String {
    let body: Value = serde_json::from_str(&callback.body).expect("JSON");
    body["id"].as_str().expect("an id").to_owned()
}

/// How often each message came.
#[derive(Default)]
struct Arrivals(BTreeMap<String, usize>);

impl Arrivals {
    fn take(&mut self, callback: &Callback, due: &BTreeMap<String, i64>) {
        let id = id_of(callback);
        let early = due[&id] - millis(callback.came);
        assert!(early <= 0, "{id} came {early} ms early");
        *self.0.entry(id).or_default() += 1;
    }
}

/// Takes a message back: whether the answer was a yes. Without an owner it is asked again.
fn withdraw(server: &Server, id: &str) -> bool {
    let began = Instant::now();
    loop {
        let answer = server.request("DELETE", &format!("/v1/messages/{id}"));
        match answer.status {
            200 => return true,
            409 => return false,
            503 if began.elapsed() < ALL_WITHIN => {}
            _ => panic!("{id}: {answer:?}"),
        }
    }
}

/// All ids in a state, page by page. Asks again as long as there is no owner to answer.
fn listed(server: &Server, state: &str) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    let mut after = String::new();
    let began = Instant::now();
    loop {
        let page = server.get(&format!("/v1/messages?state={state}&limit=50{after}"));
        if page.status == 503 && began.elapsed() < ALL_WITHIN {
            continue;
        }
        assert_eq!(page.status, 200, "{page:?}");
        let page = page.json();
        if page.get("incomplete").is_some() {
            assert!(began.elapsed() < ALL_WITHIN, "{page}");
            continue;
        }
        for message in page["messages"].as_array().expect("messages") {
            let id = message["id"].as_str().expect("an id").to_owned();
            assert!(ids.insert(id), "listed twice: {message}");
        }
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return ids,
        }
    }
}

#[test]
fn a_center_and_a_worker_are_killed_and_everything_is_delivered_and_nothing_early() {
    let log = fresh(&needs::service!("nats"));
    let receiver = Receivers::start("200 OK");
    let front = start(&log, "receive,admin", "front");
    let centers = [
        start(&log, "center", "center-1"),
        start(&log, "center", "center-2"),
    ];
    let workers = [
        start(&log, "worker", "worker-1"),
        start(&log, "worker", "worker-2"),
    ];
    wait_for_blocking!(is_whole(&front, 2), "all shards have owners and workers");
    for server in [&front].into_iter().chain(&centers).chain(&workers) {
        wait_for_blocking!(server.get("/readyz").status == 200, "it is ready");
    }
    assert_eq!(
        workers[0].get("/v1/messages").status,
        404,
        "a worker takes no messages"
    );

    let soon: Vec<Value> = (0..200_u64)
        .map(|n| message(&format!("m-{n}"), 2_000 + n * 20, &receiver.url()))
        .collect();
    let due = submit(&front, &soon);
    assert_eq!(due.len(), 200);
    // Some are taken back while all is well, some in the middle of it.
    let take_back = |ids: std::ops::Range<u64>| {
        let ids = ids.map(|n| format!("m-{n}"));
        ids.filter(|id| withdraw(&front, id)).collect::<Vec<_>>()
    };
    let mut withdrawn: BTreeSet<String> = take_back(190..195).into_iter().collect();
    let mut came = Arrivals::default();
    came.take(&receiver.next(), &due);
    let [killed_center, center] = centers;
    let [killed_worker, worker] = workers;
    killed_center.kill();
    killed_worker.kill();
    withdrawn.extend(take_back(195..200));

    let began = Instant::now();
    let expected = 200 - withdrawn.len();
    while came.0.len() < expected {
        let count = came.0.len();
        assert!(began.elapsed() < ALL_WITHIN, "{count} of {expected} came");
        let pending = receiver.pending();
        if pending.is_empty() {
            std::thread::sleep(Duration::from_millis(20));
        }
        for callback in pending {
            came.take(&callback, &due);
        }
    }
    let came = came.0;
    for id in &withdrawn {
        assert!(!came.contains_key(id), "{id} was taken back, and came");
    }
    let twice = came.values().filter(|times| **times > 1).count();
    assert!(twice <= 100, "{twice} came more than once");

    // Another receive knows the same.
    let other = start(&log, "receive", "other");
    let expected: BTreeSet<String> = came.keys().cloned().collect();
    wait_for_blocking!(
        listed(&other, "delivered") == expected,
        "all are listed as delivered"
    );
    assert_eq!(listed(&front, "withdrawn"), withdrawn);
    other.wait_for_state("m-0", "delivered");
    assert_eq!(other.get("/v1/messages/unknown").status, 404);
    let directory = empty_directory();
    let mut status = laneway(&directory);
    status.args(["cluster", "shards", "--server", &front.url()]);
    let shown = status.output().expect("it runs");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert_eq!(shown.matches("center-2").count(), 4, "{shown}");
    center.stop();
    worker.stop();
}

#[test]
fn one_process_with_all_roles_is_stopped_and_loses_nothing_with_its_directory() {
    let log = fresh(&needs::service!("nats"));
    let receiver = Receivers::start("200 OK");
    let all = "receive,center,worker,admin";
    let server = start(&log, all, "one");
    wait_for_blocking!(is_whole(&server, 1), "all shards have owners and workers");
    let due = submit(&server, &[message("first", 500, &receiver.url())]);
    let callback = receiver.next();
    assert_eq!(id_of(&callback), "first");
    assert!(millis(callback.came) >= due["first"]);
    wait_for_blocking!(server.state("first") == "delivered", "it is delivered");

    let again = server.send(
        "POST",
        "/v1/messages",
        &message("first", 500, &receiver.url()),
    );
    assert_eq!(again.status, 202, "{again:?}");
    assert_eq!(again.json()["duplicate"], true);
    let other = server.send(
        "POST",
        "/v1/messages",
        &message("first", 501, &receiver.url()),
    );
    assert_eq!(other.status, 409, "{other:?}");
    let mut both = message("x", 1, &receiver.url());
    both["idempotency_key"] = json!("k");
    assert_eq!(server.send("POST", "/v1/messages", &both).status, 400);

    let later = submit(
        &server,
        &[
            message("later", 6_000, &receiver.url()),
            message("gone", 3_600_000, &receiver.url()),
        ],
    );
    let extended = server.send("POST", "/v1/messages/gone/extend", &json!({ "by": "1h" }));
    assert_eq!(date(&extended.json()["due"]), later["gone"] + 3_600_000);
    assert!(withdraw(&server, "gone"));
    assert!(!withdraw(&server, "gone"));
    drop(server.stop());

    // Another directory: all of it is in the log.
    let server = start(&log, all, "two");
    let callback = receiver.next();
    assert_eq!(id_of(&callback), "later");
    assert!(millis(callback.came) >= later["later"]);
    server.wait_for_state("gone", "withdrawn");
    server.wait_for_state("first", "delivered");
    server.stop();
    assert!(receiver.pending().is_empty(), "nothing came twice");
}
