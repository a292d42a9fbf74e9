//! What others write, whatever bytes it is, stops nothing: it is handled, or it is put aside with a reason.

mod nats;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use laneway::topic::Topic;
use laneway::{Bus, NatsConnection, NatsOptions};

use nats::{SOON, declare, event, fresh, open, settled};

/// Where answers to it go.
const INBOX: &str = "stranger";

/// Somebody who speaks to the server in bytes.
struct Stranger {
    stream: TcpStream,
    answers: BufReader<TcpStream>,
}

impl Stranger {
    fn connect(address: &str) -> Self {
        let host = address.trim_start_matches("nats://");
        let stream = TcpStream::connect(host).expect("the server is there");
        stream.set_read_timeout(Some(SOON)).expect("a time limit");
        let answers = BufReader::new(stream.try_clone().expect("a copy"));
        let mut stranger = Self { stream, answers };
        let hello = b"CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\n";
        stranger.stream.write_all(hello).expect("sent");
        let inbox = format!("SUB {INBOX}.{} 1\r\n", stranger.port());
        stranger.stream.write_all(inbox.as_bytes()).expect("sent");
        stranger
    }

    /// What tells it from others on the same server.
    fn port(&self) -> u16 {
        self.stream.local_addr().expect("an address").port()
    }

    /// Publishes a message with these bytes for headers, and waits until the stream has it.
    fn publish(&mut self, subject: &str, headers: &[u8], body: &[u8]) {
        let total = headers.len() + body.len();
        let inbox = format!("{INBOX}.{}", self.port());
        let line = if headers.is_empty() {
            format!("PUB {subject} {inbox} {total}\r\n")
        } else {
            format!("HPUB {subject} {inbox} {} {total}\r\n", headers.len())
        };
        let mut bytes = line.into_bytes();
        bytes.extend_from_slice(headers);
        bytes.extend_from_slice(body);
        bytes.extend_from_slice(b"\r\n");
        self.stream.write_all(&bytes).expect("sent");
        loop {
            let mut line = String::new();
            self.answers.read_line(&mut line).expect("an answer");
            if line.starts_with("PING") {
                self.stream.write_all(b"PONG\r\n").expect("sent");
            }
            assert!(!line.starts_with("-ERR"), "{line}");
            assert!(!line.contains("\"error\""), "{line}");
            if line.contains("\"seq\"") {
                return;
            }
        }
    }
}

