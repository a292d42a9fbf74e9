//! Delayed messages, from the request to the callback.

use std::time::{Duration, SystemTime};

use crate::harness::Server;
use crate::receiver::Receivers;
use serde_json::{Value, json};
use waiting::wait_for_blocking;

fn to(receiver: &Receivers, delay: &str) -> Value {
    json!({
        "topic": "reminders",
        "payload": { "cart": 17 },
        "delay": delay,
        "target": { "callback": { "url": receiver.url() } },
    })
}

fn millis(time: SystemTime) -> u128 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970")
        .as_millis()
}

#[test]
fn a_message_is_delivered_when_it_is_due_and_not_before() {
    let server = Server::start(&[]);
    let receiver = Receivers::start("200 OK");
    let before = SystemTime::now();
    let answer = server.send("POST", "/v1/messages", &to(&receiver, "300ms"));
    assert_eq!(answer.status, 202, "{answer:?}");
    let accepted = answer.json();
    let id = accepted["id"].as_str().expect("an id");
    assert_eq!(accepted["duplicate"], false);
    assert_eq!(
        answer.header("location"),
        Some(format!("/v1/messages/{id}").as_str())
    );

    let callback = receiver.next();
    assert_eq!(callback.line, "POST /hook HTTP/1.1");
    assert_eq!(callback.body, r#"{"cart":17}"#);
    for (name, value) in [
        ("content-type", "application/json"),
        ("laneway-topic", "reminders"),
        ("laneway-attempt", "1"),
        ("webhook-id", id),
    ] {
        assert_eq!(callback.header(name), Some(value), "{name}");
    }
    let due: u128 = callback
        .header("laneway-due")
        .and_then(|due| due.parse().ok())
        .expect("a time");
    assert!(due >= millis(before) + 300, "{due}");
    assert!(millis(callback.came) >= due, "early: {due} {callback:?}");

    server.wait_for_state(id, "delivered");
    let message = server.get(&format!("/v1/messages/{id}")).json();
    assert_eq!(message["attempts"], 1);
    assert_eq!(message["due"], accepted["due"]);
    assert!(message["ended"].is_string(), "{message}");
    assert_eq!(message["history"][0]["what"], "delivered");
}

#[test]
fn everything_that_can_be_said_about_a_callback_is_done() {
    let server = Server::start(&[]);
    let receiver = Receivers::start("200 OK");
    let deliver_at = u64::try_from(millis(SystemTime::now())).expect("a time") + 50;
    let id = server.submit(&json!({
        "id": "order-4711",
        "topic": "orders",
        "payload_base64": "aGVsbG8=",
        "content_type": "text/plain",
        "deliver_at": deliver_at,
        "target": { "callback": {
            "url": format!("{}?a=b", receiver.url()),
            "method": "put",
            "headers": { "Authorization": "Bearer secret" },
            "timeout": "3s",
        }},
        "retry": ["1s", "2s"],
        "metadata": { "customer": "7" },
    }));
    assert_eq!(id, "order-4711");
    let callback = receiver.next();
    assert_eq!(callback.line, "PUT /hook?a=b HTTP/1.1");
    assert_eq!(callback.body, "hello");
    assert_eq!(callback.header("content-type"), Some("text/plain"));
    assert_eq!(callback.header("authorization"), Some("Bearer secret"));
    assert_eq!(
        callback.header("laneway-due"),
        Some(deliver_at.to_string().as_str())
    );

    let text = server.get("/v1/messages/order-4711").body;
    assert!(
        !text.contains("secret"),
        "header values are not shown: {text}"
    );
    let message: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        message["target"]["callback"]["header_names"],
        json!(["Authorization"])
    );
    assert_eq!(message["metadata"], json!({ "customer": "7" }));
    assert_eq!(message["retry"], json!(["1s", "2s"]));
}

