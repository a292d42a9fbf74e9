//! A subscription tells which partitions this member of the group holds, as members come and go.

use std::collections::BTreeMap;
use std::time::Duration;

use laneway::topic::Topic;
use laneway::{Bus, Subscription};
use tokio::sync::watch;
use waiting::wait_for;

const PARTITIONS: u32 = 8;
const SOON: Duration = Duration::from_secs(30);

/// None of the members is taken for dead because the machine is busy.
const LONG_SESSION: &str = "session_ms=20000";

async fn subscribed(bus: &Bus) -> (Subscription, watch::Receiver<BTreeMap<u32, u64>>) {
    let topic = Topic::domain("orders").partitions(PARTITIONS).build();
    bus.declare(&topic.expect("valid")).await.expect("declared");
    let subscribing = bus.subscribe_envelope("orders", |_| async { Ok(()) });
    let subscription = subscribing.await.expect("subscribed");
    let assigned = subscription.assigned();
    (subscription, assigned)
}

#[tokio::test]
async fn the_only_member_holds_all_until_it_closes() {
    let bus = Bus::open("memory:").await.expect("opened");
    let (subscription, assigned) = subscribed(&bus).await;
    let held: Vec<u32> = assigned.borrow().keys().copied().collect();
    assert_eq!(held, (0..PARTITIONS).collect::<Vec<_>>());
    subscription.close(SOON).await;
    assert!(assigned.borrow().is_empty());
    let (_subscription, again) = subscribed(&bus).await;
    assert!(
        again.borrow().values().all(|epoch| *epoch == 2),
        "{again:?}"
    );
}

async fn hold(address: &str) {
    let one = Bus::open(address).await.expect("opened");
    let (_first, mut of_one) = subscribed(&one).await;
    wait_for!(
        of_one.borrow().len() == PARTITIONS as usize,
        "one holds all"
    );
    let before = of_one.borrow_and_update().clone();
    let two = Bus::open(address).await.expect("opened");
    let (second, of_two) = subscribed(&two).await;
    let half = PARTITIONS as usize / 2;
    wait_for!(of_two.borrow().len() == half, "two holds its half");
    wait_for!(of_one.borrow().len() == half, "one holds the rest");
    let (mine, theirs) = (of_one.borrow().clone(), of_two.borrow().clone());
    for (partition, epoch) in theirs {
        assert!(!mine.contains_key(&partition), "both hold {partition}");
        assert!(epoch > before[&partition], "{partition} has another owner");
    }
    assert!(of_one.has_changed().expect("it is there"), "one was told");
    second.close(SOON).await;
    assert!(of_two.borrow().is_empty());
    wait_for!(
        of_one.borrow().len() == PARTITIONS as usize,
        "one holds all again"
    );
    one.close(SOON).await.expect("closed");
    assert!(of_one.borrow().is_empty());
    two.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_on_nats_share_and_take_over() {
    let server = needs::service!("nats");
    hold(&format!(
        "{server}?namespace=assigned{}&{LONG_SESSION}",
        std::process::id()
    ))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_on_kafka_share_and_take_over() {
    let servers = needs::service!("kafka");
    hold(&format!(
        "kafka://{servers}?namespace=assigned{}&{LONG_SESSION}",
        std::process::id()
    ))
    .await;
}
