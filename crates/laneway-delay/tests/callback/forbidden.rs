//! Forbidden addresses, with somebody listening there who must never be called.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use laneway_delay::callback::guard::{Refused, Resolve, Resolving};
use laneway_delay::callback::{Allow, CallError, Client, Guard, Limits};

use crate::call;
use crate::receiver::{Behaviour, Receiver};

/// Names become what the list says, one answer after the other; the last one stays.
#[derive(Clone, Default)]
struct Names {
    answers: Arc<Mutex<Vec<Vec<IpAddr>>>>,
    asked: Arc<Mutex<usize>>,
}

impl Names {
    fn new(answers: &[&[&str]]) -> Self {
        let address = |text: &&str| text.parse().expect("an address");
        let answers = answers
            .iter()
            .map(|answer| answer.iter().map(address).collect());
        Self {
            answers: Arc::new(Mutex::new(answers.collect())),
            asked: Arc::default(),
        }
    }

    fn asked(&self) -> usize {
        *self.asked.lock().expect("not poisoned")
    }
}

impl Resolve for Names {
    fn resolve(&self, _: &str) -> Resolving {
        *self.asked.lock().expect("not poisoned") += 1;
        let mut answers = self.answers.lock().expect("not poisoned");
        let answer = if answers.len() > 1 {
            answers.remove(0)
        } else {
            answers[0].clone()
        };
        Box::pin(async move { Ok(answer) })
    }
}

fn client(allow: &str, names: Names) -> Client {
    let guard = Guard::new(allow.parse::<Allow>().expect(allow));
    Client::with_resolver(guard, Limits::default(), Vec::new(), names).expect("a client")
}

/// Who listens on every address of this machine, and counts who comes.
async fn canaries() -> (Receiver, Option<Receiver>, u16) {
    let v4 = Receiver::start_on("0.0.0.0:0", Behaviour::status("200 OK")).await;
    let port = v4.address.port();
    // Where there is no IPv6 nobody can be called by it.
    let v6 = match std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, port)) {
        Ok(free) => {
            drop(free);
            let address = format!("[::1]:{port}");
            Some(Receiver::start_on(&address, Behaviour::status("200 OK")).await)
        }
        Err(_) => None,
    };
    (v4, v6, port)
}

fn connections(canaries: &(Receiver, Option<Receiver>, u16)) -> usize {
    canaries.0.connections() + canaries.1.as_ref().map_or(0, Receiver::connections)
}

#[tokio::test]
async fn no_notation_of_loopback_reaches_it() {
    let canaries = canaries().await;
    let port = canaries.2;
    let client = client("", Names::new(&[&["127.0.0.1"]]));
    for host in [
        "127.0.0.1",
        "127.0.0.1.",
        "127.1",
        "127.0.1",
        "127.255.255.254",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0x7f.1",
        "017700000001",
        "0177.0.0.1",
        "0177.0x0.0.01",
        "%31%32%37.0.0.1",
        "１２７.０.０.１",
        "127。0。0。1",
        "①②⑦.⓪.⓪.①",
        "0",
        "0.0.0.0",
        "[::]",
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[64:ff9b:1::127.0.0.1]",
        "[2002:7f00:1::]",
        "[2001:0:7f00:1::]",
        "[::1%25lo]",
        "user@127.0.0.1",
        "example.com@127.0.0.1",
        // Names, which all resolve to loopback.
        "localhost",
        "localhost.",
        "LOCALHOST",
        "ip6-localhost",
        "127.0.0.1.nip.example",
        "loopback.example",
        "ｌｏｃａｌｈｏｓｔ",
    ] {
        for scheme in ["http", "https"] {
            let url = format!("{scheme}://{host}:{port}/");
            let error = client.call(&call(&url)).await.expect_err(&url);
            assert!(matches!(error, CallError::Refused(_)), "{url}: {error:?}");
        }
    }
    assert_eq!(connections(&canaries), 0);

    // The canary sings if it is called: otherwise the number above says nothing.
    let allowed = self::client("127.0.0.0/8", Names::default());
    let url = format!("http://127.0.0.1:{port}/");
    allowed.call(&call(&url)).await.expect("allowed");
    assert_eq!(connections(&canaries), 1);
}

#[tokio::test]
async fn a_name_with_one_forbidden_address_reaches_none_of_them() {
    let canaries = canaries().await;
    let url = format!("http://mixed.example:{}/", canaries.2);
    // 127.0.0.2 is allowed, and would answer.
    for answer in [
        ["127.0.0.2", "127.0.0.1"],
        ["127.0.0.1", "127.0.0.2"],
        ["127.0.0.2", "::1"],
    ] {
        let client = client("127.0.0.2/32", Names::new(&[&answer]));
        let error = client.call(&call(&url)).await.expect_err("mixed");
        assert!(
            matches!(error, CallError::Refused(Refused::Resolved { .. })),
            "{error:?}"
        );
    }
    assert_eq!(connections(&canaries), 0);
}

/// A name that is harmless when it is looked at and harmful when it is called. What was looked at is what is
/// called, for as long as it counts.
#[tokio::test]
async fn a_name_that_changes_its_address_is_caught() {
    let canary = Receiver::start_on("127.0.0.1:0", Behaviour::status("200 OK")).await;
    let port = canary.address.port();
    let harmless = format!("127.0.0.2:{port}");
    let harmless = Receiver::start_on(
        &harmless,
        Behaviour::with_header("200 OK", "connection: close"),
    )
    .await;
    let names = Names::new(&[&["127.0.0.2"], &["127.0.0.1"]]);
    let client = client("127.0.0.2/32", names.clone());
    let url = format!("http://rebinding.example:{port}/");

    client.call(&call(&url)).await.expect("harmless");
    assert_eq!((names.asked(), harmless.connections()), (1, 1));
    client.call(&call(&url)).await.expect("harmless still");
    assert_eq!((names.asked(), harmless.connections()), (1, 2));

    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(6)).await;
    tokio::time::resume();
    for _ in 0..5 {
        let error = client.call(&call(&url)).await.expect_err("harmful");
        assert!(
            matches!(error, CallError::Refused(Refused::Resolved { .. })),
            "{error:?}"
        );
    }
    assert_eq!((canary.connections(), harmless.connections()), (0, 2));
}

#[tokio::test]
async fn an_allowed_name_is_called_wherever_it_is() {
    let receiver = Receiver::start(Behaviour::status("200 OK")).await;
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST).to_string();
    let client = client("hooks.internal", Names::new(&[&[&loopback]]));
    let url = |host: &str| format!("http://{host}:{}/", receiver.address.port());
    client
        .call(&call(&url("Hooks.Internal")))
        .await
        .expect("allowed");
    client
        .call(&call(&url("other.internal")))
        .await
        .expect_err("not allowed");
    assert_eq!(receiver.connections(), 1);
}
