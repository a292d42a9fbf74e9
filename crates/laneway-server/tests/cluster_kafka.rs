//! `laneway serve --log kafka://… --registry zookeeper://…`: a cluster of real processes.

mod cluster;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use waiting::wait_for_blocking;

use cluster::harness::Server;
use cluster::receiver::Receivers;
use cluster::{ALL_WITHIN, Came, Cluster, date, is_whole, listed, message, owned, owners, submit};

/// What a cluster sets, so long as its address says nothing else.
const SESSION: Duration = Duration::from_secs(6);

/// What a takeover may take beyond the session, on a machine that is busy with other tests.
const BEYOND: Duration = Duration::from_secs(40);

/// What clients know of their messages.
#[derive(Default)]
struct Known {
    /// When messages are due, by their labels.
    due: BTreeMap<String, i64>,
    ids: BTreeMap<String, String>,
    withdrawn: BTreeSet<String>,
}

impl Known {
    fn submit(&mut self, server: &Server, labels: &[(String, u64)], url: &str) {
        let messages: Vec<Value> = labels
            .iter()
            .map(|(label, delay)| message(label, *delay, url))
            .collect();
        for ((label, _), (id, due)) in labels.iter().zip(submit(server, &messages)) {
            self.due.insert(label.clone(), due);
            self.ids.insert(label.clone(), id);
        }
    }

    fn withdraw(&mut self, server: &Server, label: &str) {
        let path = format!("/v1/messages/{}", self.ids[label]);
        let answer = owned(|| server.request("DELETE", &path));
        match answer.status {
            200 => drop(self.withdrawn.insert(label.to_owned())),
            409 => {}
            _ => panic!("{label}: {answer:?}"),
        }
    }

    fn extend(&mut self, server: &Server, label: &str) {
        let path = format!("/v1/messages/{}/extend", self.ids[label]);
        let answer = owned(|| server.send("POST", &path, &json!({ "by": "3s" })));
        match answer.status {
            200 => {
                let due = date(&answer.json()["due"]);
                assert_eq!(due, self.due[label] + 3_000, "{label}");
                self.due.insert(label.to_owned(), due);
            }
            409 => {}
            _ => panic!("{label}: {answer:?}"),
        }
    }

    fn ids<'a>(&self, labels: impl Iterator<Item = &'a String>) -> BTreeSet<String> {
        labels.map(|label| self.ids[label].clone()).collect()
    }
}

fn labels(numbers: std::ops::Range<u64>, first_ms: u64) -> Vec<(String, u64)> {
    let start = numbers.start;
    numbers
        .map(|number| (format!("m-{number}"), first_ms + (number - start) * 40))
        .collect()
}

#[test]
fn a_center_and_a_worker_are_killed_and_everything_is_delivered_and_nothing_early() {
    let cluster = Cluster::on_kafka(&needs::service!("kafka"), &needs::service!("zookeeper"));
    let receiver = Receivers::start("200 OK");
    let front = cluster.start("receive,admin", "front");
    let centers = ["center-1", "center-2"].map(|name| cluster.start("center", name));
    let workers = ["worker-1", "worker-2"].map(|name| cluster.start("worker", name));
    let whole = || is_whole(&front, &["center-1", "center-2"], 2);
    wait_for_blocking!(whole(), "all shards have owners and workers");
    for server in [&front].into_iter().chain(&centers).chain(&workers) {
        wait_for_blocking!(server.get("/readyz").status == 200, "it is ready");
    }

    let mut known = Known::default();
    known.submit(&front, &labels(0..200, 8_000), &receiver.url());
    let id = known.ids["m-199"].clone();
    wait_for_blocking!(front.state(&id) == "scheduled", "it was taken in");
    // The first ones may be due by now.
    wait_for_blocking!(
        {
            let mut all = listed(&front, "scheduled");
            all.extend(listed(&front, "delivered"));
            all == known.ids(known.ids.keys())
        },
        "all are listed"
    );
    for number in 180..185 {
        known.withdraw(&front, &format!("m-{number}"));
        known.extend(&front, &format!("m-{}", number + 5));
    }
    assert_eq!(known.withdrawn.len(), 5);

    let mut came = Came::default();
    came.take(&receiver.next());
    let [killed_center, center] = centers;
    let [killed_worker, worker] = workers;
    killed_center.kill();
    killed_worker.kill();
    let killed = Instant::now();
    // What is accepted needs no owner.
    known.submit(&front, &labels(200..240, 1_000), &receiver.url());
    let took = killed.elapsed();
    assert!(
        took < SESSION / 2 || owners(&front) != ["center-2"; 4],
        "{took:?}"
    );
    wait_for_blocking!(
        owners(&front) == ["center-2"; 4],
        "the other center owns all shards"
    );
    let takeover = killed.elapsed();
    println!("takeover of a center on Kafka: {takeover:?}");
    assert!(takeover < SESSION + BEYOND, "{takeover:?}");
    for number in 190..195 {
        known.withdraw(&front, &format!("m-{number}"));
        known.extend(&front, &format!("m-{}", number + 5));
    }

    let expected: BTreeSet<String> = known
        .due
        .keys()
        .filter(|label| !known.withdrawn.contains(*label))
        .cloned()
        .collect();
    while came.0.len() < expected.len() {
        let missing = expected.iter().filter(|label| !came.0.contains_key(*label));
        assert!(
            killed.elapsed() < ALL_WITHIN,
            "missing: {:?}",
            missing.collect::<Vec<_>>()
        );
        receiver.pending().iter().for_each(|one| came.take(one));
        std::thread::sleep(Duration::from_millis(20));
    }
    wait_for_blocking!(
        listed(&front, "delivered") == known.ids(expected.iter()),
        "all are listed as delivered"
    );
    receiver.pending().iter().for_each(|one| came.take(one));
    for (label, times) in &came.0 {
        assert!(expected.contains(label), "{label} was taken back, and came");
        let early = known.due[label] - times[0];
        assert!(early <= 0, "{label} came {early} ms early");
    }
    assert_eq!(
        listed(&front, "withdrawn"),
        known.ids(known.withdrawn.iter())
    );
    println!("came twice: {:?}", came.twice());
    assert!(came.twice().len() <= 60, "{:?}", came.twice());
    center.stop();
    worker.stop();
}
