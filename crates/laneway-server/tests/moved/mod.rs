//! What a move has to keep, on any broker.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use tempfile::TempDir;
use waiting::wait_for_blocking;

use crate::cluster::harness::{Server, laneway};
use crate::cluster::receiver::Receivers;
use crate::cluster::{ALL_WITHIN, Came, Cluster, listed, owned};

const ALL_ROLES: &str = "receive,center,worker,admin";

/// How many are due while they are moved.
const SOON: usize = 100;

/// How many messages wait: so many, or what `LANEWAY_TEST_MOVE` says, for a run by hand.
pub(crate) fn pending(usually: usize) -> usize {
    let asked = std::env::var("LANEWAY_TEST_MOVE").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(usually)
}

/// How a command ended.
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn run(mut command: Command) -> Ended {
    let output = command.output().expect("it runs");
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn json_of(ended: &Ended) -> Value {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).expect("JSON")
}

/// Kills the command when it has told so often how far it is with `what`; whether that was before its end.
fn run_and_kill(mut command: Command, what: &str, times: usize) -> bool {
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let told = lines
        .map_while(Result::ok)
        .filter(|line| line.starts_with(what));
    let was_running = told.take(times).count() == times;
    let _ = child.kill();
    let status = child.wait().expect("it ends");
    was_running && !status.success()
}

fn message(id: &str, delay: &str, url: &str) -> Value {
    json!({
        "id": id, "topic": "t", "delay": delay, "payload": { "label": id }, "retry": [],
        "target": { "callback": { "url": url } },
    })
}

fn submit(server: &Server, messages: &[Value]) {
    for some in messages.chunks(500) {
        let batch = json!({ "messages": some });
        let answer = server.send("POST", "/v1/messages:batch", &batch);
        assert_eq!(answer.status, 202, "{answer:?}");
        assert_eq!(answer.json()["refused"], 0, "{answer:?}");
    }
}

fn serve_is_refused(directory: &TempDir) -> String {
    let mut command = laneway(directory);
    command.args(["serve", "--listen", "127.0.0.1:0"]);
    let ended = run(command);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    ended.stderr
}

/// One machine with everything that can be in its directory, killed while an attempt runs.
struct Machine {
    directory: Arc<TempDir>,
    receiver: Receivers,
    scheduled: BTreeSet<String>,
    soon: BTreeSet<String>,
    dead: Value,
    keyed: Value,
    keyed_id: String,
    _silent: TcpListener,
}

fn machine(pending: usize) -> Machine {
    let receiver = Receivers::start("200 OK");
    let failing = Receivers::start("500 Internal Server Error");
    // Connections are made, and never answered.
    let silent = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let never = format!("http://{}/", silent.local_addr().expect("bound"));
    let server = Server::start(&[]);
    let url = receiver.url();

    let later: Vec<String> = (0..pending).map(|n| format!("later-{n}")).collect();
    let messages: Vec<Value> = later.iter().map(|id| message(id, "30h", &url)).collect();
    submit(&server, &messages);
    let extended = server.send(
        "POST",
        "/v1/messages/later-0/extend",
        &json!({ "by": "1h" }),
    );
    assert_eq!(extended.status, 200, "{extended:?}");
    submit(&server, &[message("gone", "1h", &url)]);
    assert_eq!(server.request("DELETE", "/v1/messages/gone").status, 200);
    let mut keyed = message("", "2h", &url);
    keyed.as_object_mut().expect("an object").remove("id");
    keyed["idempotency_key"] = json!("order 17");
    let keyed_id = server.submit(&keyed);
    submit(&server, &[message("done", "0s", &url)]);
    server.wait_for_state("done", "delivered");
    assert!(receiver.next().body.contains("done"));
    submit(&server, &[message("dead", "0s", &failing.url())]);
    server.wait_for_state("dead", "dead");
    let dead = server.get("/v1/messages/dead").json();
    let soon: Vec<String> = (0..SOON).map(|n| format!("soon-{n}")).collect();
    let messages: Vec<Value> = soon.iter().map(|id| message(id, "20s", &url)).collect();
    submit(&server, &messages);
    submit(&server, &[message("doubt", "0s", &never)]);
    server.wait_for_state("doubt", "firing");
    let directory = server.kill();
    assert!(receiver.pending().is_empty(), "too slow for this test");

    let mut scheduled: BTreeSet<String> = later.into_iter().collect();
    scheduled.insert(keyed_id.clone());
    Machine {
        directory,
        receiver,
        scheduled,
        soon: soon.into_iter().collect(),
        dead,
        keyed,
        keyed_id,
        _silent: silent,
    }
}

