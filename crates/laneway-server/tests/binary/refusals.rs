//! Requests that cannot be taken: each names the field and the fix.

use crate::harness::Server;
use serde_json::{Value, json};

const JSON: &str = "content-type: application/json\r\n";

fn message(change: impl FnOnce(&mut Value)) -> Value {
    let mut message = json!({
        "topic": "t",
        "delay": "1h",
        "target": { "callback": { "url": "https://example.com/" } },
    });
    change(&mut message);
    message
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table of mistakes")]
fn every_mistake_names_its_field() {
    let server = Server::start(&[]);
    let bus = |part: &str, value: &str| {
        let mut bus = json!({ "topic": "orders", "aggregate_id": "a", "event_type": "E" });
        bus[part] = json!(value);
        message(|message| message["target"] = json!({ "bus": bus }))
    };
    let callback =
        |part: &str, value: Value| message(|message| message["target"]["callback"][part] = value);
    let set = |part: &str, value: Value| message(|message| message[part] = value);
    let without = |at: &str, part: &str| {
        message(|message| {
            let holder = message.pointer_mut(at).expect("there");
            holder.as_object_mut().expect("an object").remove(part);
        })
    };
    let long = "x".repeat(300);
    for (body, status, field) in [
        (without("", "topic"), 400, "topic"),
        (without("", "target"), 400, "target"),
        (
            without("/target/callback", "url"),
            400,
            "target.callback.url",
        ),
        (without("", "delay"), 422, "delay"),
        (set("delai", json!("1h")), 400, "delai"),
        (set("topic", json!(3)), 400, "topic"),
        (set("topic", json!("")), 422, "topic"),
        (set("topic", json!(long)), 422, "topic"),
        (set("delay", json!("soon")), 400, "delay"),
        (set("delay", json!(-1)), 400, "delay"),
        (set("delay", json!("99999999d")), 422, "delay"),
        (
            set("deliver_at", json!("2030-01-01T00:00:00Z")),
            422,
            "delay",
        ),
        (set("id", json!("a b")), 422, "id"),
        (set("payload_base64", json!("%%%")), 422, "payload_base64"),
        (set("content_type", json!("nonsense")), 422, "content_type"),
        (set("retry", json!(["1s", "x"])), 400, "retry[1]"),
        (set("retry", json!(vec!["1s"; 33])), 422, "retry"),
        (set("metadata", json!({ "a": 1 })), 400, "metadata.a"),
        (set("target", json!({ "ftp": {} })), 400, "target.ftp"),
        (set("target", json!({})), 422, "target"),
        (set("target", json!([])), 400, "target"),
        (
            set(
                "target",
                json!({ "callback": ["https://example.com/", null, {}, null] }),
            ),
            400,
            "target.callback",
        ),
        (
            message(|message| {
                message["target"]["bus"] =
                    json!({ "topic": "orders", "aggregate_id": "a", "event_type": "E" });
            }),
            422,
            "target",
        ),
        (
            set(
                "target",
                json!({ "bus": { "topic": "orders", "aggregate_id": "a", "event_type": "E" } }),
            ),
            422,
            "target.bus",
        ),
        (set("id", json!("..")), 422, "id"),
        (set("deliver_at", json!(1_900_000_000)), 400, "deliver_at"),
        (
            callback("url", json!("example.com")),
            422,
            "target.callback.url",
        ),
        (
            callback("url", json!("ftp://example.com")),
            422,
            "target.callback.url",
        ),
        (
            callback("url", json!("http://169.254.169.254/")),
            422,
            "target.callback.url",
        ),
        (
            callback("url", json!("http://user:pw@example.com/")),
            422,
            "target.callback.url",
        ),
        (
            callback("url", json!("http://[::ffff:10.0.0.1]/")),
            422,
            "target.callback.url",
        ),
        (
            callback("method", json!("TRACE")),
            422,
            "target.callback.method",
        ),
        (
            callback("headers", json!({ "Host": "x" })),
            422,
            "target.callback.headers",
        ),
        (
            callback("headers", json!({ "a": "b\nc" })),
            422,
            "target.callback.headers",
        ),
        (
            callback("timeout", json!("0s")),
            422,
            "target.callback.timeout",
        ),
        (bus("topic", "a b"), 422, "target.bus.topic"),
        (bus("aggregate_id", "a b"), 422, "target.bus"),
        (bus("event_type", ""), 422, "target.bus"),
    ] {
        let answer = server.send("POST", "/v1/messages", &body);
        let problem = answer.json();
        assert_eq!(
            (answer.status, problem["field"].as_str()),
            (status, Some(field)),
            "{body}: {problem}"
        );
        assert_eq!(
            answer.header("content-type"),
            Some("application/problem+json")
        );
        assert_eq!(problem["status"], status);
        assert!(
            problem["detail"]
                .as_str()
                .is_some_and(|detail| detail.len() > 10),
            "{problem}"
        );
    }
    let unknown = server.send("POST", "/v1/messages", &set("delai", json!("1h")));
    let detail = unknown.json()["detail"]
        .as_str()
        .expect("a detail")
        .to_owned();
    assert_eq!(unknown.status, 400);
    assert!(detail.contains("unknown field `delai`"), "{detail}");
    assert_eq!(
        server.figure("laneway_delay_messages{state=\"scheduled\"}"),
        0,
        "nothing was taken"
    );
}

#[test]
fn bodies_that_are_not_json_are_refused() {
    let server = Server::start(&[]);
    let post = |headers: &str, body: &str| server.send_with("POST", "/v1/messages", headers, body);
    for body in [
        "",
        "{",
        "[]",
        "null",
        "{} {}",
        "\u{0}",
        &"[".repeat(100_000),
    ] {
        let answer = post(JSON, body);
        assert_eq!(
            (answer.status, &answer.json()["code"]),
            (400, &json!("malformed")),
            "{body:.20}"
        );
    }
    for headers in [
        "",
        "content-type: text/plain\r\n",
        "content-type: application/x-www-form-urlencoded\r\n",
    ] {
        let answer = post(headers, &message(|_| ()).to_string());
        assert_eq!(answer.status, 415, "{answer:?}");
        assert!(answer.body.contains("curl"), "{answer:?}");
    }
    let good = "content-type: Application/JSON; charset=utf-8\r\n";
    assert_eq!(post(good, &message(|_| ()).to_string()).status, 202);
}

#[test]
fn what_is_not_json_and_what_is_not_an_object_is_told() {
    let server = Server::start(&[]);
    let detail = |body: &str| {
        let answer = server.send_with("POST", "/v1/messages", JSON, body);
        assert_eq!(answer.status, 400, "{body}");
        let problem = answer.json();
        assert_eq!(problem["field"], Value::Null, "{problem}");
        problem["detail"].as_str().expect("a detail").to_owned()
    };
    assert!(detail("{bad json").contains("not JSON"));
    assert!(detail("").contains("not JSON"));
    let positions = r#"["a",null,"t",null,null,null,"50d",null,{"callback":{"url":"http://127.0.0.1/"}},null,{}]"#;
    assert!(detail(positions).contains("expected an object"));
    assert!(detail("[]").contains("expected an object"));
}

/// Clients that send a byte now and then take nobody's turn.
#[test]
fn batches_do_not_wait_for_clients_that_send_slowly() {
    use std::io::Write;
    let server = Server::start(&[]);
    let slow: Vec<_> = (0..20)
        .map(|_| {
            let mut stream = server.connect();
            let head = "POST /v1/messages:batch HTTP/1.1\r\nhost: localhost\r\n\
                        content-type: application/json\r\ncontent-length: 1000000\r\n\r\n{";
            stream.write_all(head.as_bytes()).expect("sent");
            stream
        })
        .collect();
    let began = std::time::Instant::now();
    for _ in 0..20 {
        let answer = server.send("POST", "/v1/messages:batch", &json!({ "messages": [] }));
        assert_eq!(answer.status, 202, "{answer:?}");
    }
    // A slow one has 30 s.
    assert!(began.elapsed().as_secs() < 15, "{:?}", began.elapsed());
    drop(slow);
}

/// More than fits beside others, in many at once: each has its turn.
#[test]
fn large_batches_share_the_room_and_all_get_through() {
    let server = Server::start(&["--max-body", "256KiB"]);
    let large =
        json!({ "messages": [message(|message| message["payload"] = json!("x".repeat(200_000)))] });
    let large = large.to_string();
    let request = format!(
        "POST /v1/messages:batch HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{JSON}\
         content-length: {}\r\n\r\n{large}",
        large.len()
    );
    let address = server.address;
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                let mut stream = std::net::TcpStream::connect(address).expect("it listens");
                let patience = Some(crate::harness::PATIENCE);
                stream.set_read_timeout(patience).expect("a time-out");
                std::io::Write::write_all(&mut stream, request.as_bytes()).expect("sent");
                let answer = crate::harness::Answer::read_to_end(stream);
                assert_eq!(answer.status, 202, "{answer:?}");
            });
        }
    });
}

