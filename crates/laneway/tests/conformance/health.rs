//! How the bus is doing: what it says is so.

use std::time::Duration;

use laneway::{Bus, Exhausted, Failure, Lag, State};
use waiting::wait_for;

use super::Fixture;
use super::support::{Gate, SOON, attempts, declare, event, publish, settled};

async fn backlog(bus: &Bus, group: &str) -> Vec<Lag> {
    bus.backlog("orders", group).await.expect("an answer")
}

async fn records(bus: &Bus, group: &str) -> u64 {
    backlog(bus, group)
        .await
        .iter()
        .map(|lag| lag.records)
        .sum()
}

pub(crate) async fn the_backlog_is_what_is_not_settled<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    let count = at.partitions(4);
    declare(&bus, "orders", count).await;
    let empty = backlog(&bus, "default").await;
    let partitions = empty.iter().map(|lag| lag.partition);
    assert!(partitions.eq(0..count), "{empty:?}");
    assert!(
        empty
            .iter()
            .all(|lag| lag.records == 0 && lag.oldest.is_none())
    );
    for key in 0..20 {
        publish(&bus, "orders", &format!("key-{key}"), [0]).await;
    }
    assert_eq!(records(&bus, "default").await, 20);
    let oldest = async || {
        backlog(&bus, "default")
            .await
            .iter()
            .filter_map(|lag| lag.oldest)
            .max()
    };
    wait_for!(
        { oldest().await > Some(Duration::from_millis(5)) },
        "the oldest gets older"
    );

    let gate = Gate::closed();
    let held = gate.clone();
    bus.subscribe_envelope("orders", move |event| {
        let gate = held.clone();
        async move {
            if event.aggregate_id().as_str() == "key-7" {
                gate.pass().await;
            }
            Ok(())
        }
    })
    .await
    .expect("subscribed");
    // What was done above it counts as done.
    wait_for!(records(&bus, "default").await == 1, "one is left");
    assert!(oldest().await.is_some());
    assert_eq!(records(&bus, "another").await, 20);
    gate.open();
    settled(&bus).await;
    assert_eq!(records(&bus, "default").await, 0);
    assert_eq!(oldest().await, None);
}

pub(crate) async fn health_tells_of_every_subscription<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    let health = bus.health().await;
    assert!(health.is_well() && health.subscriptions.is_empty());
    let gate = Gate::closed();
    let held = gate.clone();
    let orders = bus
        .subscribe_envelope("orders", move |_| {
            let gate = held.clone();
            async move {
                gate.pass().await;
                Ok(())
            }
        })
        .await
        .expect("subscribed");
    bus.subscribe("news", async |_| Ok(()))
        .await
        .expect("subscribed");
    publish(&bus, "orders", "a", [0]).await;
    wait_for!(
        { bus.health().await.longest_running.is_some() },
        "a handler runs"
    );
    let health = bus.health().await;
    assert!(health.is_well(), "{health:?}");
    assert_eq!(health.subscriptions.len(), 2);
    let mine = |health: &laneway::Health| {
        let mut mine = health.subscriptions.iter();
        let mine = mine.find(|subscription| subscription.topic.as_str() == "orders");
        mine.expect("it is there").clone()
    };
    let before = mine(&health);
    assert_eq!(
        (before.group.as_str(), &before.state),
        ("default", &State::Running)
    );
    assert_eq!((before.since_commit, before.stats.handled), (None, 0));
    gate.open();
    settled(&bus).await;
    // A commit is on its way when what it covers is settled.
    wait_for!(
        mine(&bus.health().await).since_commit.is_some(),
        "the commit has moved"
    );
    assert_eq!(mine(&bus.health().await).stats.handled, 1);
    orders.close(SOON).await;
    assert_eq!(orders.state(), State::Closed);
    assert_eq!(bus.health().await.subscriptions.len(), 1);
}

pub(crate) async fn figures_count_what_happened<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    let orders = bus
        .subscription("orders")
        .retry(attempts(2))
        .on_exhausted(Exhausted::ParkKey)
        // Parking counts, too, and a busy broker takes its time.
        .time_limit(Duration::from_secs(8))
        .dedup(100)
        .envelope(async |event| match event.aggregate_id().as_str() {
            "fails-once" if event.context().attempt() == 1 => Err(Failure::new("once")),
            "panics-once" if event.context().attempt() == 1 => panic!("once"),
            "dawdles-once" if event.context().attempt() == 1 => std::future::pending().await,
            "fails" => Err(Failure::new("always")),
            _ => Ok(()),
        })
        .await
        .expect("subscribed");
    for key in ["fine", "fails-once", "panics-once", "dawdles-once"] {
        publish(&bus, "orders", key, [0]).await;
    }
    publish(&bus, "orders", "fails", 0..3).await;
    let twice = event("fine", 1);
    for _ in 0..2 {
        bus.publish_envelope("orders", &twice)
            .await
            .expect("published");
    }
    settled(&bus).await;
    let stats = orders.stats();
    assert_eq!(stats.handled, 5);
    assert_eq!(stats.failed, 3 + 2, "three once, one twice");
    assert_eq!(stats.parked, 3);
    assert_eq!(stats.dead_lettered, 0);
    assert_eq!(stats.deduplicated, 1);
}
