//! Partitions that nobody leads: their broker is down. They are there all the same, with all that groups have
//! settled, and what is given up stays given up.

mod kafka;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use laneway::{Bus, Error, Subscription};
use rdkafka::consumer::{BaseConsumer, Consumer};

use kafka::server::KafkaServer;
use kafka::{SOON, client, declare, event, open, publish, settled};
use waiting::wait_for;

const PARTITIONS: u32 = 4;
const EVENTS: u64 = 40;

/// Counts what is handled.
async fn counting(bus: &Bus) -> (Subscription, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    let handled = count.clone();
    let subscribing = bus.subscribe_envelope("orders", move |_| {
        handled.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    });
    (subscribing.await.expect("subscribed"), count)
}

/// Who leads each partition of `orders`; -1 for nobody.
fn leaders(address: &str) -> Vec<i32> {
    let asker: BaseConsumer = client(address).create().expect("a client");
    let answer = asker.fetch_metadata(Some("orders"), SOON);
    let metadata = answer.expect("an answer");
    let topic = &metadata.topics()[0];
    topic
        .partitions()
        .iter()
        .map(rdkafka::metadata::MetadataPartition::leader)
        .collect()
}

/// The last offsets of all partitions together.
fn published(address: &str) -> i64 {
    let asker: BaseConsumer = client(address).create().expect("a client");
    let end = |partition| {
        let edges = asker.fetch_watermarks("orders", partition, SOON);
        edges.expect("an answer").1
    };
    (0..PARTITIONS.cast_signed()).map(end).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_without_a_leader_costs_no_group_its_position() {
    needs::slow!();
    let program = needs::service!("kafka_bin");
    let first = async |address: &str| {
        // What the bus and groups are kept in is on the first one.
        let bus = open(&format!("kafka://{address}")).await;
        declare(&bus, "warm", 1).await;
        publish(&bus, "warm", &event("a", 0)).await;
        let subscribing = bus.subscribe_envelope("warm", |_| async { Ok(()) });
        subscribing.await.expect("subscribed");
        settled(&bus, "warm").await;
        bus.close(SOON).await.expect("closed");
    };
    let ([_one, mut two], [address, _]) = KafkaServer::pair(&program, first).await;
    let bus = Bus::builder()
        .deadline(Duration::from_secs(24))
        .open(&format!("kafka://{address}"))
        .await
        .expect("the brokers are there");
    declare(&bus, "orders", PARTITIONS).await;
    for number in 0..EVENTS {
        publish(&bus, "orders", &event(&format!("key-{number}"), 0)).await;
    }
    let (subscription, handled) = counting(&bus).await;
    settled(&bus, "orders").await;
    assert_eq!(handled.load(Ordering::SeqCst), EVENTS);
    subscription.close(SOON).await;

    two.kill();
    wait_for!({ leaders(&address).contains(&-1) }, "nobody leads some");
    let led = leaders(&address);
    // Whatever looks the topic up.
    let asked = bus.backlog("orders", "default").await;
    asked.expect_err("nobody knows the backlog of a partition without a leader");
    let found = bus.describe("orders").await.expect("an answer");
    assert_eq!(found.expect("it is there").partitions().get(), PARTITIONS);
    bus.topics().await.expect("it is listed");
    // What is refused is not published later.
    let mut refused = 0;
    for number in 0..8 {
        let event = event(&format!("late-{number}"), 0);
        match bus.publish_envelope("orders", &event).await {
            Ok(_) => {}
            Err(Error::TimedOut { .. }) => panic!("the client has not given up by then"),
            Err(error) => {
                refused += 1;
                let text = error.to_string();
                assert!(text.contains("may have been published"), "{text}");
            }
        }
        if refused > 0 {
            break;
        }
    }
    assert!(refused > 0, "{led:?}");
    // The others are handled meanwhile.
    let (subscription, again) = counting(&bus).await;
    let mut reached = 0;
    for number in 0..200 {
        let key = format!("key-{number}");
        let partitions = laneway::topic::Partitions::new(PARTITIONS).expect("a number");
        let partition = laneway::topic::partition_of(&key, partitions);
        if led[partition as usize] >= 0 && reached < 5 {
            publish(&bus, "orders", &event(&key, 1)).await;
            reached += 1;
        }
    }
    wait_for!(
        { again.load(Ordering::SeqCst) >= 5 },
        "those that are led are handled"
    );
    subscription.close(SOON).await;
    let before = again.load(Ordering::SeqCst);

    two.start_again();
    wait_for!({ !leaders(&address).contains(&-1) }, "all are led again");
    let (subscription, after) = counting(&bus).await;
    settled(&bus, "orders").await;
    subscription.close(SOON).await;
    let all = before + after.load(Ordering::SeqCst);
    let new = u64::try_from(published(&address)).expect("a number") - EVENTS;
    assert_eq!(all, new, "only what is new was handled");
    assert!(new <= 5 + 7, "{new}: what was refused is not there");
    bus.close(SOON).await.expect("closed");
}