/// Together they are more than fits, and none of them is ahead of the others.
#[test]
fn large_batches_that_come_at_the_same_pace_all_get_through() {
    use std::io::Write;
    let server = Server::start(&["--max-body", "256KiB"]);
    let large = message(|message| message["payload"] = json!("x".repeat(240_000)));
    let large = json!({ "messages": [large] }).to_string();
    let mut streams: Vec<_> = (0..48)
        .map(|_| {
            let mut stream = server.connect();
            let head = format!(
                "POST /v1/messages:batch HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{JSON}\
                 content-length: {}\r\n\r\n",
                large.len()
            );
            stream.write_all(head.as_bytes()).expect("sent");
            stream
        })
        .collect();
    for part in large.as_bytes().chunks(16 << 10) {
        for stream in &mut streams {
            stream.write_all(part).expect("the kernel has room for it");
        }
        // Not to wait for anything: this is the pace.
        std::thread::sleep(std::time::Duration::from_millis(30));
    }
    for stream in streams {
        let answer = crate::harness::Answer::read_to_end(stream);
        assert_eq!(answer.status, 202, "{answer:?}");
    }
}

#[test]
fn a_body_that_is_too_large_is_refused() {
    let server = Server::start(&["--max-body", "2048"]);
    let large = message(|message| message["payload"] = json!("x".repeat(4_096)));
    for path in [
        "/v1/messages",
        "/v1/messages:batch",
        "/v1/messages:extend",
        "/v1/messages:withdraw",
    ] {
        let answer = server.send("POST", path, &large);
        assert_eq!(
            (answer.status, &answer.json()["code"]),
            (413, &json!("too_large"))
        );
    }
}

