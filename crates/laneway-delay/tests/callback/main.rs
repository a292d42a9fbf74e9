//! The callback client against receivers on loopback that behave, and that do not.
#![cfg(feature = "callback")]

mod answers;
mod forbidden;
mod hosts;
mod receiver;

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use laneway_delay::callback::{Allow, Call, Client, Guard, Limits};
use laneway_delay::{Method, Timestamp};

/// How long anything may take before a test gives up. Nothing waits that long if all is well.
const PATIENCE: Duration = Duration::from_secs(20);

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
