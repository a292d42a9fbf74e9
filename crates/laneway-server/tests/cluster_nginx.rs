//! A cluster behind the real nginx, with `deploy/nginx.conf`: clients that never try again see no error when a receive is
//! killed, nor when everything is restarted, one process after the other.

mod cluster;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use waiting::wait_for_blocking;

use cluster::harness::{Answer, Server};
use cluster::nginx::Nginx;
use cluster::receiver::Receivers;
use cluster::{ALL_WITHIN, Came, Cluster, date, is_whole, listed, message};

const HOUR_MS: i64 = 3_600_000;

/// Of two servers that a submit was sent to, the first one decides when it is due, and the second one answers.
const TRIES_MS: i64 = 10_000;

/// The program, where tests may start one.
macro_rules! nginx {
    () => {{
        let _ = needs::service!("nginx");
        match std::env::var("LANEWAY_TEST_NGINX_BIN") {
            Ok(program) => program,
            Err(_) => {
                needs::skip!("needs nginx: a program to start, and there is only a server");
                return;
            }
        }
    }};
}

/// What one client was told.
#[derive(Debug, Default)]
struct Told {
    /// The ids that messages were given, and when they are due, by their labels.
    accepted: BTreeMap<String, (String, i64)>,
    withdrawn: BTreeSet<String>,
    failed: Vec<String>,
}

impl Told {
    fn merge(all: Vec<Self>) -> Self {
        let mut told = Self::default();
        for one in all {
            told.accepted.extend(one.accepted);
            told.withdrawn.extend(one.withdrawn);
            told.failed.extend(one.failed);
        }
        told
    }

    /// Sends once.
    fn send(
        &mut self,
        nginx: &Nginx,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Option<Answer> {
        let answer = nginx.send(method, path, body);
        if matches!(answer.status, 200 | 202) {
            return Some(answer);
        }
        self.failed.push(format!("{method} {path}: {answer:?}"));
        None
    }

    fn submit(&mut self, nginx: &Nginx, label: &str, delay_ms: u64, url: &str) {
        let body = message(label, delay_ms, url);
        let Some(answer) = self.send(nginx, "POST", "/v1/messages", Some(&body)) else {
            return;
        };
        let answer = answer.json();
        let id = answer["id"].as_str().expect("an id").to_owned();
        let accepted = (id, date(&answer["due"]));
        self.accepted.insert(label.to_owned(), accepted);
    }

    /// Extends it by an hour: exactly one.
    fn extend(&mut self, nginx: &Nginx, label: &str) {
        let Some((id, due)) = self.accepted.get(label).cloned() else {
            return;
        };
        let (path, body) = (format!("/v1/messages/{id}/extend"), json!({ "by": "1h" }));
        if let Some(answer) = self.send(nginx, "POST", &path, Some(&body)) {
            let now = date(&answer.json()["due"]);
            let extended = now - due;
            if !(HOUR_MS - TRIES_MS..=HOUR_MS).contains(&extended) {
                self.failed
                    .push(format!("{label} was due at {due}, now {now}"));
            }
            self.accepted.insert(label.to_owned(), (id, now));
        }
    }

    fn withdraw(&mut self, nginx: &Nginx, label: &str) {
        let Some((id, _)) = self.accepted.get(label).cloned() else {
            return;
        };
        let path = format!("/v1/messages/{id}");
        if self.send(nginx, "DELETE", &path, None).is_some() {
            self.withdrawn.insert(label.to_owned());
        }
    }

    fn ids(&self, is_withdrawn: bool) -> BTreeSet<String> {
        let accepted = self.accepted.iter();
        let asked = accepted.filter(|(label, _)| self.withdrawn.contains(*label) == is_withdrawn);
        asked.map(|(_, (id, _))| id.clone()).collect()
    }
}

/// Runs clients until `meanwhile` is over. `meanwhile` gets how many requests were answered so far.
fn under_load(
    clients: usize,
    client: impl Fn(&mut Told, &str, usize) + Sync,
    meanwhile: impl FnOnce(&AtomicUsize),
) -> Told {
    let (is_over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..clients)
            .map(|number| {
                let (client, is_over, answered) = (&client, &is_over, &answered);
                scope.spawn(move || {
                    let mut told = Told::default();
                    for turn in 0.. {
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                        client(&mut told, &format!("{number}-{turn}"), turn);
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    told
                })
            })
            .collect();
        // Ends the clients also if this panics.
        let ending = Ending(&is_over);
        meanwhile(&answered);
        drop(ending);
        let told = clients.into_iter().map(|it| it.join().expect("no panic"));
        Told::merge(told.collect())
    })
}

struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until so many more requests are answered.
fn wait_for_more(answered: &AtomicUsize, more: usize) {
    let until = answered.load(Ordering::Relaxed) + more;
    wait_for_blocking!(
        answered.load(Ordering::Relaxed) >= until,
        "{more} more requests are answered"
    );
}

