//! Closing: what runs is finished, what is left is told, and comes again.

use std::time::Duration;

use laneway::topic::Topic;
use laneway::{Bus, Error, Subscription};
use waiting::wait_for;

use super::Fixture;
use super::support::{Gate, Log, SOON, declare, event, left, publish, settled};

/// Notes when it begins and when it ends; in between it waits.
async fn waiting(bus: &Bus, begun: &Log, done: &Log, gate: &Gate) -> Subscription {
    let (begun, done, gate) = (begun.clone(), done.clone(), gate.clone());
    bus.subscribe_envelope("orders", move |event| {
        let (begun, done, gate) = (begun.clone(), done.clone(), gate.clone());
        async move {
            begun.note(&event);
            gate.pass().await;
            done.note(&event);
            Ok(())
        }
    })
    .await
    .expect("subscribed")
}

pub(crate) async fn closing_finishes_what_runs_and_reports_the_rest<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(1)).await;
    let (begun, done, gate) = (Log::default(), Log::default(), Gate::closed());
    waiting(&bus, &begun, &done, &gate).await;
    publish(&bus, "orders", "a", 0..5).await;
    publish(&bus, "orders", "b", 0..5).await;
    wait_for!(
        { begun.len() == 2 && bus.lanes().stats().topics[0].depth.messages == 10 },
        "both run, and the others wait behind them"
    );
    let closing = tokio::spawn({
        let bus = bus.clone();
        async move { bus.close(SOON).await }
    });
    // It waits for the handlers that run, and starts no others.
    wait_for!(bus.topics().await.is_err(), "it is closing");
    assert!(!closing.is_finished());
    gate.open();
    let report = closing.await.expect("no panic").expect("closed");
    assert_eq!(done.len(), begun.len(), "what began was finished");
    let abandoned: usize = report.left.iter().map(|left| left.abandoned).sum();
    assert_eq!(abandoned + done.len(), 10);
    assert_eq!(report.is_clean(), abandoned == 0);
    for key in ["a", "b"] {
        assert!(
            done.of(key)
                .iter()
                .copied()
                .eq(0..done.of(key).len() as u64)
        );
    }
}

pub(crate) async fn a_handler_over_the_deadline_is_cancelled<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    let (begun, done, gate) = (Log::default(), Log::default(), Gate::closed());
    let orders = waiting(&bus, &begun, &done, &gate).await;
    publish(&bus, "orders", "a", 0..3).await;
    wait_for!(
        { begun.len() == 1 && bus.lanes().stats().topics[0].depth.messages == 3 },
        "it runs, and the others wait behind it"
    );
    let report = orders.close(Duration::from_millis(20)).await;
    // Where the machine is too busy to drop its future, the one that runs is told apart.
    let left = &report.left[0];
    assert_eq!(left.abandoned + left.stuck, 3, "{report:?}");
    assert_eq!(left.keys, ["a"]);
    assert_eq!(orders.stats().failed, 0, "it is nobody's fault");
    // It was not done, and comes again.
    gate.open();
    waiting(&bus, &begun, &done, &gate).await;
    settled(&bus).await;
    assert_eq!(done.of("a"), [0, 1, 2]);
}

pub(crate) async fn a_subscription_is_closed_alone<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    let (one, two) = (Log::default(), Log::default());
    let subscribe = async |group: &str, log: &Log| {
        let seen = log.clone();
        let orders = bus.subscription("orders").group(group);
        let orders = orders.envelope(move |event| {
            seen.note(&event);
            async { Ok(()) }
        });
        orders.await.expect("subscribed")
    };
    let first = subscribe("one", &one).await;
    subscribe("two", &two).await;
    publish(&bus, "orders", "a", 0..5).await;
    settled(&bus).await;
    assert!(first.close(SOON).await.is_clean());
    assert!(first.close(SOON).await.is_clean(), "twice does no harm");
    publish(&bus, "orders", "a", 5..10).await;
    settled(&bus).await;
    assert_eq!(two.of("a"), (0..10).collect::<Vec<_>>(), "it goes on");
    assert_eq!(one.of("a"), (0..5).collect::<Vec<_>>(), "it has ended");
    subscribe("one", &one).await;
    settled(&bus).await;
    assert_eq!(one.of("a"), (0..10).collect::<Vec<_>>(), "and goes on");
}

