//! What operators are told: log lines and figures of attempts, and of a disk without room.

use std::fs;
use std::io::Write;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use waiting::wait_for_blocking;

use crate::harness::Server;
use crate::receiver::Receivers;

fn message(id: &str, url: &str, retry: &[&str]) -> Value {
    json!({
        "id": id, "topic": "reminders", "delay": 0, "retry": retry,
        "target": { "callback": { "url": url } },
    })
}

/// Waits for a log line that says this, and answers it.
fn logged(
    server: &Server,
    seen: &mut Vec<Value>,
    what: &str,
    about: impl Fn(&Value) -> bool,
) -> Value {
    let mut found: Option<Value>;
    wait_for_blocking!(
        {
            let lines = server.log_so_far();
            seen.extend(
                lines
                    .iter()
                    .filter_map(|line| serde_json::from_str(line).ok()),
            );
            let is_it = |line: &&Value| {
                let said = line["message"].as_str().unwrap_or_default();
                said.contains(what) && about(line)
            };
            found = seen.iter().find(is_it).cloned();
            found.is_some()
        },
        "`{what}` is logged"
    );
    found.expect("it was logged")
}

#[test]
fn failed_attempts_dead_letters_and_circuits_are_logged_with_what_they_are_about() {
    let server = Server::start(&["--log-format", "json"]);
    let receiver = Receivers::start("503 Down");
    let host = receiver.address.to_string();
    server.submit(&message("a", &receiver.url(), &["50ms"]));
    let mut seen = Vec::new();
    for what in ["an attempt failed", "a message failed for good"] {
        let line = logged(&server, &mut seen, what, |line| line["id"] == "a");
        assert_eq!(line["level"], "WARN", "{line}");
        assert_eq!(line["topic"], "reminders", "{line}");
        assert_eq!(line["destination"], host.as_str(), "{line}");
        assert_eq!(line["reason"], "the receiver answered 503", "{line}");
    }
    for number in 0..10 {
        server.submit(&message(&format!("b{number}"), &receiver.url(), &[]));
    }
    let line = logged(&server, &mut seen, "circuit opened", |_| true);
    assert_eq!(line["level"], "WARN", "{line}");
    assert_eq!(line["host"], host.as_str(), "{line}");
    assert_eq!(line["topic"], "reminders", "{line}");
}

#[test]
fn every_counter_is_there_before_its_first_event() {
    let server = Server::start(&[]);
    let page = server.get("/metrics").body;
    let is_zero = |name: &str| {
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        line.is_some_and(|value| value.trim() == "0")
    };
    let outcomes = |name: &str, outcomes: &[&str]| -> Vec<String> {
        let named = |outcome: &&str| format!("laneway_delay_{name}_total{{outcome=\"{outcome}\"}}");
        outcomes.iter().map(named).collect()
    };
    let mut names = vec![
        "laneway_delay_fired_total".to_owned(),
        "laneway_delay_deaths_total".to_owned(),
        "laneway_delay_lateness_seconds_count".to_owned(),
    ];
    names.extend(outcomes("submitted", &["accepted", "duplicate", "refused"]));
    names.extend(outcomes("published", &["delivered", "failed"]));
    names.extend(outcomes(
        "callbacks",
        &[
            "delivered",
            "failed",
            "gone",
            "throttled",
            "redirect",
            "client_error",
            "server_error",
            "timeout",
            "connect",
            "broken",
            "refused",
            "invalid",
            "circuit_open",
        ],
    ));
    for name in names {
        assert!(is_zero(&name), "{name} in\n{page}");
    }
}

