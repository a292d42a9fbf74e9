//! The callback client against receivers on loopback that behave, and that do not.
#![cfg(feature = "callback")]

mod answers;
mod delivery;
mod forbidden;
mod hosts;
mod receiver;

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use laneway_delay::callback::{Allow, Call, Client, Guard, Limits};
use laneway_delay::{Method, Timestamp};

/// How long anything may take before a test gives up. Nothing waits that long if all is well.
const PATIENCE: Duration = Duration::from_mins(1);

/// A client that may call this machine.
fn client(limits: Limits) -> Client {
    let guard = Guard::new(Allow::loopback());
    Client::new(guard, limits, Vec::new()).expect("a client")
}

fn limits(change: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = Limits::default();
    change(&mut limits);
    limits
}

/// A port that is bound, so that no other test gets it, and on which nothing listens.
fn silent() -> (tokio::net::TcpSocket, String) {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    let any = "127.0.0.1:0".parse().expect("an address");
    socket.bind(any).expect("a free port");
    let url = format!("http://{}/", socket.local_addr().expect("bound"));
    (socket, url)
}

/// A message that is due now.
fn call(url: &str) -> Call<'_> {
    Call {
        id: "message-1",
        topic: "reminders",
        due: Timestamp::from(SystemTime::now()),
        attempt: 1,
        url,
        method: Method::Post,
        headers: &[],
        content_type: "application/json",
        body: Bytes::from_static(b"{\"cart\":17}"),
        timeout: None,
    }
}