pub(crate) async fn a_group_is_left_by_whoever_closes<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    // What closing has to wait for may be over before it looks, or not.
    for _ in 0..20 {
        let subscription = bus.subscribe_envelope("orders", async |_| Ok(())).await;
        let subscription = subscription.expect("subscribed");
        assert!(subscription.close(SOON).await.is_clean());
        bus.delete("orders").await.expect("nobody reads it");
    }
}

pub(crate) async fn nothing_that_was_settled_runs_again<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(1)).await;
    let (log, gate) = (Log::default(), Gate::closed());
    let subscribe = async || {
        let (seen, held) = (log.clone(), gate.clone());
        let orders = bus.subscribe_envelope("orders", move |event| {
            let (log, gate) = (seen.clone(), held.clone());
            async move {
                if event.aggregate_id().as_str() == "slow" {
                    gate.pass().await;
                }
                log.note(&event);
                Ok(())
            }
        });
        orders.await.expect("subscribed")
    };
    publish(&bus, "orders", "slow", [0]).await;
    for number in 0..100 {
        publish(&bus, "orders", &format!("key-{number}"), [number]).await;
    }
    // Whatever finishes in whatever order: the lowest one does not.
    for _ in 0..3 {
        let orders = subscribe().await;
        wait_for!(log.len() == 100, "the others are done");
        // Closing gives the broker a second to take what was settled, and it may need longer.
        left(&bus, "default", 1).await;
        orders.close(Duration::from_millis(20)).await;
        assert_eq!(log.len(), 100);
    }
    gate.open();
    subscribe().await;
    settled(&bus).await;
    assert_eq!(log.len(), 101);
}

pub(crate) async fn closing_goes_on_when_its_caller_gives_up<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    let (begun, done, gate) = (Log::default(), Log::default(), Gate::closed());
    let orders = waiting(&bus, &begun, &done, &gate).await;
    publish(&bus, "orders", "a", [0]).await;
    wait_for!(begun.len() == 1, "it runs");
    let impatient = Duration::from_millis(5);
    let given_up = tokio::time::timeout(impatient, orders.close(SOON)).await;
    assert!(given_up.is_err());
    gate.open();
    wait_for!(
        { orders.state() == laneway::State::Closed },
        "it is closed all the same"
    );
    assert_eq!(done.of("a"), [0]);
    let backlog = bus.backlog("orders", "default").await.expect("there");
    assert!(backlog.iter().all(|lag| lag.records == 0), "and committed");
    waiting(&bus, &begun, &done, &gate).await;
}

pub(crate) async fn a_closed_bus_says_so<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    publish(&bus, "orders", "a", [0]).await;
    bus.publish("news", "hello").await.expect("published");
    let dead = bus.dead_letters("orders").await.expect("there");
    let parked = bus.parked("orders").await.expect("there");
    let report = bus.close(SOON).await.expect("closed");
    assert!(report.is_clean());

    let closed = |error: Option<Error>| assert!(matches!(error, Some(Error::Closed)), "{error:?}");
    closed(bus.close(SOON).await.err());
    closed(bus.publish("news", "hello").await.err());
    closed(bus.publish_batch("news", []).await.err());
    closed(bus.publish_envelope("orders", &event("a", 0)).await.err());
    closed(bus.publish_envelope_batch("orders", &[]).await.err());
    closed(bus.subscribe("news", async |_| Ok(())).await.err());
    closed(
        bus.subscribe_envelope("orders", async |_| Ok(()))
            .await
            .err(),
    );
    let topic = Topic::domain("more").build().expect("a valid topic");
    closed(bus.declare(&topic).await.err());
    closed(bus.topics().await.err());
    closed(bus.describe("orders").await.err());
    closed(bus.delete("orders").await.err());
    closed(bus.backlog("orders", "default").await.err());
    closed(bus.dead_letters("orders").await.err());
    closed(bus.parked("orders").await.err());
    closed(dead.list(1).await.err());
    closed(dead.replay_all().await.err());
    closed(dead.discard(&[0]).await.err());
    closed(parked.list(1).await.err());
    closed(parked.keys().await.err());
    closed(parked.release("default", "a").await.err());
    closed(parked.discard(&[0]).await.err());
    assert!(!bus.health().await.is_well());
}