#[test]
fn what_is_put_off_is_neither_an_attempt_nor_a_sample() {
    let server = Server::start(&[]);
    let receiver = Receivers::start("503 Down");
    for number in 0..10 {
        let id = format!("scout-{number}");
        server.submit(&message(&id, &receiver.url(), &[]));
        server.wait_for_state(&id, "dead");
    }
    assert_eq!(server.figure("laneway_delay_open_circuits"), 1);
    // Together: the circuit is open for five seconds, and each of them costs a sync.
    let patient = (0..5).map(|number| {
        let id = format!("patient-{number}");
        message(&id, &receiver.url(), &["1h"])
    });
    let patient: Vec<Value> = patient.collect();
    server.send(
        "POST",
        "/v1/messages:batch",
        &json!({ "messages": patient }),
    );
    wait_for_blocking!(
        { server.figure("laneway_delay_callbacks_total{outcome=\"circuit_open\"}") >= 5 },
        "they were put off"
    );
    assert_eq!(server.figure("laneway_delay_fired_total"), 10);
    assert_eq!(server.figure("laneway_delay_lateness_seconds_count"), 10);
    assert_eq!(server.figure("laneway_delay_deaths_total"), 10);
    receiver.answer("200 OK");
    wait_for_blocking!(
        { server.figure("laneway_delay_messages{state=\"delivered\"}") == 5 },
        "all are delivered"
    );
    assert_eq!(server.figure("laneway_delay_fired_total"), 15);
    assert_eq!(server.figure("laneway_delay_lateness_seconds_count"), 15);
}

#[test]
fn a_due_time_in_the_past_is_no_lateness() {
    let server = Server::start(&[]);
    let receiver = Receivers::start("200 OK");
    let long_ago = SystemTime::now() - Duration::from_hours(24);
    let long_ago = long_ago
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970");
    server.submit(&json!({
        "id": "a", "topic": "t",
        "deliver_at": u64::try_from(long_ago.as_millis()).expect("a time"),
        "target": { "callback": { "url": receiver.url() } },
    }));
    server.wait_for_state("a", "delivered");
    let page = server.get("/metrics").body;
    let sum = page
        .lines()
        .find_map(|line| line.strip_prefix("laneway_delay_lateness_seconds_sum "))
        .and_then(|sum| sum.parse::<f64>().ok())
        .expect("a sum");
    // A day would be 86,400.
    assert!((0.0..3_600.0).contains(&sum), "{sum}");
    assert_eq!(server.figure("laneway_delay_lateness_seconds_count"), 1);
}

/// A disk of 256 MiB that is really full, and has room again.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_makes_the_server_not_ready_until_there_is_room() {
    let Some(server) = Server::start_on_small_disk("256m", &["--log-format", "json"]) else {
        // Only who may mount can see a disk that is really full.
        return;
    };
    let waits = json!({
        "id": "before", "topic": "t", "delay": "1h",
        "target": { "callback": { "url": "https://example.com/" } },
    });
    server.submit(&waits);
    let filler = server.as_it_sees("laneway-data/filler");
    let mut file = fs::File::create(&filler).expect("room for a file");
    let block = vec![7; 1 << 16];
    let full = loop {
        if let Err(error) = file.write_all(&block) {
            break error;
        }
    };
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let mut after = waits.clone();
    after["id"] = json!("after");
    wait_for_blocking!(
        { server.send("POST", "/v1/messages", &after).status == 507 },
        "it takes no more"
    );
    let refused = server.send("POST", "/v1/messages", &after);
    assert_eq!(refused.json()["code"], "disk_full");
    let ready = server.get("/readyz");
    assert_eq!(ready.status, 503, "{ready:?}");
    assert!(ready.body.contains("is full"), "{ready:?}");
    assert_eq!(server.figure("laneway_ready"), 0);
    // A new start would not help.
    assert_eq!(server.get("/healthz").status, 200);
    assert_eq!(server.figure("laneway_store_failed"), 0);
    let mut seen = Vec::new();
    logged(&server, &mut seen, "not ready", |_| true);

    drop(file);
    fs::remove_file(filler).expect("it is there");
    wait_for_blocking!(server.get("/readyz").status == 200, "it is ready again");
    assert_eq!(server.send("POST", "/v1/messages", &after).status, 202);
    assert_eq!(server.state("before"), "scheduled");
}