#[test]
fn callbacks_are_signed_and_can_carry_everything_in_the_signed_body() {
    let directory = std::sync::Arc::new(crate::harness::empty_directory());
    let secret = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    std::fs::write(
        directory.path().join("secrets"),
        format!("# now\n{secret}\n"),
    )
    .expect("written");
    let arguments = [
        "--callback-secrets-file",
        "secrets",
        "--callback-body",
        "envelope",
    ];
    let server = Server::start_in(directory, &arguments);
    let said = server.announcement.join("\n");
    assert!(said.contains("callbacks are signed"), "{said}");
    assert!(!said.contains("whsec_"), "{said}");

    let receiver = Receivers::start("200 OK");
    let mut message = to(&receiver, "1ms");
    message["metadata"] = json!({ "customer": "7" });
    let id = server.submit(&message);
    let callback = receiver.next();
    let body: Value = serde_json::from_str(&callback.body).expect("JSON");
    assert_eq!(body["id"], id.as_str());
    assert_eq!(body["attempt"], 1);
    assert_eq!(body["topic"], "reminders");
    assert_eq!(body["payload"], json!({ "cart": 17 }));
    assert_eq!(body["metadata"], json!({ "customer": "7" }));
    assert!(body["due"].is_string());

    let time = callback
        .header("webhook-timestamp")
        .and_then(|time| time.parse().ok());
    let secret = secret.parse().expect("a secret");
    let expected = laneway_delay::callback::signature::sign(
        &[secret],
        &id,
        time.expect("a time"),
        callback.body.as_bytes(),
    );
    assert_eq!(
        callback.header("webhook-signature"),
        Some(expected.as_str())
    );
}

#[test]
fn a_message_can_go_to_the_bus() {
    let server = Server::start(&["--bus", "file:bus"]);
    let id = server.submit(&json!({
        "topic": "orders",
        "payload": { "total": 42 },
        "delay": 1,
        "target": { "bus": {
            "topic": "orders", "aggregate_id": "order-1", "event_type": "OrderExpired",
        }},
    }));
    server.wait_for_state(&id, "delivered");
    assert_eq!(
        server.figure("laneway_delay_published_total{outcome=\"delivered\"}"),
        1
    );

    // It is on the bus, as any other event would be.
    let directory = server.stop();
    let address = format!("file:{}", directory.path().join("bus").display());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let bus = laneway::Bus::open(&address)
            .await
            .expect("the server let it go");
        let (sender, mut events) = tokio::sync::mpsc::unbounded_channel();
        bus.subscribe_envelope("orders", move |event| {
            let sender = sender.clone();
            async move {
                let _ = sender.send(event.envelope().clone());
                Ok(())
            }
        })
        .await
        .expect("subscribed");
        let event = tokio::time::timeout(crate::harness::PATIENCE, events.recv()).await;
        let event = event.expect("in time").expect("an event");
        assert_eq!(event.event_id(), id);
        assert_eq!(event.aggregate_id().as_str(), "order-1");
        assert_eq!(event.event_type(), "OrderExpired");
        assert_eq!(event.payload().data().as_ref(), br#"{"total":42}"#);
        bus.close(Duration::from_secs(5)).await.expect("closed");
    });
}

#[test]
fn a_message_can_be_moved_and_taken_back_and_the_answers_are_final() {
    let server = Server::start(&[]);
    let receiver = Receivers::start("200 OK");
    let id = server.submit(&to(&receiver, "1h"));
    let path = format!("/v1/messages/{id}");
    let due = |answer: &Value| answer["due"].as_str().expect("a date").to_owned();
    let before = due(&server.get(&path).json());

    let extended = server.send("POST", &format!("{path}/extend"), &json!({ "by": "10m" }));
    assert_eq!(extended.status, 200, "{extended:?}");
    assert!(due(&extended.json()) > before);

    let extended = server.send(
        "POST",
        &format!("{path}/extend"),
        &json!({ "to": "2999-01-01T00:00:00Z" }),
    );
    assert_eq!(due(&extended.json()), "2999-01-01T00:00:00.000Z");

    let earlier = server.send(
        "POST",
        &format!("{path}/extend"),
        &json!({ "to": "2030-01-01T00:00:00Z" }),
    );
    assert_eq!(
        (earlier.status, &earlier.json()["field"]),
        (422, &json!("to"))
    );

    let withdrawn = server.request("DELETE", &path);
    assert_eq!(
        (withdrawn.status, &withdrawn.json()["state"]),
        (200, &json!("withdrawn"))
    );

    for refused in [
        server.request("DELETE", &path),
        server.send("POST", &format!("{path}/extend"), &json!({ "by": "1s" })),
    ] {
        assert_eq!(refused.status, 409, "{refused:?}");
        let problem = refused.json();
        assert_eq!(problem["state"], "withdrawn");
        assert_eq!(problem["code"], "state");
    }
    assert!(receiver.pending().is_empty());
    let message = server.get(&path).json();
    let happened: Vec<&str> = message["history"]
        .as_array()
        .expect("a history")
        .iter()
        .map(|event| event["what"].as_str().expect("a word"))
        .collect();
    assert_eq!(happened, ["extended", "extended", "withdrawn"]);
}