/// Bodies of single messages that never end share the room of all bodies.
#[cfg(target_os = "linux")]
#[test]
fn bodies_that_never_end_take_a_bounded_amount_of_memory() {
    use std::io::{ErrorKind, Write};
    const LENGTH: usize = 2 << 20;
    let server = Server::start(&["--max-body", "2MiB"]);
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid_number()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kib.and_then(|kib| kib.trim().parse::<usize>().ok())
            .expect("a number")
            << 10
    };
    let before = resident();
    let head = format!(
        "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\n{JSON}content-length: {LENGTH}\r\n\r\n"
    );
    let mut streams: Vec<_> = (0..150)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(head.as_bytes()).expect("sent");
            stream.set_nonblocking(true).expect("a socket");
            (stream, LENGTH - 1)
        })
        .collect();
    let chunk = vec![b' '; 64 << 10];
    let mut most = 0;
    let mut progress = std::time::Instant::now();
    // Until the server takes no more of any of them for a while.
    while progress.elapsed().as_secs() < 2 && streams.iter().any(|(_, left)| *left > 0) {
        for (stream, left) in &mut streams {
            match stream.write(&chunk[..chunk.len().min(*left)]) {
                Ok(0) => {}
                Ok(sent) => {
                    *left -= sent;
                    progress = std::time::Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // It was refused, for sending nothing while others wait.
                Err(_) => *left = 0,
            }
        }
        most = most.max(resident());
    }
    let settled = std::time::Instant::now();
    while settled.elapsed().as_secs() < 2 {
        most = most.max(resident());
        std::thread::yield_now();
    }
    let took = most.saturating_sub(before) >> 20;
    // 32 MiB of room, and some for each connection.
    assert!(took < 150, "{took} MiB for 300 MiB that were sent");
    // A small one needs no room.
    server.submit(&message(|_| ()));
}

#[test]
fn a_page_of_another_site_can_do_nothing() {
    let server = Server::start(&[]);
    let headers = format!("{JSON}sec-fetch-site: cross-site\r\n");
    let body = message(|_| ()).to_string();
    let answer = server.send_with("POST", "/v1/messages", &headers, &body);
    assert_eq!(
        (answer.status, &answer.json()["code"]),
        (403, &json!("cross_site"))
    );
    let answer = server.send_with("DELETE", "/v1/dead?all=true", &headers, "");
    assert_eq!(answer.status, 403);
}

#[test]
fn what_is_not_there_is_said_to_be_not_there() {
    let server = Server::start(&[]);
    for (method, path) in [
        ("GET", "/v1/messages/nobody"),
        ("DELETE", "/v1/messages/nobody"),
        ("POST", "/v1/dead/nobody/replay"),
        ("DELETE", "/v1/dead/nobody"),
    ] {
        let answer = server.request(method, path);
        assert_eq!(
            (answer.status, &answer.json()["code"]),
            (404, &json!("no_such_message")),
            "{path}"
        );
    }
    let answer = server.send("POST", "/v1/messages/nobody/extend", &json!({ "by": "1s" }));
    assert_eq!(answer.status, 404);
    assert_eq!(server.request("PATCH", "/v1/messages/nobody").status, 405);
}

#[test]
fn questions_that_nobody_understands_are_refused() {
    let server = Server::start(&[]);
    for (path, field) in [
        ("/v1/messages?topik=a", "topik"),
        ("/v1/messages?state=late", "state"),
        ("/v1/messages?limit=0", "limit"),
        ("/v1/messages?limit=1001", "limit"),
        ("/v1/messages?after=x", "after"),
        ("/v1/messages?from=yesterday", "from"),
        ("/v1/messages?topic=a&topic=b", "topic"),
        ("/v1/dead?state=dead", "state"),
    ] {
        let answer = server.get(path);
        assert!(matches!(answer.status, 400 | 422), "{path}: {answer:?}");
        assert_eq!(answer.json()["field"], field, "{path}");
    }
    for body in [
        json!({}),
        json!({ "by": "0s" }),
        json!({ "by": "1s", "to": "2999-01-01T00:00:00Z" }),
    ] {
        let answer = server.send("POST", "/v1/messages/x/extend", &body);
        assert_eq!(answer.status, 422, "{body}");
    }
    let answer = server.request("DELETE", "/v1/dead");
    assert_eq!(
        (answer.status, &answer.json()["field"]),
        (422, &json!("topic"))
    );
}
