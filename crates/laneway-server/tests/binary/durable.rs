//! What survives when the server is killed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::harness::{Server, empty_directory};
use crate::receiver::{Callback, Receivers};
use serde_json::{Value, json};
use waiting::wait_for_blocking;

fn message(receiver: &Receivers, id: &str, delay: &str) -> Value {
    json!({
        "id": id, "topic": "t", "delay": delay, "payload": id,
        "target": { "callback": { "url": receiver.url() } },
    })
}

fn batch(server: &Server, messages: &[Value]) {
    let answer = server.send(
        "POST",
        "/v1/messages:batch",
        &json!({ "messages": messages }),
    );
    assert_eq!(answer.status, 202, "{answer:?}");
    assert_eq!(answer.json()["accepted"], messages.len(), "{answer:?}");
}

/// Killed again and again while messages come in, wait and fire: all that were accepted arrive, and none
/// before its time.
#[test]
fn nothing_that_was_accepted_is_lost_and_nothing_is_early() {
    let receiver = Receivers::start("200 OK");
    let mut directory = Arc::new(empty_directory());
    let (mut expected, mut arrived) = (BTreeSet::new(), BTreeSet::new());
    for round in 0..5 {
        let server = Server::start_in(directory, &[]);
        let ids: Vec<String> = (0..200).map(|number| format!("{round}-{number}")).collect();
        let messages: Vec<Value> = ids
            .iter()
            .enumerate()
            .map(|(number, id)| message(&receiver, id, &format!("{}ms", 1 + number * 10)))
            .collect();
        batch(&server, &messages);
        expected.extend(ids);
        // Some have fired by then, some are being fired, most wait.
        arrived.insert(on_time(&receiver.next()));
        directory = server.kill();
    }
    let server = Server::start_in(directory, &[]);
    wait_for_blocking!(
        {
            ["scheduled", "firing"].iter().all(|state| {
                server.figure(&format!("laneway_delay_messages{{state=\"{state}\"}}")) == 0
            })
        },
        "nothing waits any more"
    );
    arrived.extend(receiver.pending().iter().map(on_time));
    let lost: Vec<&String> = expected.difference(&arrived).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
}

/// The id of a callback that was not early.
fn on_time(callback: &Callback) -> String {
    let due = callback
        .header("laneway-due")
        .and_then(|due| due.parse().ok());
    let due: u128 = due.expect("a time");
    let came = callback
        .came
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    assert!(came.as_millis() >= due, "early: {callback:?}");
    callback.header("webhook-id").expect("an id").to_owned()
}

#[test]
fn changes_survive_too() {
    let receiver = Receivers::start("200 OK");
    let server = Server::start(&[]);
    for id in ["withdrawn", "extended", "waiting"] {
        server.submit(&message(&receiver, id, "1h"));
    }
    assert_eq!(
        server.request("DELETE", "/v1/messages/withdrawn").status,
        200
    );
    let extended = server.send(
        "POST",
        "/v1/messages/extended/extend",
        &json!({ "by": "1h" }),
    );
    assert_eq!(extended.status, 200);
    let before = server.get("/v1/messages").json();

    let server = Server::start_in(server.kill(), &[]);
    assert_eq!(server.state("withdrawn"), "withdrawn");
    assert_eq!(server.get("/v1/messages").json(), before);
    assert_eq!(
        server.get("/v1/messages/extended").json()["due"],
        extended.json()["due"]
    );
    assert_eq!(
        server.figure("laneway_delay_messages{state=\"scheduled\"}"),
        2
    );
}

#[test]
fn a_key_makes_one_message_also_across_a_crash() {
    let receiver = Receivers::start("200 OK");
    let server = Server::start(&[]);
    let body = json!({
        "topic": "t", "delay": "1h", "target": { "callback": { "url": receiver.url() } },
    });
    let submit = |server: &Server| {
        let headers = "content-type: application/json\r\nidempotency-key: once\r\n";
        server
            .send_with("POST", "/v1/messages", headers, &body.to_string())
            .json()
    };
    let first = submit(&server);
    let server = Server::start_in(server.kill(), &[]);
    let second = submit(&server);
    assert_eq!(
        (&second["id"], &second["due"]),
        (&first["id"], &first["due"])
    );
    assert_eq!(
        (&first["duplicate"], &second["duplicate"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(
        server.figure("laneway_delay_messages{state=\"scheduled\"}"),
        1
    );
}

#[test]
fn what_was_due_while_nobody_was_there_fires_at_once() {
    let receiver = Receivers::start("200 OK");
    let server = Server::start(&[]);
    server.submit(&message(&receiver, "late", "50ms"));
    let due = SystemTime::now() + Duration::from_millis(50);
    let directory = server.kill();
    wait_for_blocking!(SystemTime::now() > due, "it is due");
    let _server = Server::start_in(directory, &[]);
    assert_eq!(receiver.next().header("webhook-id"), Some("late"));
}

#[test]
fn a_directory_has_one_server_at_a_time() {
    let server = Server::start(&[]);
    let data = server.directory().join("laneway-data");
    let output = crate::harness::laneway(&empty_directory())
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(&data)
        .output()
        .expect("the binary starts");
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("another process"), "{error}");
    assert!(output.stdout.is_empty(), "it does not claim to listen");
}
