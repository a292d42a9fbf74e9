//! What a page of another site can do through a browser: nothing.

use std::io::Write;

use crate::harness::{Answer, Server};
use crate::receiver::Receivers;
use serde_json::json;

const JSON: &str = "content-type: application/json\r\n";

/// Sends a request with these header lines, `Host` among them.
fn request(server: &Server, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    let mut stream = server.connect();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
    );
    let _ = stream.write_all(request.as_bytes());
    Answer::read_to_end(stream)
}

fn message(url: &str) -> String {
    json!({ "topic": "t", "delay": 0, "target": { "callback": { "url": url } } }).to_string()
}

/// A name of the attacker's that resolves to this machine: to the browser it is one origin, so it asks for no leave.
#[test]
fn a_name_that_was_made_to_resolve_to_this_machine_is_refused_everywhere() {
    let server = Server::start(&["--sorakaq", "on"]);
    let receiver = Receivers::start("200 OK");
    let host = format!("host: evil.example:{}\r\n", server.address.port());
    let page = format!(
        "{host}origin: http://evil.example:{}\r\n",
        server.address.port()
    );
    for headers in [&host, &page] {
        let headers = format!("{headers}{JSON}");
        for (method, path) in [
            ("POST", "/v1/messages"),
            ("POST", "/v1/messages:batch"),
            ("GET", "/v1/messages"),
            ("GET", "/v1/dead"),
            ("POST", "/v1/dead/a/replay"),
            ("DELETE", "/v1/dead?all=true"),
            ("POST", "/sorakaq/msg/submit"),
            ("GET", "/metrics"),
            ("GET", "/healthz"),
            ("GET", "/"),
            ("GET", "/nothing"),
        ] {
            let answer = request(&server, method, path, &headers, &message(&receiver.url()));
            assert_eq!(
                (answer.status, &answer.json()["code"]),
                (421, &json!("unknown_host")),
                "{method} {path}"
            );
            assert!(answer.body.contains("serve.hosts"), "{answer:?}");
        }
    }
    assert!(receiver.pending().is_empty());
    assert_eq!(
        server.figure("laneway_delay_messages{state=\"scheduled\"}"),
        0
    );
}

/// What browsers send across origins without asking, to addresses that `Sec-Fetch-Site` is not sent to.
#[test]
fn what_a_foreign_page_sends_without_asking_is_refused_everywhere() {
    let server = Server::start(&["--sorakaq", "on", "--retry", "none"]);
    let receiver = Receivers::start("500 Oops");
    let id = server.submit(&serde_json::from_str(&message(&receiver.url())).expect("JSON"));
    server.wait_for_state(&id, "dead");
    receiver.pending();

    let sorakaq = json!({
        "topic_name": "t", "delay_time": 0,
        "callback": { "request_type": "POST", "url": receiver.url(), "params": "{}" },
    })
    .to_string();
    let host = format!("host: {}\r\n", server.address);
    for origin in ["http://evil.example", "http://127.0.0.1:1", "null"] {
        let headers = format!("{host}origin: {origin}\r\ncontent-type: text/plain\r\n");
        for (method, path, body) in [
            ("POST", "/sorakaq/msg/submit".to_owned(), sorakaq.as_str()),
            ("POST", format!("/v1/dead/{id}/replay"), ""),
            ("POST", "/v1/messages".to_owned(), "{}"),
            ("GET", "/v1/messages".to_owned(), ""),
            ("GET", "/metrics".to_owned(), ""),
        ] {
            let answer = request(&server, method, &path, &headers, body);
            assert_eq!(
                (answer.status, &answer.json()["code"]),
                (403, &json!("cross_site")),
                "{origin} {path}"
            );
        }
    }
    // A browser that is too old to say where it comes from.
    let headers = format!("{host}referer: http://evil.example/\r\ncontent-type: text/plain\r\n");
    let replay = request(
        &server,
        "POST",
        &format!("/v1/dead/{id}/replay"),
        &headers,
        "",
    );
    assert_eq!(replay.status, 415, "{replay:?}");
    let submit = request(&server, "POST", "/sorakaq/msg/submit", &headers, &sorakaq);
    assert_eq!(submit.json()["ec"], 401, "{submit:?}");
    assert_eq!(server.state(&id), "dead");
    assert!(receiver.pending().is_empty(), "nothing was called");
}

#[test]
fn programs_are_served_as_before() {
    let server = Server::start(&["--sorakaq", "on", "--hosts", "delay.example, other.example"]);
    for host in [
        "localhost".to_owned(),
        server.address.to_string(),
        "delay.example".to_owned(),
        "other.example:80".to_owned(),
    ] {
        let headers = format!("host: {host}\r\n{JSON}");
        let body = json!({
            "topic": "t", "delay": "1h", "target": { "callback": { "url": "https://example.com/" } },
        });
        let answer = request(&server, "POST", "/v1/messages", &headers, &body.to_string());
        assert_eq!(answer.status, 202, "{host}: {answer:?}");
    }
    let sorakaq = json!({
        "topic_name": "t", "delay_time": 3_600_000,
        "callback": { "request_type": "POST", "url": "https://example.com/", "params": "{}" },
    });
    for kind in ["", "content-type: text/plain\r\n", JSON] {
        let headers = format!("host: {}\r\n{kind}", server.address);
        let answer = request(
            &server,
            "POST",
            "/sorakaq/msg/submit",
            &headers,
            &sorakaq.to_string(),
        );
        assert_eq!(answer.json()["ec"], 200, "{kind}: {answer:?}");
    }
}

#[test]
fn sorakaqs_routes_have_the_bound_of_all_others() {
    let server = Server::start(&["--sorakaq", "on", "--max-body", "2048"]);
    let large = json!({ "topic_name": "t", "msg_id": "x".repeat(4_096) });
    let answer = server.send("POST", "/sorakaq/msg/cancel", &large);
    assert_eq!(answer.json()["ec"], 401, "{answer:?}");
    assert!(answer.body.contains("2048 bytes"), "{answer:?}");
}
