//! `laneway serve`, the real one: what it answers, what it refuses, how it stops.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use crate::harness::{Answer, Server, documented_metrics, empty_directory, laneway};
use rustix::process::Signal;
use serde_json::Value;
use waiting::wait_for_blocking;

#[test]
fn it_says_what_is_there_and_what_to_know() {
    let server = Server::start(&[]);
    let said = server.announcement.join("\n");
    assert!(said.contains("is listening on http://127.0.0.1:"), "{said}");
    assert!(said.contains("POST /v1/messages"), "{said}");
    let directory = server.directory().join("laneway-data");
    let kept = format!("messages are kept in {}", directory.display());
    assert!(said.contains(&kept), "{said}");
    assert!(
        said.contains("callbacks may reach public addresses, and this machine"),
        "{said}"
    );
    assert!(said.contains("callbacks are not signed"), "{said}");
    assert!(said.contains("SIGTERM"), "{said}");
    assert!(
        !said.contains("warning"),
        "loopback is nothing to warn about: {said}"
    );
}

#[test]
fn every_route_answers() {
    let server = Server::start(&[]);

    let live = server.get("/healthz");
    assert_eq!((live.status, live.body.as_str()), (200, "ok\n"));

    let ready = server.get("/readyz");
    assert_eq!((ready.status, ready.body.as_str()), (200, "ready\n"));

    let version = server.get("/version");
    assert_eq!(version.status, 200);
    assert_eq!(version.header("content-type"), Some("application/json"));
    let version = version.json();
    assert_eq!(version["name"], "laneway");
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    for member in ["target", "profile", "rustc"] {
        let value = version[member].as_str();
        assert!(value.is_some_and(|value| value != "unknown"), "{version}");
    }

    let home = server.get("/");
    assert_eq!(home.status, 200);
    assert_eq!(
        home.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    for path in [
        "/healthz",
        "/readyz",
        "/version",
        "/metrics",
        "/v1/messages",
        "/v1/dead",
    ] {
        assert!(home.body.contains(&format!("href=\"{path}\"")), "{path}");
    }
}

#[test]
fn requests_and_connections_are_counted() {
    let server = Server::start(&[]);
    server.get("/healthz");
    server.get("/healthz");
    server.get("/nothing-here");

    let metrics = server.get("/metrics");
    let kind = metrics.header("content-type").expect("a content type");
    assert!(kind.starts_with("application/openmetrics-text"), "{kind}");
    for line in [
        "laneway_http_requests_total{route=\"/healthz\",status=\"200\"} 2",
        "laneway_http_requests_total{route=\"none\",status=\"404\"} 1",
        "laneway_http_request_duration_seconds_count{route=\"/healthz\"} 2",
        "laneway_http_connections_accepted_total 4",
        "# EOF",
    ] {
        assert!(
            metrics.body.lines().any(|found| found == line),
            "{line}:\n{}",
            metrics.body
        );
    }
    assert!(metrics.body.contains("laneway_build_info{version="));
}

#[test]
fn the_table_of_metrics_in_the_manual_is_what_is_served() {
    let server = Server::start(&[]);
    // A family without a series is not served: an answer is counted after it was given.
    server.get("/healthz");
    let documented = documented_metrics(|name| !name.starts_with("laneway_bus_kafka_"));
    assert_eq!(server.metric_names(), documented);
}

#[test]
fn anything_else_is_a_problem_that_names_the_path() {
    let server = Server::start(&[]);
    let answer = server.get("/v2/messages?topic=a");
    assert_eq!(answer.status, 404);
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json")
    );
    let problem = answer.json();
    assert_eq!(problem["type"], "about:blank");
    assert_eq!(problem["title"], "Not Found");
    assert_eq!(problem["status"], 404);
    assert_eq!(problem["instance"], "/v2/messages");
    assert_eq!(problem["code"], "no_such_path");
    let detail = problem["detail"].as_str().expect("a detail");
    assert!(detail.contains("/v2/messages"), "{detail}");
}

#[test]
fn a_method_that_is_not_taken_is_a_problem_too() {
    let server = Server::start(&[]);
    let answer = server.request("DELETE", "/healthz");
    assert_eq!(answer.status, 405);
    assert_eq!(answer.header("allow"), Some("GET,HEAD"));
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json")
    );
    assert!(
        answer.json()["detail"]
            .as_str()
            .is_some_and(|text| text.contains("DELETE"))
    );
}

#[test]
fn a_client_that_says_nothing_is_dropped() {
    let server = Server::start(&["--header-timeout", "50ms"]);
    assert_eq!(read_until_closed(server.connect()), "");
    assert_eq!(server.figure("laneway_http_connections_timed_out_total"), 1);
}

