//! Logs on NATS do what every log must, and go on when the server was away.

mod log;
mod nats;

use std::time::Instant;

use async_nats::jetstream::{self, stream};
use laneway::log::{Error, Fault};
use laneway::topic::{Retention, Storage, Topic};

use log::{Fixture, PARTITIONS, TOPIC, bodies, bytes, fault, next, numbered};
use nats::server::NatsServer;
use nats::{SOON, fresh, open};

/// A namespace of its own on the server.
struct Nats(String);

impl Fixture for Nats {
    fn missing() -> Option<String> {
        needs::address("nats").err()
    }

    fn new() -> Self {
        let address = needs::address("nats").expect("it is not missing");
        Self(fresh(&address, ""))
    }

    fn address(&self) -> String {
        self.0.clone()
    }
}

log::of_every_log!(Nats);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_goes_on_when_the_server_was_away() {
    let mut server = NatsServer::start(&needs::service!("nats_bin"), |_| String::new());
    let bus = open(&fresh(&server.address(), "")).await;
    let log = bus.log(TOPIC, PARTITIONS).await.expect("opened");
    let from = log.bounds(0).await.expect("bounds").start;
    let mut follower = log.follow(0, from);
    for round in 0..3 {
        let numbers = 10 * round..10 * round + 10;
        append_until_it_is_there(&log, &numbered(numbers.clone())).await;
        let read = read_on(&mut follower, 10).await;
        assert_eq!(bodies(read), numbered(numbers));
        server.kill();
        server.resume();
    }
    bus.close(SOON).await.expect("closed");
}

/// Appends each record alone, again and again until it is there.
async fn append_until_it_is_there(log: &laneway::log::Log, records: &[bytes::Bytes]) {
    for record in records {
        let deadline = Instant::now() + SOON;
        loop {
            let end = log.bounds(0).await.map(|bounds| bounds.end);
            match (end, log.append(0, vec![record.clone()]).await) {
                (_, Ok(_)) => break,
                (Ok(end), Err(Error::Unknown(_))) => {
                    let now = log.bounds(0).await;
                    if now.is_ok_and(|now| now.end > end) {
                        break;
                    }
                }
                (_, Err(error)) => assert!(Instant::now() < deadline, "{error}"),
            }
        }
    }
}

/// So many records, whatever errors come between them.
async fn read_on(follower: &mut laneway::log::Follower, count: usize) -> Vec<(u64, bytes::Bytes)> {
    let deadline = Instant::now() + SOON;
    let mut read = Vec::new();
    while read.len() < count {
        match follower.next().await {
            Ok(records) => read.extend(records),
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
    read
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_may_lose_messages_is_refused() {
    let server = needs::service!("nats");
    let address = fresh(&server, "");
    let bus = open(&address).await;
    let topic = Topic::plain(TOPIC)
        .storage(Storage::File)
        .retention(Retention::FOREVER)
        .partitions(PARTITIONS)
        .build();
    bus.declare(&topic.expect("valid")).await.expect("declared");
    let error = bus.log(TOPIC, PARTITIONS).await.expect_err("it discards");
    let text = error.to_string();
    assert!(
        matches!(error, Error::Fault(Fault::Settings { .. })),
        "{text}"
    );
    assert!(
        text.contains("discard Old") && text.contains("discard new"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_with_headers_that_no_client_can_read_comes_through() {
    let server = NatsServer::start(&needs::service!("nats_bin"), |_| String::new());
    let bus = open(&format!("{}?namespace=n", server.address())).await;
    let log = bus.log("odd", 1).await.expect("opened");
    let mut follower = log.follow(0, 0);
    log.append(0, vec![bytes(0)]).await.expect("appended");
    let headers = "NATS/1.0\r\na: M\u{fc}ller\r\n\r\n";
    let size = headers.chars().count();
    let raw = format!("HPUB n.odd.1.0 {size} {}\r\n{headers}body\r\n", size + 4);
    publish_raw(server.port(), &raw);
    log.append(0, vec![bytes(2)]).await.expect("appended");
    let read = bodies(next(&mut follower, 3).await);
    assert_eq!(read, [bytes(0), "body".into(), bytes(2)]);
    bus.close(SOON).await.expect("closed");
}

/// Sends a line of the protocol as it is, with one character as a single byte.
fn publish_raw(port: u16, line: &str) {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("a server");
    let mut bytes = b"CONNECT {\"verbose\":false,\"headers\":true}\r\n".to_vec();
    bytes.extend(
        line.chars()
            .map(|c| u8::try_from(u32::from(c)).expect("a byte")),
    );
    bytes.extend(b"PING\r\n");
    stream.write_all(&bytes).expect("sent");
    let limit = Some(SOON);
    stream.set_read_timeout(limit).expect("a limit");
    let (mut answer, mut some) = (String::new(), [0; 1024]);
    while !answer.contains("PONG") {
        let count = stream.read(&mut some).expect("an answer");
        assert!(count > 0, "{answer}");
        answer.push_str(&String::from_utf8_lossy(&some[..count]));
    }
    assert!(!answer.contains("-ERR"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_other_tools_made_anew_is_told() {
    let server = needs::service!("nats");
    let address = fresh(&server, "");
    let bus = open(&address).await;
    let log = bus.log("made", 1).await.expect("opened");
    log.append(0, numbered(0..3)).await.expect("appended");
    let mut follower = log.follow(0, 0);
    next(&mut follower, 3).await;
    let context = jetstream::new(async_nats::connect(&server).await.expect("a client"));
    let namespace = address.split_once("namespace=").expect("it has one").1;
    let namespace = namespace.split('&').next().expect("a name");
    let name = format!("{namespace}-made");
    let config = context.get_stream(&name).await.expect("it is there");
    let config: stream::Config = config.cached_info().config.clone();
    context.delete_stream(&name).await.expect("deleted");
    let made = context.create_stream(config).await;
    made.expect("made");
    match fault(&mut follower).await {
        Fault::OtherTopic { was, .. } => assert_eq!(was, log.identity()),
        other => panic!("{other}"),
    }
}