/// Moves so many messages, is killed after each of these numbers of pages, and loses and doubles nothing.
pub(crate) fn a_move_that_is_killed_again_and_again(
    cluster: &Cluster,
    pending: usize,
    kills: &[usize],
) {
    let machine = machine(pending);
    let directory = &*machine.directory;
    let page = (pending / 40).max(1).to_string();
    let all = machine.scheduled.len() + machine.soon.len() + 4;

    let counted = json_of(&run(cluster.move_into(directory, &["--dry-run", "--json"])));
    assert_eq!(counted["messages"], all, "{counted}");
    assert_eq!((&counted["dead"], &counted["keys"]), (&json!(1), &json!(1)));

    let mut running = None;
    for times in kills {
        let command = cluster.move_into(directory, &["--page", &page]);
        assert!(
            run_and_kill(command, "moving", *times),
            "killed after {times} pages"
        );
        if running.is_none() {
            let refused = serve_is_refused(directory);
            assert!(refused.contains("laneway move"), "{refused}");
            let abort = run(cluster.move_into(directory, &["--abort"]));
            assert_eq!(abort.code, Some(4), "{}", abort.stderr);
            // A cluster that runs meanwhile owns nothing.
            running = Some(cluster.start(ALL_ROLES, "one"));
        }
    }
    assert!(
        machine.receiver.pending().is_empty(),
        "something fired half-way"
    );
    let moved = json_of(&run(cluster.move_into(directory, &["--json"])));
    assert_eq!(
        (&moved["what"], &moved["messages"]),
        (&json!("moved"), &json!(all))
    );
    let written = moved["written"].as_u64().expect("a number");
    assert!(
        written < all as u64,
        "{written} of {all} were left to the last run"
    );
    let again = json_of(&run(cluster.move_into(directory, &["--json"])));
    assert_eq!(
        (&again["what"], &again["written"]),
        (&json!("moved"), &json!(0))
    );
    let refused = serve_is_refused(directory);
    assert!(refused.contains("were moved to"), "{refused}");

    let server = running.expect("a cluster");
    check_messages(&machine, &server);
    server.stop();
    assert!(
        machine.receiver.pending().is_empty(),
        "something came twice"
    );
}

fn check_messages(machine: &Machine, server: &Server) {
    // What was due meanwhile comes now, each once.
    let mut came = Came::default();
    let began = Instant::now();
    while came.0.len() < machine.soon.len() {
        assert!(began.elapsed() < ALL_WITHIN * 2, "{} came", came.0.len());
        for callback in machine.receiver.pending() {
            came.take(&callback);
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let names: BTreeSet<String> = came.0.keys().cloned().collect();
    assert_eq!(names, machine.soon);
    assert!(came.twice().is_empty(), "{:?}", came.twice());

    let mut delivered = machine.soon.clone();
    delivered.insert("done".to_owned());
    wait_for_blocking!(
        listed(server, "delivered") == delivered,
        "all are delivered"
    );
    assert_eq!(listed(server, "dead"), BTreeSet::from(["dead".to_owned()]));
    assert_eq!(
        listed(server, "withdrawn"),
        BTreeSet::from(["gone".to_owned()])
    );
    let mut scheduled = listed(server, "scheduled");
    scheduled.extend(listed(server, "firing"));
    let mut expected = machine.scheduled.clone();
    expected.insert("doubt".to_owned());
    assert_eq!(scheduled, expected);

    let dead = server.get("/v1/messages/dead").json();
    for field in [
        "due", "accepted", "attempts", "history", "payload", "target",
    ] {
        assert_eq!(dead[field], machine.dead[field], "{field} of {dead}");
    }
    let extended = server.get("/v1/messages/later-0").json();
    assert_eq!(
        extended["history"].as_array().map(Vec::len),
        Some(1),
        "{extended}"
    );

    // Nothing can be promised of what may have been delivered.
    let refused = owned(|| server.request("DELETE", "/v1/messages/doubt"));
    assert_eq!(refused.status, 409, "{refused:?}");

    // The same request as before is the same message; another one is not.
    let send = |body: &Value| owned(|| server.send("POST", "/v1/messages", body));
    let known = send(&machine.keyed);
    assert_eq!(known.status, 202, "{known:?}");
    let known = known.json();
    assert_eq!(
        (&known["id"], &known["duplicate"]),
        (&json!(machine.keyed_id), &json!(true))
    );
    let mut other = machine.keyed.clone();
    other["payload"] = json!("other");
    assert_eq!(send(&other).status, 409);
    let url = machine.receiver.url();
    let known = send(&message("gone", "1h", &url)).json();
    assert_eq!(
        (&known["duplicate"], &known["state"]),
        (&json!(true), &json!("withdrawn"))
    );
    assert_eq!(send(&message("gone", "2h", &url)).status, 409);
    let extend = server.send(
        "POST",
        "/v1/messages/later-1/extend",
        &json!({ "by": "1h" }),
    );
    assert_eq!(extend.status, 200, "{extend:?}");
}

/// The id of another message is refused, and the directory is as it was.
pub(crate) fn an_id_that_is_taken(cluster: &Cluster) {
    let server = cluster.start(ALL_ROLES, "one");
    let taken = message("same", "1h", "http://127.0.0.1:8000/there");
    let answer = owned(|| server.send("POST", "/v1/messages", &taken));
    assert_eq!(answer.status, 202, "{answer:?}");
    wait_for_blocking!(server.state("same") == "scheduled", "it is there");

    let alone = Server::start(&[]);
    submit(
        &alone,
        &[message("same", "1h", "http://127.0.0.1:8000/here")],
    );
    let directory = alone.stop();
    let none = run(cluster.move_into(&directory, &["--abort", "--json"]));
    assert_eq!(none.code, Some(4), "{}", none.stderr);
    let refused = run(cluster.move_into(&directory, &["--json"]));
    assert_eq!(refused.code, Some(4), "{}", refused.stderr);
    let problem: Value = serde_json::from_str(&refused.stderr).expect("JSON");
    assert_eq!(problem["code"], "id_taken", "{problem}");

    let alone = Server::start_in(directory, &[]);
    assert_eq!(alone.state("same"), "scheduled");
    // The cluster goes on, too.
    let withdrawn = owned(|| server.request("DELETE", "/v1/messages/same"));
    assert_eq!(withdrawn.status, 200, "{withdrawn:?}");
}