#[test]
fn a_client_that_never_ends_its_request_head_is_dropped() {
    let server = Server::start(&["--header-timeout", "50ms"]);
    let mut stream = server.connect();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: te")
        .expect("sent");
    let answer = read_until_closed(stream);
    assert!(!answer.contains("200 OK"), "{answer}");
    assert_eq!(server.figure("laneway_http_connections_timed_out_total"), 1);
}

#[test]
fn a_connection_that_stays_idle_after_a_request_is_dropped() {
    let server = Server::start(&["--header-timeout", "50ms"]);
    let mut stream = server.connect();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .expect("sent");
    assert!(read_until_closed(stream).ends_with("ok\n"));
}

#[test]
fn a_client_that_never_reads_its_answers_is_dropped() {
    let server = Server::start(&["--write-timeout", "50ms"]);
    let mut stream = server.connect();
    let requests = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(1_000);
    // The buffers on the way fill up with answers; then the server hangs up.
    wait_for_blocking!(
        { stream.write_all(&requests).is_err() },
        "the server hangs up"
    );
    wait_for_blocking!(
        { server.figure("laneway_http_connections_timed_out_total") == 1 },
        "it is counted"
    );
}

#[test]
fn a_request_head_without_end_is_refused() {
    let server = Server::start(&[]);
    let mut stream = server.connect();
    let mut head = b"GET / HTTP/1.1\r\nhost: localhost\r\nx: ".to_vec();
    head.resize(200_000, b'a');
    // The server may hang up while this is still being sent.
    let _ = stream.write_all(&head);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 431"),
        "{answer}"
    );
    assert_eq!(server.get("/healthz").status, 200, "others are served");
}

#[test]
fn connections_beyond_the_limit_wait_for_their_turn() {
    let server = Server::start(&["--max-connections", "1"]);
    let mut first = server.connect();
    first
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .expect("sent");
    let mut start = [0; 15];
    first.read_exact(&mut start).expect("an answer");
    assert_eq!(&start, b"HTTP/1.1 200 OK");

    // The first one is still open, so this one is not even taken.
    let mut second = server.connect();
    second
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .expect("sent");
    let short = std::time::Duration::from_millis(100);
    second.set_read_timeout(Some(short)).expect("a time-out");
    let early = second.read(&mut start);
    assert!(early.is_err(), "answered while the only slot was taken");

    drop(first);
    second
        .set_read_timeout(Some(crate::harness::PATIENCE))
        .expect("a time-out");
    assert_eq!(Answer::read_to_end(second).status, 200);
}

#[test]
fn a_signal_stops_it_and_idle_connections_do_not_hold_it_up() {
    for signal in [Signal::TERM, Signal::INT] {
        let server = Server::start(&["--shutdown-timeout", "1h"]);
        let idle = server.connect();
        assert_eq!(server.get("/healthz").status, 200);
        server.signal(signal);
        let (status, log) = server.wait();
        assert_eq!(status.code(), Some(0), "{log:?}");
        assert!(
            log.iter()
                .any(|line| line.contains("no request is in flight")),
            "{log:?}"
        );
        drop(idle);
    }
}

/// Half a request head is in the server when the signal comes; the other half comes after it.
#[cfg(target_os = "linux")]
#[test]
fn a_request_in_flight_is_answered_after_the_signal_and_the_exit_code_is_0() {
    let server = Server::start(&["--shutdown-timeout", "1h", "--header-timeout", "1h"]);
    let mut stream = half_a_request(&server, "/readyz");
    server.signal(Signal::TERM);
    server.wait_until_refusing();

    stream.write_all(b"st: localhost\r\n\r\n").expect("sent");
    let answer = Answer::read_to_end(stream);
    assert_eq!((answer.status, answer.body.as_str()), (503, "draining\n"));

    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn what_is_not_finished_at_the_deadline_is_cut_and_reported() {
    let server = Server::start(&["--shutdown-timeout", "50ms", "--header-timeout", "1h"]);
    let _stream = half_a_request(&server, "/healthz");
    server.signal(Signal::TERM);
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(1));
    let last = log.last().expect("a log");
    assert!(
        last.contains(
            "cut off after 50ms (serve.shutdown_timeout), with connections still busy: 1"
        ),
        "{log:?}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_second_signal_stops_it_at_once() {
    let server = Server::start(&["--shutdown-timeout", "1h", "--header-timeout", "1h"]);
    let _stream = half_a_request(&server, "/healthz");
    server.signal(Signal::TERM);
    server.wait_until_refusing();
    server.signal(Signal::INT);
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(1));
    let last = log.last().expect("a log");
    assert!(last.contains("second signal (SIGINT)"), "{log:?}");
}

