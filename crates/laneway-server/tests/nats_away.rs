//! `laneway serve --bus nats://…` when the bus is away.

mod shared_bus;

use std::net::ToSocketAddrs;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use shared_bus::fresh;
use shared_bus::harness::{PATIENCE, Server};
use shared_bus::proxy::Proxy;
use waiting::wait_for_blocking;

/// A server on a bus that can be taken away.
fn server(address: &str, arguments: &[&str]) -> (Server, Proxy) {
    let mut url = url::Url::parse(&fresh(address)).expect("an address");
    let host = (url.host_str().expect("a host"), url.port().unwrap_or(4222));
    let mut found = host.to_socket_addrs().expect("it resolves");
    let proxy = Proxy::to(found.next().expect("an address"));
    url.set_host(Some("127.0.0.1")).expect("a host");
    url.set_port(Some(proxy.address.port())).expect("a port");
    let bus = ["--bus", url.as_str()];
    (Server::start(&[&bus[..], arguments].concat()), proxy)
}

#[test]
fn stopping_takes_as_long_as_it_says_also_when_the_bus_is_away() {
    let address = needs::service!("nats");
    let (server, proxy) = server(&address, &["--shutdown-timeout", "3s"]);
    proxy.cut();
    let began = Instant::now();
    server.signal(Signal::TERM);
    let (_, log) = server.wait();
    // Three seconds, the one that files may take beyond it, and a busy machine.
    assert!(began.elapsed() < Duration::from_secs(30), "{log:#?}");
}

#[test]
fn a_second_signal_stops_it_at_once_also_when_the_bus_is_away() {
    let address = needs::service!("nats");
    let (server, proxy) = server(&address, &["--shutdown-timeout", "1h"]);
    proxy.cut();
    server.signal(Signal::TERM);
    server.wait_until_refusing();
    let began = Instant::now();
    server.signal(Signal::INT);
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(1), "{log:#?}");
    assert!(began.elapsed() < PATIENCE / 2, "{log:#?}");
    let last = log.last().expect("a log");
    assert!(last.contains("second signal (SIGINT)"), "{log:#?}");
}

#[test]
fn a_server_whose_bus_is_away_is_not_ready_and_says_so() {
    let address = needs::service!("nats");
    let (server, proxy) = server(&address, &["--shutdown-timeout", "1s"]);
    assert_eq!(server.get("/readyz").status, 200);
    proxy.cut();
    wait_for_blocking!(server.get("/readyz").status == 503, "it is not ready");
    let answer = server.get("/readyz").body;
    assert!(answer.contains("the bus"), "{answer}");
    assert_eq!(
        server.get("/healthz").status,
        200,
        "a restart does not help"
    );
    assert_eq!(server.figure("laneway_ready"), 0);
    server.signal(Signal::TERM);
    let (_, log) = server.wait();
    assert!(
        log.iter().any(|line| line.contains("not ready")),
        "{log:#?}"
    );
}