#[test]
fn what_was_delivered_cannot_be_taken_back() {
    let server = Server::start(&[]);
    let receiver = Receivers::start("200 OK");
    let id = server.submit(&to(&receiver, "0s"));
    server.wait_for_state(&id, "delivered");
    let refused = server.request("DELETE", &format!("/v1/messages/{id}"));
    assert_eq!(
        (refused.status, &refused.json()["state"]),
        (409, &json!("delivered"))
    );
}

#[test]
fn the_same_key_makes_one_message() {
    let server = Server::start(&[]);
    let receiver = Receivers::start("200 OK");
    let headers = "content-type: application/json\r\nidempotency-key: \"abc\"\r\n";
    let body = to(&receiver, "1h").to_string();
    let submit = |body: &str| server.send_with("POST", "/v1/messages", headers, body);
    let (first, second) = (submit(&body).json(), submit(&body).json());
    assert_eq!(first["id"], second["id"]);
    assert_eq!(
        (&first["duplicate"], &second["duplicate"]),
        (&json!(false), &json!(true))
    );

    let other = to(&receiver, "2h").to_string();
    let refused = submit(&other);
    assert_eq!(
        (refused.status, &refused.json()["code"]),
        (409, &json!("key_reused"))
    );
    let list = server.get("/v1/messages?topic=reminders").json();
    assert_eq!(list["messages"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_batch_answers_for_each_message() {
    let server = Server::start(&[]);
    let receiver = Receivers::start("200 OK");
    let mut good = to(&receiver, "10ms");
    good["id"] = json!("good");
    let mut forbidden = to(&receiver, "1s");
    forbidden["target"]["callback"]["url"] = json!("http://10.0.0.1/");
    let batch = json!({ "messages": [good, { "topic": 3 }, forbidden, to(&receiver, "1h")] });
    let answer = server.send("POST", "/v1/messages:batch", &batch);
    assert_eq!(answer.status, 202, "{answer:?}");
    let answer = answer.json();
    assert_eq!(
        (&answer["accepted"], &answer["refused"]),
        (&json!(2), &json!(2))
    );
    let results = answer["results"].as_array().expect("results");
    assert_eq!(results[0]["id"], "good");
    assert_eq!(
        (&results[1]["status"], &results[1]["field"]),
        (&json!(400), &json!("topic"))
    );
    assert_eq!(
        (&results[2]["status"], &results[2]["field"]),
        (&json!(422), &json!("target.callback.url"))
    );
    assert!(results[3]["id"].is_string());
    assert_eq!(receiver.next().header("webhook-id"), Some("good"));
}

#[test]
fn batches_of_changes_answer_for_each_message() {
    let server = Server::start(&[]);
    let receiver = Receivers::start("200 OK");
    for id in ["a", "b", "c"] {
        let mut message = to(&receiver, "1h");
        message["id"] = json!(id);
        server.submit(&message);
    }
    let due = |id: &str| server.get(&format!("/v1/messages/{id}")).json()["due"].clone();
    let before = due("b");
    let batch = json!({ "messages": [
        { "id": "a", "by": "1h" },
        { "id": "nobody", "by": "1h" },
        { "id": "b", "by": "1h", "to": "2020-01-01T00:00:00Z" },
        { "id": "b", "later": "1h" },
        { "id": "c", "to": "2030-01-31T12:00:00Z" },
    ]});
    let answer = server.send("POST", "/v1/messages:extend", &batch);
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = answer.json();
    assert_eq!(
        (&answer["changed"], &answer["refused"]),
        (&json!(2), &json!(3))
    );
    let expected = [json!(null), json!(404), json!(422), json!(400), json!(null)];
    for (number, status) in expected.iter().enumerate() {
        assert_eq!(answer["results"][number]["status"], *status, "{answer}");
    }
    assert_eq!(answer["results"][0]["due"], due("a"));
    assert_eq!(answer["results"][4]["due"], "2030-01-31T12:00:00.000Z");
    assert_eq!(due("b"), before, "what was refused is as it was");

    let batch = json!({ "ids": ["a", "no/id", "nobody", "c", "a"] });
    let answer = server.send("POST", "/v1/messages:withdraw", &batch);
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = answer.json();
    assert_eq!(
        (&answer["changed"], &answer["refused"]),
        (&json!(2), &json!(3))
    );
    let results = &answer["results"];
    assert_eq!(
        (&results[0]["id"], &results[0]["state"]),
        (&json!("a"), &json!("withdrawn"))
    );
    assert_eq!(
        (&results[1]["status"], &results[1]["field"]),
        (&json!(422), &json!("id"))
    );
    assert_eq!(results[2]["code"], "no_such_message");
    assert_eq!(results[3]["state"], "withdrawn");
    assert_eq!(
        (&results[4]["status"], &results[4]["state"]),
        (&json!(409), &json!("withdrawn"))
    );

    let many: Vec<String> = (0..10_001).map(|number| number.to_string()).collect();
    let refused = server.send("POST", "/v1/messages:withdraw", &json!({ "ids": many }));
    assert_eq!(
        (refused.status, &refused.json()["field"]),
        (422, &json!("ids"))
    );
}

#[test]
fn lists_go_by_topic_and_state_page_by_page() {
    let server = Server::start(&[]);
    let receiver = Receivers::start("200 OK");
    for number in 0..5 {
        let mut message = to(&receiver, "1h");
        message["id"] = json!(format!("message-{number}"));
        server.submit(&message);
    }
    let mut other = to(&receiver, "1h");
    other["topic"] = json!("other");
    server.submit(&other);

    let mut seen = Vec::new();
    let mut after = String::new();
    loop {
        let page = server
            .get(&format!("/v1/messages?topic=reminders&limit=2{after}"))
            .json();
        for message in page["messages"].as_array().expect("messages") {
            assert!(
                message.get("payload").is_none(),
                "lists are brief: {message}"
            );
            seen.push(message["id"].as_str().expect("an id").to_owned());
        }
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(
        seen,
        (0..5)
            .map(|number| format!("message-{number}"))
            .collect::<Vec<_>>()
    );
    server.request("DELETE", "/v1/messages/message-3");
    let withdrawn = server.get("/v1/messages?state=withdrawn").json();
    assert_eq!(withdrawn["messages"][0]["id"], "message-3");
}

#[test]
fn failures_are_tried_again_and_counted() {
    // Some of the later ones may come before the receiver is told to take them.
    let server = Server::start(&["--retry", "10ms,2s,2s,2s,2s,2s"]);
    let receiver = Receivers::start("500 Oops");
    let id = server.submit(&to(&receiver, "0s"));
    for attempt in ["1", "2"] {
        assert_eq!(receiver.next().header("laneway-attempt"), Some(attempt));
    }
    receiver.answer("200 OK");
    server.wait_for_state(&id, "delivered");
    let message = server.get(&format!("/v1/messages/{id}")).json();
    let history = message["history"].as_array().expect("a history");
    assert_eq!(history[0]["what"], "failed");
    assert_eq!(history[0]["reason"], "the receiver answered 500");

    let metrics = server.get("/metrics").body;
    let there = |line: &str| metrics.lines().any(|found| found.starts_with(line));
    for line in [
        "laneway_delay_submitted_total{outcome=\"accepted\"} 1",
        "laneway_delay_callbacks_total{outcome=\"delivered\"} 1",
        "laneway_delay_callbacks_total{outcome=\"server_error\"}",
        "laneway_delay_lateness_seconds_count 1",
        "laneway_delay_callback_duration_seconds_count 1",
        "laneway_delay_messages{state=\"delivered\"} 1",
        "laneway_delay_messages{state=\"scheduled\"} 0",
        "laneway_delay_open_circuits 0",
    ] {
        assert!(there(line), "{line}:\n{metrics}");
    }
}

#[test]
fn callbacks_reach_only_public_addresses_where_that_is_asked_for() {
    let server = Server::start(&["--callback-allow", "none"]);
    let said = server.announcement.join("\n");
    assert!(
        said.contains("callbacks may reach public addresses only"),
        "{said}"
    );
    let receiver = Receivers::start("200 OK");
    let refused = server.send("POST", "/v1/messages", &to(&receiver, "0s"));
    assert_eq!(refused.status, 422, "{refused:?}");
    let problem = refused.json();
    assert_eq!(problem["field"], "target.callback.url");
    let detail = problem["detail"].as_str().expect("a detail");
    assert!(
        detail.contains("loopback") && detail.contains("callback.allow"),
        "{detail}"
    );

    // A name that turns out to be this machine is found out when it is called.
    let url = format!("http://localhost:{}/", receiver.address.port());
    let id = server.submit(&json!({
        "topic": "t", "delay": 0, "retry": [], "target": { "callback": { "url": url } },
    }));
    server.wait_for_state(&id, "dead");
    assert!(receiver.pending().is_empty());
    let message = server.get(&format!("/v1/messages/{id}")).json();
    let reason = message["history"][0]["reason"].as_str().expect("a reason");
    assert!(reason.contains("localhost resolves to"), "{reason}");
}

/// A proxy in the environment would lead around the guard.
#[test]
fn proxies_of_the_environment_are_not_used() {
    let proxy = Receivers::start("200 OK");
    let receiver = Receivers::start("200 OK");
    let address = format!("http://{}", proxy.address);
    let server = Server::start_with(
        &[],
        &[
            ("http_proxy", &address),
            ("HTTP_PROXY", &address),
            ("ALL_PROXY", &address),
        ],
    );
    server.submit(&to(&receiver, "0s"));
    receiver.next();
    assert!(proxy.pending().is_empty());
}

#[test]
fn a_delay_beyond_the_longest_one_is_refused() {
    let server = Server::start(&["--max-delay", "7d"]);
    let receiver = Receivers::start("200 OK");
    server.submit(&to(&receiver, "6d"));
    let refused = server.send("POST", "/v1/messages", &to(&receiver, "8d"));
    assert_eq!(
        (refused.status, &refused.json()["field"]),
        (422, &json!("delay"))
    );
}

#[test]
fn what_is_being_delivered_is_finished_before_the_server_stops() {
    let server = Server::start(&[]);
    let receiver = Receivers::start("200 OK");
    for _ in 0..50 {
        server.submit(&to(&receiver, "0s"));
    }
    wait_for_blocking!(
        { server.figure("laneway_delay_messages{state=\"delivered\"}") == 50 },
        "all are delivered"
    );
    server.signal(rustix::process::Signal::TERM);
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log:?}");
}

#[test]
fn the_trace_of_a_submission_goes_on_to_its_callback() {
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let server = Server::start(&[]);
    let receiver = Receivers::start("200 OK");
    let submit = |parent: &str, body: &Value| {
        let headers = format!(
            "content-type: application/json\r\nidempotency-key: k\r\ntraceparent: {parent}\r\ntracestate: a=b\r\n"
        );
        let answer = server.send_with("POST", "/v1/messages", &headers, &body.to_string());
        assert_eq!(answer.status, 202, "{answer:?}");
        answer.json()["duplicate"] == true
    };
    let body = to(&receiver, "1ms");
    assert!(!submit(PARENT, &body));
    let callback = receiver.next();
    assert_eq!(callback.header("traceparent"), Some(PARENT));
    assert_eq!(callback.header("tracestate"), Some("a=b"));
    // Sent again it has another span, and is the same message.
    assert!(submit(&PARENT.replace("00f0", "11f1"), &body));
    assert!(submit("nonsense", &body));
}

#[test]
fn the_data_directory_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let server = Server::start(&["--data-dir", "a/data"]);
    let data = std::fs::metadata(server.directory().join("a/data")).expect("there");
    assert_eq!(data.permissions().mode() & 0o777, 0o700);
}