#[test]
fn a_port_that_is_taken_is_explained() {
    let server = Server::start(&[]);
    let directory = empty_directory();
    let output = laneway(&directory)
        .args(["serve", "--listen", &server.address.to_string()])
        .output()
        .expect("the binary starts");
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty(), "it does not claim to listen");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains(&format!("cannot listen on {}", server.address)),
        "{error}"
    );
    assert!(error.contains("flag --listen"), "{error}");
    assert!(error.contains("another laneway"), "{error}");
    assert!(error.contains("port 0"), "{error}");
}

#[test]
fn logs_can_be_json_and_then_there_is_nothing_else() {
    let server = Server::start(&[
        "--log-format",
        "json",
        "--log-filter",
        "laneway::http=debug,hyper=trace",
    ]);
    server.get("/healthz");
    assert_eq!(server.stdout(), [""; 0]);
    let listening: Value = serde_json::from_str(&server.announcement[0]).expect("JSON");
    assert_eq!(listening["message"], "listening");
    server.signal(Signal::TERM);
    let (_, log) = server.wait();
    let events: Vec<Value> = log
        .iter()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}")))
        .collect();
    let message = |text: &str| events.iter().find(|event| event["message"] == text);
    let request = message("request").expect("logged by the filter");
    assert_eq!(request["path"], "/healthz");
    assert_eq!(request["status"], 200);
    assert!(request["took_ms"].is_f64(), "{request}");
    // Other parts stay at their level.
    assert!(events.iter().all(|event| {
        let ours = event["target"]
            .as_str()
            .is_some_and(|name| name.starts_with("laneway::http"));
        ours || event["target"] == "hyper" || event["level"] != "DEBUG"
    }));
}

#[test]
fn what_libraries_say_in_detail_is_not_in_the_log_at_debug() {
    let server = Server::start(&["--log-level", "debug"]);
    server.get("/healthz");
    server.signal(Signal::TERM);
    let (_, log) = server.wait();
    assert!(
        log.iter().any(|line| line.contains("path=\"/healthz\"")),
        "{log:#?}"
    );
    assert!(!log.iter().any(|line| line.contains("flushed")), "{log:#?}");
}

