//! A cluster of real processes, and what its clients see.

#![allow(dead_code, reason = "each program uses some of it")]

#[path = "../binary/harness.rs"]
pub(crate) mod harness;
pub(crate) mod nginx;
#[path = "../binary/receiver.rs"]
pub(crate) mod receiver;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use tempfile::TempDir;

use harness::{Answer, Server};
use receiver::Callback;

/// A takeover takes seconds, and there may be two.
pub(crate) const ALL_WITHIN: Duration = Duration::from_mins(1);

/// So many are the clusters of these tests divided into.
pub(crate) const SHARDS: usize = 4;

/// What the processes of a cluster share.
pub(crate) struct Cluster {
    /// Different in each test.
    name: String,
    log: String,
    registry: Option<String>,
}

impl Cluster {
    pub(crate) fn on_nats(address: &str) -> Self {
        let name = fresh();
        Self {
            log: format!("{address}?namespace={name}"),
            registry: None,
            name,
        }
    }

    pub(crate) fn on_kafka(servers: &str, zookeeper: &str) -> Self {
        let name = fresh();
        Self {
            log: format!("kafka://{servers}?namespace={name}"),
            registry: Some(format!("zookeeper://{zookeeper}")),
            name,
        }
    }

    /// Moves the messages of a directory into it.
    pub(crate) fn move_into(&self, directory: &TempDir, more: &[&str]) -> Command {
        let mut command = harness::laneway(directory);
        command.args(["move", "--from", "laneway-data", "--to", &self.log]);
        command.args(["--cluster", &self.name, "--shards", "4"]);
        command.args(more);
        command
    }

    /// Starts a process, on any free port.
    pub(crate) fn start(&self, roles: &str, name: &str) -> Server {
        Server::start(&self.arguments(roles, name))
    }

    /// Starts a center with a backup, in a directory that another one may have left things in.
    pub(crate) fn start_backed_up(
        &self,
        directory: Arc<TempDir>,
        name: &str,
        backup: &str,
    ) -> Server {
        let mut arguments = self.arguments("center", name);
        arguments.extend(["--backup", backup]);
        Server::start_in(directory, &arguments)
    }

    /// The name of the cluster.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The address of its log.
    pub(crate) fn log(&self) -> &str {
        &self.log
    }

    /// Starts a process in a directory with something in it.
    pub(crate) fn start_in(&self, directory: Arc<TempDir>, roles: &str, name: &str) -> Server {
        Server::start_in(directory, &self.arguments(roles, name))
    }

    /// Starts a process where another one was.
    pub(crate) fn start_at(&self, address: SocketAddr, roles: &str, name: &str) -> Server {
        let address = address.to_string();
        let mut arguments = self.arguments(roles, name);
        arguments.extend(["--listen", &address]);
        Server::start(&arguments)
    }

    fn arguments<'a>(&'a self, roles: &'a str, name: &'a str) -> Vec<&'a str> {
        let mut arguments = vec![
            "--cluster",
            &self.name,
            "--log",
            &self.log,
            "--roles",
            roles,
            "--name",
            name,
            "--shards",
            "4",
            "--max-delay",
            "30d",
            "--hosts",
            "delay.example.com",
        ];
        let registry = self.registry.iter();
        arguments.extend(registry.flat_map(|registry| ["--registry", registry.as_str()]));
        arguments
    }
}

fn fresh() -> String {
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970");
    format!("cluster{}", now.as_nanos())
}

/// The names of the owners of all shards that have one.
pub(crate) fn owners(admin: &Server) -> Vec<String> {
    let answer = admin.get("/v1/cluster");
    assert_eq!(answer.status, 200, "{answer:?}");
    let cluster = answer.json();
    let shards = cluster["shards"].as_array().expect("shards");
    let owners = shards.iter().filter_map(|shard| shard["owner"].as_str());
    owners.map(str::to_owned).collect()
}

/// Whether all shards have owners, which are these, and each of them has so many workers.
pub(crate) fn is_whole(admin: &Server, centers: &[&str], workers: usize) -> bool {
    let owners = owners(admin);
    let names: BTreeSet<&str> = owners.iter().map(String::as_str).collect();
    let cluster = admin.get("/v1/cluster").json();
    let clocks = cluster["clocks"].as_array().expect("clocks");
    let mut expected = centers.iter();
    let are_connected = expected.all(|center| {
        let connected = clocks
            .iter()
            .filter(|clock| clock["center"] == *center && clock["is_connected"] == true);
        connected.count() >= workers
    });
    owners.len() == SHARDS && names == centers.iter().copied().collect() && are_connected
}

pub(crate) fn millis(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    i64::try_from(since.expect("after 1970").as_millis()).expect("not yet")
}

pub(crate) fn date(text: &Value) -> i64 {
    let text = text.as_str().expect("a date");
    let moment: laneway::Timestamp = text.parse().expect("RFC 3339");
    moment.as_millisecond()
}

/// A message without an id, with something to know it by.
pub(crate) fn message(label: &str, delay_ms: u64, url: &str) -> Value {
    json!({
        "topic": "t", "delay": format!("{delay_ms}ms"), "payload": { "label": label },
        "target": { "callback": { "url": url } },
    })
}

/// Submits together; the ids, and when they are due.
pub(crate) fn submit(server: &Server, messages: &[Value]) -> Vec<(String, i64)> {
    let batch = json!({ "messages": messages });
    let answer = server.send("POST", "/v1/messages:batch", &batch);
    assert_eq!(answer.status, 202, "{answer:?}");
    let answer = answer.json();
    assert_eq!(answer["refused"], 0, "{answer}");
    let results = answer["results"].as_array().expect("results").iter();
    let accepted = results.map(|it| (it["id"].as_str().expect("an id"), date(&it["due"])));
    accepted.map(|(id, due)| (id.to_owned(), due)).collect()
}

/// Asks again as long as there is no owner to answer.
pub(crate) fn owned(ask: impl Fn() -> Answer) -> Answer {
    let began = Instant::now();
    loop {
        let answer = ask();
        if answer.status != 503 {
            return answer;
        }
        assert!(began.elapsed() < ALL_WITHIN, "{answer:?}");
    }
}

/// All ids in a state, page by page. Asks again as long as there is no owner to answer.
pub(crate) fn listed(server: &Server, state: &str) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    let mut after = String::new();
    let mut incomplete = 0;
    loop {
        let path = format!("/v1/messages?state={state}&limit=500{after}");
        let page = owned(|| server.get(&path));
        assert_eq!(page.status, 200, "{page:?}");
        let page = page.json();
        if page.get("incomplete").is_some() {
            incomplete += 1;
            // Each of them has waited for seconds.
            assert!(incomplete < 10, "{page}");
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

/// What came, by the labels of the messages.
#[derive(Debug, Default)]
pub(crate) struct Came(pub(crate) BTreeMap<String, Vec<i64>>);

impl Came {
    pub(crate) fn take(&mut self, callback: &Callback) {
        let body: Value = serde_json::from_str(&callback.body).expect("JSON");
        let label = body["label"].as_str().expect("a label").to_owned();
        self.0.entry(label).or_default().push(millis(callback.came));
    }

    pub(crate) fn twice(&self) -> Vec<&String> {
        let twice = self.0.iter().filter(|(_, times)| times.len() > 1);
        twice.map(|(label, _)| label).collect()
    }
}
