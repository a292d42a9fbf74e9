//! Logs on Kafka do what every log must, and go on when the broker was away.

mod kafka;
mod log;

use std::time::{Duration, Instant};

use laneway::log::{Error, Fault};
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;

use kafka::raw::{RawRecord, produce};
use kafka::server::{KafkaServer, free_ports};
use kafka::{SOON, client, fresh, open};
use log::{Fixture, PARTITIONS, TOPIC, bodies, bytes, fault, next, numbered};

/// A namespace of its own on the cluster.
struct Kafka(String);

impl Fixture for Kafka {
    fn missing() -> Option<String> {
        needs::address("kafka").err()
    }

    fn new() -> Self {
        let servers = needs::address("kafka").expect("it is not missing");
        Self(fresh(&servers, ""))
    }

    fn address(&self) -> String {
        self.0.clone()
    }
}

log::of_every_log!(Kafka);

/// What a topic of such a bus is called on the cluster.
fn name_of(address: &str, topic: &str) -> String {
    let namespace = address.split_once("namespace=").expect("it has one").1;
    let namespace = namespace.split('&').next().expect("a name");
    format!("{namespace}.{topic}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_goes_on_when_the_broker_was_away() {
    needs::slow!();
    let program = needs::service!("kafka_bin");
    let [port] = free_ports();
    let settings =
        format!("listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:CONTROLLER_PORT\n");
    let mut server = KafkaServer::start(&program, port, &settings, &[]);
    let bus = open(&format!("kafka://127.0.0.1:{port}")).await;
    let log = bus.log(TOPIC, PARTITIONS).await.expect("opened");
    let mut follower = log.follow(0, 0);
    for round in 0..2 {
        let numbers = 10 * round..10 * round + 10;
        let deadline = Instant::now() + 4 * SOON;
        while let Err(error) = log.append(0, numbered(numbers.clone())).await {
            // One that is not known would have to be recognised: the broker is there by now.
            assert!(Instant::now() < deadline && !error.is_unknown(), "{error}");
        }
        let mut read = Vec::new();
        while read.len() < 10 {
            match follower.next().await {
                Ok(records) => read.extend(records),
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        }
        assert_eq!(bodies(read), numbered(numbers));
        if round == 0 {
            server.kill();
            server.start_again();
        }
    }
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_may_lose_records_is_refused() {
    let servers = needs::service!("kafka");
    let address = fresh(&servers, "");
    let bus = open(&address).await;
    bus.log(TOPIC, PARTITIONS).await.expect("opened");
    let admin: AdminClient<DefaultClientContext> = client(&servers).create().expect("a client");
    let name = name_of(&address, TOPIC);
    let compacted = AlterConfig::new(ResourceSpecifier::Topic(&name))
        .set("cleanup.policy", "compact")
        .set("retention.ms", "-1")
        .set("retention.bytes", "-1");
    let altered = admin
        .alter_configs(&[compacted], &AdminOptions::new())
        .await;
    for result in altered.expect("an answer") {
        result.expect("altered");
    }
    let deadline = Instant::now() + 4 * SOON;
    let error = loop {
        // The brokers learn of it in a moment.
        match bus.log(TOPIC, PARTITIONS).await {
            Err(error) => break error,
            Ok(_) => assert!(Instant::now() < deadline, "it is taken"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let text = error.to_string();
    assert!(
        matches!(error, Error::Fault(Fault::Settings { .. })),
        "{text}"
    );
    assert!(
        text.contains("=compact") && text.contains("=delete"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_without_a_value_comes_through() {
    let servers = needs::service!("kafka");
    let address = fresh(&servers, "");
    let bus = open(&address).await;
    let log = bus.log("odd", 1).await.expect("opened");
    let odd = RawRecord {
        key: Some(vec![0xff]),
        value: None,
        headers: vec![(vec![0xfe], None)],
    };
    produce(&servers, &name_of(&address, "odd"), 0, &[odd]);
    log.append(0, vec![bytes(1)]).await.expect("appended");
    let read = bodies(next(&mut log.follow(0, 0), 2).await);
    assert_eq!(read, [bytes::Bytes::new(), bytes(1)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_other_tools_deleted_is_told() {
    let servers = needs::service!("kafka");
    let address = fresh(&servers, "");
    let bus = open(&address).await;
    let log = bus.log("gone", 1).await.expect("opened");
    log.append(0, numbered(0..3)).await.expect("appended");
    let mut follower = log.follow(0, 0);
    next(&mut follower, 3).await;
    let admin: AdminClient<DefaultClientContext> = client(&servers).create().expect("a client");
    let name = name_of(&address, "gone");
    let deleted = admin.delete_topics(&[&name], &AdminOptions::new()).await;
    for result in deleted.expect("an answer") {
        result.expect("deleted");
    }
    match fault(&mut follower).await {
        Fault::OtherTopic { was, .. } => assert_eq!(was, log.identity()),
        other => panic!("{other}"),
    }
}
