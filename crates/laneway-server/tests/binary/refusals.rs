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
        (set("target", json!({ "ftp": {} })), 400, "target"),
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
        json!({ "by": "1s", "to": 5 }),
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
