//! Topics of others, and offsets with gaps.

mod kafka;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use laneway::topic::{Compression, Growth, Kind, Retention, Strategy, Topic};
use laneway::{BrokerError, Bus, Error};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use tokio::time::sleep;

use kafka::{SOON, client, declare, event, fresh, make, open, publish, settled, unique};
use waiting::wait_for;

/// The numbers of each key, in the order in which they were handled.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<BTreeMap<String, Vec<u64>>>>);

impl Log {
    async fn of(bus: &Bus, topic: &str) -> Self {
        let log = Self::default();
        let noted = log.clone();
        bus.subscribe_envelope(topic, move |event| {
            let key = event.aggregate_id().to_string();
            let number = event.json().expect("a number");
            let mut log = noted.0.lock().expect("no panic");
            log.entry(key).or_default().push(number);
            drop(log);
            async { Ok(()) }
        })
        .await
        .expect("subscribed");
        log
    }

    fn read(&self) -> BTreeMap<String, Vec<u64>> {
        self.0.lock().expect("no panic").clone()
    }
}

async fn send(producer: &FutureProducer, topic: &str, key: &str, number: u64) {
    let payload = event(key, number).encode();
    let record = FutureRecord::to(topic)
        .key(key)
        .payload(&payload[..])
        .partition(0);
    let sent = producer.send(record, SOON).await;
    sent.expect("sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gaps_of_transactions_are_harmless() {
    let servers = needs::service!("kafka");
    let topic = unique("txn");
    make(&servers, &topic, 1, &[]).await;
    let producer: FutureProducer = client(&servers)
        .set("transactional.id", unique("txn"))
        .create()
        .expect("a producer");
    producer.init_transactions(SOON).expect("ready");
    for number in 0..20 {
        producer.begin_transaction().expect("begun");
        for key in ["a", "b"] {
            send(&producer, &topic, key, number).await;
        }
        if number % 4 == 3 {
            producer.abort_transaction(SOON).expect("aborted");
        } else {
            producer.commit_transaction(SOON).expect("committed");
        }
    }
    let bus = open(&format!("kafka://{servers}")).await;
    let log = Log::of(&bus, &topic).await;
    settled(&bus, &topic).await;
    let committed: Vec<u64> = (0..20).filter(|number| number % 4 != 3).collect();
    let expected = ["a", "b"].map(|key| (key.to_owned(), committed.clone()));
    assert_eq!(log.read(), BTreeMap::from(expected));
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gaps_of_compaction_are_harmless() {
    const NUMBERS: u64 = 200;
    needs::slow!();
    let servers = needs::service!("kafka");
    let topic = unique("compacted");
    let config = [
        ("cleanup.policy", "compact"),
        ("min.cleanable.dirty.ratio", "0.01"),
        ("segment.ms", "100"),
        ("max.compaction.lag.ms", "200"),
    ];
    make(&servers, &topic, 1, &config).await;
    let producer: FutureProducer = client(&servers).create().expect("a producer");
    for number in 0..NUMBERS {
        for key in ["a", "b", "c"] {
            send(&producer, &topic, key, number).await;
        }
    }
    // Whatever is older than the segment that is written to can go.
    let count = || {
        let consumer: BaseConsumer = client(&servers)
            .set("group.id", "nobody")
            .set("enable.partition.eof", "true")
            .create()
            .expect("a consumer");
        let mut list = rdkafka::TopicPartitionList::new();
        list.add_partition_offset(&topic, 0, rdkafka::Offset::Beginning)
            .expect("an offset");
        consumer.assign(&list).expect("assigned");
        let messages = std::iter::from_fn(|| match consumer.poll(SOON) {
            Some(Ok(_)) => Some(()),
            _ => None,
        });
        messages.count() as u64
    };
    let deadline = tokio::time::Instant::now() + Duration::from_mins(4);
    while count() > NUMBERS {
        assert!(tokio::time::Instant::now() < deadline, "never compacted");
        sleep(Duration::from_millis(200)).await;
        send(&producer, &topic, "a", NUMBERS).await;
    }
    let bus = open(&format!("kafka://{servers}")).await;
    let log = Log::of(&bus, &topic).await;
    for number in 0..5 {
        send(&producer, &topic, "d", number).await;
    }
    settled(&bus, &topic).await;
    let log = log.read();
    assert_eq!(log["d"], [0, 1, 2, 3, 4]);
    for key in ["b", "c"] {
        let numbers = &log[key];
        assert_eq!(numbers.last(), Some(&(NUMBERS - 1)), "{key}");
        assert!(numbers.is_sorted(), "{numbers:?}");
        assert!(numbers.len() < 200, "there are gaps");
    }
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_of_others_is_taken_as_it_is() {
    let servers = needs::service!("kafka");
    let topic = unique("theirs");
    make(&servers, &topic, 3, &[("retention.ms", "3600000")]).await;
    let bus = open(&format!("kafka://{servers}")).await;
    let found = bus.describe(&topic).await.expect("an answer");
    let found = found.expect("it is there");
    assert_eq!((found.kind(), found.partitions().get()), (Kind::Domain, 3));
    let hour = Retention::FOREVER.age(Duration::from_hours(1));
    assert_eq!(found.retention(), hour);
    publish(&bus, &topic, &event("a", 1)).await;
    let log = Log::of(&bus, &topic).await;
    settled(&bus, &topic).await;
    assert_eq!(log.read()["a"], [1]);
    let refused = bus.delete(&topic).await;
    let is_foreign = matches!(refused, Err(Error::Broker(BrokerError::Foreign { .. })));
    assert!(is_foreign, "{refused:?}");
    let more = Topic::domain(&topic).partitions(8).retention(hour);
    let more = more.build().expect("valid");
    let grown = bus.declare_with(&more, Strategy::CreateOrUpdate, Growth::Forced);
    let refused = grown.await;
    let is_foreign = matches!(refused, Err(Error::Broker(BrokerError::Foreign { .. })));
    assert!(is_foreign, "{refused:?}");
    bus.close(SOON).await.expect("closed");
    // One that is declared to be plain is plain for everybody from then on.
    let topic = unique("plain");
    make(&servers, &topic, 3, &[("retention.ms", "3600000")]).await;
    let bus = open(&format!("kafka://{servers}")).await;
    let plain = Topic::plain(&topic).partitions(3).retention(hour);
    bus.declare(&plain.build().expect("valid"))
        .await
        .expect("it is one now");
    bus.close(SOON).await.expect("closed");
    let bus = open(&format!("kafka://{servers}")).await;
    bus.publish(&topic, "hello").await.expect("published");
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_read_what_is_published() {
    let servers = needs::service!("kafka");
    let topic = unique("ours");
    let bus = open(&format!("kafka://{servers}")).await;
    declare(&bus, &topic, 1).await;
    publish(&bus, &topic, &event("order-1", 7)).await;
    let read = tokio::task::spawn_blocking({
        let topic = topic.clone();
        move || {
            let mut config: ClientConfig = client(&servers);
            config.set("group.id", unique("plain"));
            config.set("auto.offset.reset", "earliest");
            let consumer: BaseConsumer = config.create().expect("a consumer");
            consumer.subscribe(&[&topic]).expect("subscribed");
            let deadline = std::time::Instant::now() + 4 * SOON;
            loop {
                assert!(std::time::Instant::now() < deadline, "nothing came");
                if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
                    return message.detach();
                }
            }
        }
    });
    let message = read.await.expect("no panic");
    assert_eq!(message.key(), Some(&b"order-1"[..]));
    let value: serde_json::Value =
        serde_json::from_slice(message.payload().expect("a body")).expect("JSON");
    assert_eq!(value["aggregate_id"], "order-1");
    assert_eq!(value["payload"], 7);
    let headers = message.headers().expect("headers");
    let names: Vec<_> = headers.iter().map(|header| header.key.to_owned()).collect();
    for name in [
        "X-Event-ID",
        "X-Aggregate-ID",
        "X-Event-Type",
        "X-Event-Version",
    ] {
        assert!(
            names.iter().any(|known| known == name),
            "{name} in {names:?}"
        );
    }
    bus.delete(&topic).await.expect("deleted");
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_kafka_does_not_have_is_refused() {
    let address = fresh(&needs::service!("kafka"), "");
    let bus = open(&address).await;
    for topic in [
        Topic::domain("a").compression(Compression::S2),
        Topic::domain("a").retention(Retention::FOREVER.count(5)),
    ] {
        let refused = bus.declare(&topic.build().expect("valid")).await;
        let unsupported = matches!(refused, Err(Error::Broker(BrokerError::Unsupported { .. })));
        assert!(unsupported, "{refused:?}");
    }
    let zstd = Topic::domain("b")
        .partitions(1)
        .audit_trail()
        .build()
        .expect("valid");
    assert_eq!(bus.declare(&zstd).await.expect("declared"), zstd);
    publish(&bus, "b", &event("a", 1)).await;
    let log = Log::of(&bus, "b").await;
    settled(&bus, "b").await;
    assert_eq!(log.read()["a"], [1]);
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_tell_how_they_are_doing() {
    let address = fresh(&needs::service!("kafka"), "");
    let bus = open(&address).await;
    let mut registry = Registry::default();
    bus.register_metrics(&mut registry);
    publish(&bus, "orders", &event("a", 1)).await;
    wait_for!(
        {
            let mut page = String::new();
            encode(&mut page, &registry).expect("a page");
            page.contains("laneway_bus_kafka_connected_brokers{client=\"producer\"} 1")
        },
        "the producer has told"
    );
    bus.close(SOON).await.expect("closed");
}