/// A bus that counts how often its connection is gone.
async fn open_counting(address: &str) -> (Bus, Arc<AtomicUsize>) {
    let gone = Arc::new(AtomicUsize::new(0));
    let count = gone.clone();
    let options = NatsOptions::parse(address).expect("an address");
    let options = options.on_connection(move |event| {
        if event == NatsConnection::Disconnected {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let bus = Bus::builder().open_nats(options).await;
    (bus.expect("the server is there"), gone)
}

fn namespace(address: &str) -> &str {
    let rest = address.split("namespace=").nth(1).expect("a namespace");
    rest.split('&').next().expect("its end")
}

/// Headers that are none, and what is said of them.
const BROKEN: [(&[u8], &str); 7] = [
    (b"NATS/1.0\r\nX-Name: M\xfcller\r\n\r\n", "not UTF-8"),
    (b"NATS/1.0\r\nM\xfcller: x\r\n\r\n", "not UTF-8"),
    (b"NATS/1.0\r\nno colon here\r\n\r\n", "no colon"),
    (b"NATS/1.0\r\ntwo words: x\r\n\r\n", "no name"),
    (b"NATS/1.0\r\nX-Name: a\rb\r\n\r\n", "a carriage return"),
    // The server keeps no status; what is left is a message without headers.
    (b"NATS/1.0 503 nobody\r\n\r\n", "not one JSON object"),
    (b"NATS/1.0 none\r\n\r\n", "not one JSON object"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_that_are_none_go_to_the_dead_letters_and_reading_goes_on() {
    let server = needs::service!("nats");
    let address = fresh(&server, "");
    let (bus, gone) = open_counting(&address).await;
    declare(&bus, "orders", 2).await;
    let handled = Arc::new(AtomicUsize::new(0));
    let seen = handled.clone();
    let subscription = bus
        .subscribe_envelope("orders", move |_| {
            seen.fetch_add(1, Ordering::SeqCst);
            async { Ok(()) }
        })
        .await
        .expect("subscribed");
    let mut stranger = Stranger::connect(&server);
    let mut number = 0;
    let mut publish_some = async || {
        for _ in 0..10 {
            let event = event(&format!("k{number}"), number);
            bus.publish_envelope("orders", &event)
                .await
                .expect("published");
            number += 1;
        }
    };
    for (headers, _) in BROKEN {
        publish_some().await;
        for partition in 0..2 {
            let subject = format!("{}.orders.2.{partition}", namespace(&address));
            stranger.publish(&subject, headers, b"hello");
        }
    }
    publish_some().await;
    settled(&bus, "orders").await;
    assert_eq!(handled.load(Ordering::SeqCst), 10 * (BROKEN.len() + 1));
    let dead = bus.dead_letters("orders").await.expect("dead letters");
    let letters = dead.list(100).await.expect("a list");
    assert_eq!(letters.len(), 2 * BROKEN.len(), "{letters:?}");
    for (headers, reason) in BROKEN {
        let told: Vec<_> = letters
            .iter()
            .filter(|letter| letter.reason.contains(reason))
            .collect();
        assert!(told.len() >= 2, "{headers:?}: {letters:?}");
        for letter in told {
            assert_eq!(letter.record.payload.as_ref(), b"hello");
            let kept = letter.record.headers.get("X-Raw-Headers");
            assert_eq!(kept.is_some(), !reason.contains("JSON"), "{letter:?}");
        }
    }
    assert_eq!(subscription.stats().dead_lettered, letters.len() as u64);
    assert_eq!(
        gone.load(Ordering::SeqCst),
        0,
        "publishes and heartbeats are not disturbed"
    );
    bus.close(SOON).await.expect("closed");
}

/// What the server takes of one message, headers and body together.
const MOST: usize = 1024 * 1024;

/// What becomes of a message.
#[derive(Clone, Copy)]
enum Fate {
    /// The handler gets it, as an event of this aggregate.
    Handled(&'static str),
    /// It is a dead letter, whose reason has this in it.
    Dead(&'static str),
}

use Fate::{Dead, Handled};
use waiting::wait_for;

/// An envelope of exactly so many bytes.
fn envelope_of(key: &str, bytes: usize) -> Vec<u8> {
    let mut envelope = event(key, 0).encode().to_vec();
    envelope.resize(bytes, b' ');
    envelope
}

/// Headers and bodies that the server takes, whatever they are, each with what becomes of it.
fn oddities() -> Vec<(Vec<u8>, Vec<u8>, Fate)> {
    let envelope = |key: &str| event(key, 0).encode().to_vec();
    let header = |lines: &str| format!("NATS/1.0\r\n{lines}\r\n\r\n").into_bytes();
    let without_id = || {
        let mut json: serde_json::Value =
            serde_json::from_slice(&envelope("none")).expect("an envelope");
        json.as_object_mut()
            .expect("an object")
            .remove("aggregate_id");
        json["later"] = serde_json::json!({"field": [null]});
        json.to_string().into_bytes()
    };
    let not_text = b"NATS/1.0\r\nX-Name: \xff\r\n\r\n".to_vec();
    let rest = |headers: &[u8]| vec![b'x'; MOST - headers.len()];
    let long = header(&format!("long: {}", "y".repeat(60_000)));
    let huge_key = header(&format!("Laneway-Key: {}", "a2V5".repeat(15_000)));
    // The server takes no more of headers, and none can be added to them.
    let full = "z".repeat(65_535 - header("z: ").len());
    let full = header(&format!("z: {full}"));
    let key = |bytes: usize| header(&format!("X-Aggregate-ID: {}", "k".repeat(bytes)));
    vec![
        // Nothing at all, no headers, and headers that are empty or have no name.
        (Vec::new(), Vec::new(), Dead("not one JSON object")),
        (
            b"NATS/1.0\r\n\r\n".to_vec(),
            Vec::new(),
            Dead("not one JSON object"),
        ),
        (
            header("empty:\r\n:nameless"),
            envelope("nameless"),
            Handled("nameless"),
        ),
        (long, envelope("long"), Handled("long")),
        // Names that are not text, and lines that are none, after one that is.
        (
            b"NATS/1.0\r\nM\xfcller: x\r\n\r\n".to_vec(),
            envelope("a"),
            Dead("not UTF-8"),
        ),
        (
            header("good: 1\r\nno colon"),
            envelope("a"),
            Dead("no colon"),
        ),
        (
            header("good: 1\r\n:\r\n::"),
            envelope("colons"),
            Handled("colons"),
        ),
        // Keys.
        (header("Laneway-Key:"), envelope("empty"), Handled("empty")),
        (
            header("Laneway-Key: !"),
            envelope("no-key"),
            Handled("no-key"),
        ),
        (huge_key.clone(), envelope("huge"), Handled("huge")),
        (huge_key, b"noise".to_vec(), Dead("not one JSON object")),
        (key(256), without_id(), Handled("by-header")),
        (key(257), without_id(), Dead("aggregate_id")),
        (key(60_000), without_id(), Dead("aggregate_id")),
        (key(0), without_id(), Dead("aggregate_id")),
        // As much as the server takes, to the byte.
        (full.clone(), envelope("headers"), Handled("headers")),
        (full, b"noise".to_vec(), Dead("not one JSON object")),
        (Vec::new(), envelope_of("full", MOST), Handled("full")),
        (Vec::new(), rest(b""), Dead("not one JSON object")),
        (not_text.clone(), rest(&not_text), Dead("not UTF-8")),
        (
            not_text.clone(),
            rest(&not_text)[4096..].to_vec(),
            Dead("not UTF-8"),
        ),
        (
            header("a: 1"),
            rest(&header("a: 1")),
            Dead("not one JSON object"),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_odd_but_whole_is_handled_or_put_aside_with_a_reason() {
    let server = needs::service!("nats");
    let address = fresh(&server, "");
    let (bus, gone) = open_counting(&address).await;
    declare(&bus, "orders", 1).await;
    let subject = format!("{}.orders.1.0", namespace(&address));
    let mut stranger = Stranger::connect(&server);
    let oddities = oddities();
    // Before there is a reader, and one by one while it reads.
    for (headers, body, _) in &oddities {
        stranger.publish(&subject, headers, body);
    }
    let handled = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = handled.clone();
    let subscription = bus
        .subscribe_envelope("orders", move |event| {
            let mut key = event.aggregate_id().to_string();
            if key.len() == 256 {
                "by-header".clone_into(&mut key);
            }
            seen.lock().expect("no panic").push(key);
            async { Ok(()) }
        })
        .await
        .expect("subscribed");
    for (headers, body, _) in &oddities {
        stranger.publish(&subject, headers, body);
    }
    settled(&bus, "orders").await;
    let twice = || oddities.iter().chain(&oddities);
    let mut expected: Vec<_> = twice()
        .filter_map(|(.., fate)| match fate {
            Handled(key) => Some((*key).to_owned()),
            Dead(_) => None,
        })
        .collect();
    expected.sort_unstable();
    let mut seen = handled.lock().expect("no panic").clone();
    seen.sort_unstable();
    assert_eq!(seen, expected);

    let dead = bus.dead_letters("orders").await.expect("dead letters");
    let mut letters = dead.list(100).await.expect("a list");
    letters.sort_by_key(|letter| letter.origin);
    let expected: Vec<_> = twice()
        .filter_map(|(_, body, fate)| match fate {
            Dead(reason) => Some((body, *reason)),
            Handled(_) => None,
        })
        .collect();
    assert_eq!(letters.len(), expected.len());
    for (letter, (body, reason)) in letters.iter().zip(expected) {
        assert!(letter.reason.contains(reason), "{} {reason}", letter.reason);
        assert_eq!(letter.missing, None);
        assert!(letter.record.payload == *body, "{} is not whole", letter.id);
    }
    assert_eq!(subscription.stats().dead_lettered, letters.len() as u64);
    assert_eq!(gone.load(Ordering::SeqCst), 0);
    // Replayed, what is no event is a dead letter again, also where there is no room for another header. Envelopes
    // whose headers were in the way come without those headers, and are handled.
    assert_eq!(dead.replay_all().await.expect("replayed"), letters.len());
    settled(&bus, "orders").await;
    let again = handled.lock().expect("no panic").split_off(seen.len());
    assert_eq!(again, ["a"; 4]);
    let left = dead.list(100).await.expect("a list");
    assert_eq!(left.len(), letters.len() - again.len());
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_message_with_headers_that_are_none_is_counted_and_skipped() {
    let server = needs::service!("nats");
    let address = fresh(&server, "");
    let bus = open(&address).await;
    let topic = Topic::plain("news").partitions(1).build().expect("valid");
    bus.declare(&topic).await.expect("declared");
    let handled = Arc::new(AtomicUsize::new(0));
    let seen = handled.clone();
    let subscription = bus
        .subscribe("news", move |_| {
            seen.fetch_add(1, Ordering::SeqCst);
            async { Ok(()) }
        })
        .await
        .expect("subscribed");
    let mut stranger = Stranger::connect(&server);
    let subject = format!("{}.news.1.0", namespace(&address));
    stranger.publish(&subject, BROKEN[0].0, b"hello");
    bus.publish("news", "fine").await.expect("published");
    wait_for!(
        { handled.load(Ordering::SeqCst) == 1 },
        "the next one is handled"
    );
    assert_eq!(subscription.stats().failed, 1);
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_no_client_can_read_is_counted_in_the_backlog() {
    let server = needs::service!("nats");
    let address = fresh(&server, "");
    let (bus, gone) = open_counting(&address).await;
    declare(&bus, "orders", 1).await;
    let subject = format!("{}.orders.1.0", namespace(&address));
    let mut stranger = Stranger::connect(&server);
    bus.publish_envelope("orders", &event("a", 0))
        .await
        .expect("published");
    stranger.publish(&subject, BROKEN[0].0, b"hello");
    let backlog = bus.backlog("orders", "default").await.expect("a backlog");
    assert_eq!(backlog.iter().map(|lag| lag.records).sum::<u64>(), 2);
    assert!(
        backlog[0]
            .oldest
            .is_some_and(|age| age < Duration::from_mins(1))
    );
    assert_eq!(gone.load(Ordering::SeqCst), 0);
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_follows_a_broken_message_is_read_while_another_key_is_behind() {
    const ROUNDS: u64 = 40;
    let server = needs::service!("nats");
    let address = fresh(&server, "");
    let bus = open(&address).await;
    declare(&bus, "orders", 1).await;
    let handled = Arc::new(AtomicUsize::new(0));
    let seen = handled.clone();
    // One key falls behind all the time: its reader turns to it again and again, whatever else it does.
    bus.subscription("orders")
        .lane_bound(1)
        .envelope(move |event| {
            let is_slow = event.aggregate_id().as_str() == "slow";
            let seen = seen.clone();
            async move {
                if is_slow {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                } else {
                    seen.fetch_add(1, Ordering::SeqCst);
                }
                Ok(())
            }
        })
        .await
        .expect("subscribed");
    let mut stranger = Stranger::connect(&server);
    let subject = format!("{}.orders.1.0", namespace(&address));
    for round in 0..ROUNDS {
        let slow: Vec<_> = (0..20).map(|number| event("slow", number)).collect();
        let published = bus.publish_envelope_batch("orders", &slow).await;
        published.expect("published");
        stranger.publish(&subject, BROKEN[0].0, b"hello");
        for number in 0..5 {
            let event = event(&format!("quick-{number}"), round);
            let published = bus.publish_envelope("orders", &event).await;
            published.expect("published");
        }
    }
    settled(&bus, "orders").await;
    assert_eq!(handled.load(Ordering::SeqCst) as u64, 5 * ROUNDS);
    bus.close(SOON).await.expect("closed");
}