#[test]
fn the_password_of_a_bus_is_not_shown() {
    let directory = empty_directory();
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|one| one.local_addr());
    let free = free.expect("a port");
    for (bus, shown) in [
        (
            format!("nats://svc:hunter2@{free}"),
            "nats://***@127.0.0.1:",
        ),
        (
            format!("nats://svc:a/\"hunter2@{free}"),
            "nats://***@127.0.0.1:",
        ),
        (format!("nats://{free}?token=hunter2"), "?token=***"),
        (format!("kafka:svc:hunter2@{free}"), "***@127.0.0.1:"),
    ] {
        for arguments in [
            &["config", "show"][..],
            &["serve", "--listen", "127.0.0.1:0"],
        ] {
            let output = laneway(&directory)
                .args(arguments)
                .args(["--bus", &bus])
                .output()
                .expect("the binary starts");
            let said = format!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            assert!(said.contains(shown), "{said}");
            assert!(!said.contains("hunter2"), "{said}");
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_server_whose_disk_fails_is_not_ready_and_says_so() {
    let server = Server::start_with_failing_writes(&["--log-format", "json"]);
    assert_eq!(server.get("/readyz").status, 200);
    let message = serde_json::json!({
        "topic": "t", "delay": "1h", "target": { "callback": { "url": "https://example.com/" } },
    });
    server.submit(&message);
    server.let_writes_fail();
    // The one whose write failed may be there nevertheless; the next ones are not tried.
    let unconfirmed = server.send("POST", "/v1/messages", &message);
    assert_eq!(unconfirmed.status, 504, "{unconfirmed:?}");
    assert_eq!(unconfirmed.json()["code"], "outcome_unknown");
    let refused = server.send("POST", "/v1/messages", &message);
    assert!(matches!(refused.status, 503 | 507), "{refused:?}");
    let ready = server.get("/readyz");
    assert_eq!(ready.status, 503, "{ready:?}");
    assert!(ready.body.len() > 20, "it says why: {ready:?}");
    assert_eq!(server.figure("laneway_ready"), 0);
    assert_eq!(server.figure("laneway_store_up"), 0);
    // It may pass, and a new start would not help.
    assert_eq!(server.figure("laneway_store_failed"), 0);
    assert_eq!(server.get("/healthz").status, 200);
    wait_for_blocking!(
        {
            server
                .log_so_far()
                .iter()
                .any(|line| line.contains("\"not ready\""))
        },
        "it is logged"
    );
    // When it can write again the store opens its files anew. If they are not what was written, there is nothing left
    // to wait for.
    let log = server.directory().join("laneway-data/messages/log");
    let journals = std::fs::read_dir(&log).expect("a store").flatten();
    let journals = journals.map(|entry| entry.path());
    let journals = journals.filter(|path| path.extension().is_some_and(|ext| ext == "jnl"));
    let journals = journals.map(|path| (std::fs::read(&path).unwrap_or_default(), path));
    let (mut bytes, journal) = journals
        .max_by_key(|(bytes, _)| bytes.len())
        .expect("a journal");
    bytes[20] ^= 0xff;
    std::fs::write(&journal, bytes).expect("writable from here");
    server.let_writes_work();
    wait_for_blocking!(
        server.figure("laneway_store_failed") == 1,
        "it has failed for good"
    );
    let alive = server.get("/healthz");
    assert_eq!(alive.status, 503, "{alive:?}");
    assert!(alive.body.contains("damaged"), "{alive:?}");
}

#[test]
fn figures_tell_about_disk_store_bus_and_process() {
    let server = Server::start(&[]);
    assert_eq!(server.figure("laneway_ready"), 1);
    assert_eq!(server.figure("laneway_store_up"), 1);
    assert!(server.figure("laneway_disk_free_bytes") > 0);
    assert!(server.figure("laneway_process_open_fds") > 3);
    assert!(server.figure("laneway_process_resident_memory_bytes") > 1 << 20);
    wait_for_blocking!(
        {
            server
                .get("/metrics")
                .body
                .contains("laneway_bus_broker_up 1")
        },
        "the bus was asked"
    );
    let page = server.get("/metrics").body;
    assert!(page.contains("laneway_lanes_ready"), "{page}");
    assert!(!page.contains("lanes_worker"), "{page}");
}

#[test]
fn a_closed_standard_output_does_not_stop_it() {
    let directory = empty_directory();
    let mut child = laneway(&directory)
        .args(["serve", "--listen", "127.0.0.1:0"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the binary starts");
    drop(child.stdout.take());
    let mut log = std::io::BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    wait_for_blocking!(
        {
            line.clear();
            let read = std::io::BufRead::read_line(&mut log, &mut line);
            line.contains("listening") || read.expect("a line") == 0
        },
        "it listens"
    );
    assert!(line.contains("listening"), "it exited");
    child.kill().expect("it runs");
    child.wait().expect("killed");
}

fn read_until_closed(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("closed in time");
    answer
}

/// Sends the first half of a request head, and waits until the server has read it.
#[cfg(target_os = "linux")]
fn half_a_request(server: &Server, path: &str) -> TcpStream {
    let mut stream = server.connect();
    let half = format!("GET {path} HTTP/1.1\r\nconnection: close\r\nho");
    stream.write_all(half.as_bytes()).expect("sent");
    let client = stream.local_addr().expect("connected");
    wait_for_blocking!(
        { unread_bytes(server.address, client) == Some(0) },
        "the server has read it"
    );
    stream
}

/// What lies unread in a socket of this machine, from the kernel's table.
#[cfg(target_os = "linux")]
fn unread_bytes(local: std::net::SocketAddr, remote: std::net::SocketAddr) -> Option<u64> {
    let kernel = |address: std::net::SocketAddr| match address.ip() {
        std::net::IpAddr::V4(ip) => {
            let ip = u32::from_ne_bytes(ip.octets());
            format!("{ip:08X}:{:04X}", address.port())
        }
        std::net::IpAddr::V6(_) => panic!("the tests use IPv4"),
    };
    let ends = (kernel(local), kernel(remote));
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux has it");
    table.lines().find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let found = *columns.get(1)? == ends.0 && *columns.get(2)? == ends.1;
        let (_, unread) = columns.get(4)?.split_once(':')?;
        found.then(|| u64::from_str_radix(unread, 16).ok())?
    })
}

#[test]
fn a_callback_that_is_cut_off_is_told_by_the_exit_code() {
    let server = Server::start(&["--shutdown-timeout", "600ms"]);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("an address");
    let message = serde_json::json!({
        "topic": "t",
        "payload": 1,
        "delay": "0s",
        "target": { "callback": { "url": format!("http://{address}/") } },
    });
    let answer = server.send("POST", "/v1/messages", &message);
    assert_eq!(answer.status, 202, "{answer:?}");
    let id = answer.json()["id"].as_str().expect("an id").to_owned();
    let (_call, _) = silent.accept().expect("a call");
    server.wait_for_state(&id, "firing");
    server.signal(Signal::TERM);
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(1), "{log:?}");
    let last = log.last().expect("a log");
    assert!(
        last.contains("(serve.shutdown_timeout), with attempts still running: 1"),
        "{log:?}"
    );
}

#[test]
fn a_second_server_on_one_data_directory_is_told_of_that_directory() {
    let directory = Arc::new(empty_directory());
    let _server = Server::start_in(directory.clone(), &[]);
    let second = laneway(&directory)
        .args(["serve", "--listen", "127.0.0.1:0"])
        .output()
        .expect("it runs");
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(
        said.contains("(serve.data_dir) is in use by another process")
            && said.contains("--data-dir")
            && !said.contains("serve.bus"),
        "{said}"
    );
}