#[test]
fn clients_that_never_try_again_see_no_error_when_a_receive_is_killed() {
    let nats = needs::service!("nats");
    let program = nginx!();
    let cluster = Cluster::on_nats(&nats);
    let receives = ["receive-1", "receive-2"].map(|name| cluster.start("receive,admin", name));
    let center = cluster.start("center", "center-1");
    wait_for_blocking!(
        is_whole(&receives[0], &["center-1"], 0),
        "all shards have owners"
    );
    let nginx = Nginx::start(&program, [receives[0].address, receives[1].address]);
    let foreign = Nginx::send_to(
        nginx.address,
        "elsewhere.example",
        "GET",
        "/v1/messages",
        None,
    );
    assert_eq!(foreign.status, 421, "{foreign:?}");

    let [killed, receive] = receives;
    let client = |told: &mut Told, label: &str, turn: usize| {
        told.submit(&nginx, label, 24 * 3_600_000, "http://127.0.0.1:30999/");
        match turn % 4 {
            1 => told.extend(&nginx, label),
            3 => told.withdraw(&nginx, label),
            _ => {}
        }
    };
    let told = under_load(6, client, |answered| {
        wait_for_more(answered, 100);
        killed.kill();
        wait_for_more(answered, 200);
    });
    assert!(told.failed.is_empty(), "{:#?}", told.failed);
    assert_eq!(nginx.get_from_admin("/v1/cluster").status, 200);

    // A submit that was sent to both is one message.
    let (kept, withdrawn) = (told.ids(false), told.ids(true));
    assert_eq!(kept.len() + withdrawn.len(), told.accepted.len());
    wait_for_blocking!(
        listed(&receive, "scheduled") == kept,
        "exactly what was accepted is there"
    );
    assert_eq!(listed(&receive, "withdrawn"), withdrawn);
    for (id, due) in told.accepted.values().take(100) {
        let found = receive.get(&format!("/v1/messages/{id}")).json();
        let earlier = *due - date(&found["due"]);
        assert!((0..=TRIES_MS).contains(&earlier), "{found}");
    }
    center.stop();
}

#[test]
fn everything_is_restarted_under_load_and_nothing_fails_or_comes_twice() {
    let nats = needs::service!("nats");
    let program = nginx!();
    let cluster = Cluster::on_nats(&nats);
    let receiver = Receivers::start("200 OK");
    let start = |roles: &str, name: &str| Some(cluster.start(roles, name));
    let mut fronts = ["receive-1", "receive-2"].map(|name| start("receive,admin", name));
    let mut centers = ["center-1", "center-2"].map(|name| start("center", name));
    let mut workers = ["worker-1", "worker-2"].map(|name| start("worker", name));
    let is_whole_at = |admin: &Option<Server>| {
        let admin = admin.as_ref().expect("it runs");
        is_whole(admin, &["center-1", "center-2"], 2)
    };
    wait_for_blocking!(is_whole_at(&fronts[0]), "the cluster is whole");
    let address = |server: &Option<Server>| server.as_ref().expect("it runs").address;
    let addresses = [address(&fronts[0]), address(&fronts[1])];
    let nginx = Nginx::start(&program, addresses);

    let url = receiver.url();
    let client = |told: &mut Told, label: &str, turn: usize| {
        let delay = 500 + (turn as u64 % 16) * 100;
        told.submit(&nginx, label, delay, &url);
        thread::sleep(Duration::from_millis(20));
    };
    let told = under_load(3, client, |answered| {
        wait_for_more(answered, 50);
        for (number, server) in (1..).zip(&mut fronts) {
            let server = Restarted::stop(server, answered);
            let name = format!("receive-{number}");
            let again = cluster.start_at(server.address, "receive,admin", &name);
            wait_for_blocking!(again.get("/readyz").status == 200, "{name} is ready");
            server.started(again, answered);
        }
        for (role, servers) in [("center", &mut centers), ("worker", &mut workers)] {
            for (number, server) in (1..).zip(servers) {
                let server = Restarted::stop(server, answered);
                let name = format!("{role}-{number}");
                server.started(cluster.start(role, &name), answered);
                wait_for_blocking!(is_whole_at(&fronts[0]), "{name} is back");
            }
        }
    });
    assert!(told.failed.is_empty(), "{:#?}", told.failed);

    let (began, mut came) = (Instant::now(), Came::default());
    while came.0.len() < told.accepted.len() {
        let missing = told.accepted.keys();
        let missing = missing.filter(|label| !came.0.contains_key(*label));
        assert!(
            began.elapsed() < ALL_WITHIN,
            "missing: {:?}",
            missing.collect::<Vec<_>>()
        );
        receiver.pending().iter().for_each(|one| came.take(one));
        thread::sleep(Duration::from_millis(20));
    }
    let front = fronts[0].as_ref().expect("it runs");
    wait_for_blocking!(
        listed(front, "delivered") == told.ids(false),
        "all are listed as delivered"
    );
    receiver.pending().iter().for_each(|one| came.take(one));
    assert!(came.twice().is_empty(), "{:?}", came.twice());
    for (label, times) in &came.0 {
        let early = told.accepted[label].1 - times[0];
        assert!(early <= 0, "{label} came {early} ms early");
    }
}

/// A process that is stopped, and comes back, while clients go on.
struct Restarted<'a> {
    server: &'a mut Option<Server>,
    address: SocketAddr,
}

impl<'a> Restarted<'a> {
    fn stop(server: &'a mut Option<Server>, answered: &AtomicUsize) -> Self {
        let stopped = server.take().expect("it runs");
        let address = stopped.address;
        stopped.stop();
        wait_for_more(answered, 20);
        Self { server, address }
    }

    fn started(self, again: Server, answered: &AtomicUsize) {
        *self.server = Some(again);
        wait_for_more(answered, 20);
    }
}
