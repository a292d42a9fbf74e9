//! Subscriptions that stop at the first event that fails for good.

use laneway::{Bus, Exhausted, State, Subscription, testing};
use waiting::wait_for;

use super::Fixture;
use super::support::{Log, SOON, attempts, declare, event, fail_if, number, publish, settled};

async fn stopping(bus: &Bus, log: &Log, fails: bool) -> Subscription {
    let seen = log.clone();
    bus.subscription("orders")
        .group("careful")
        .retry(attempts(2))
        .on_exhausted(Exhausted::Stop)
        .envelope(move |event| {
            let fails = fails && number(&event) == 3;
            if !fails {
                seen.note(&event);
            }
            async move { fail_if(fails, "this cannot be") }
        })
        .await
        .expect("subscribed")
}

async fn other(bus: &Bus) -> Log {
    let log = Log::default();
    let seen = log.clone();
    bus.subscription("orders")
        .group("other")
        .envelope(move |event| {
            seen.note(&event);
            async { Ok(()) }
        })
        .await
        .expect("subscribed");
    log
}

pub(crate) async fn a_subscription_stops_with_nothing_settled_and_tells_why<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(1)).await;
    let (log, other) = (Log::default(), other(&bus).await);
    let orders = stopping(&bus, &log, true).await;
    publish(&bus, "orders", "a", 0..3).await;
    let failing = bus.publish_envelope("orders", &event("a", 3)).await;
    let failing = failing.expect("published");
    publish(&bus, "orders", "a", 4..6).await;
    let reason = orders.stopped().await;
    assert!(reason.contains("this cannot be"), "{reason}");
    let place = format!("offset {} ", failing.offset);
    assert!(reason.contains(&place), "{reason}");
    assert_eq!(orders.state(), State::Stopped(reason.clone()));
    wait_for!(
        {
            let lags = bus.backlog("orders", "careful").await.expect("there");
            lags.iter().map(|lag| lag.records).sum::<u64>() == 3
        },
        "the group is let go"
    );
    assert_eq!(log.of("a"), [0, 1, 2]);
    let health = bus.health().await;
    assert!(!health.is_well());
    let stopped = |state: &State| *state == State::Stopped(reason.clone());
    assert!(health.subscriptions.iter().any(|s| stopped(&s.state)));
    let error = testing::settled(&bus).await.expect_err("three are left");
    assert!(error.to_string().contains("this cannot be"), "{error}");
    publish(&bus, "orders", "b", 0..6).await;
    wait_for!(other.len() == 12, "the others go on");
    assert_eq!(
        bus.dead_letters("orders")
            .await
            .expect("there")
            .list(9)
            .await
            .expect("a list")
            .len(),
        0
    );
    // Closed by hand, it is nothing to worry about any more.
    orders.close(SOON).await;
    assert!(bus.health().await.is_well());
}

pub(crate) async fn a_stopped_subscription_can_be_followed_by_another<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(1)).await;
    let log = Log::default();
    let first = stopping(&bus, &log, true).await;
    publish(&bus, "orders", "a", 0..6).await;
    first.stopped().await;
    // It stops, and then it lets go.
    let second = async || {
        let again = bus.subscription("orders").group("careful");
        let seen = log.clone();
        let again = again.envelope(move |event| {
            seen.note(&event);
            async { Ok(()) }
        });
        again.await.is_ok()
    };
    wait_for!(second().await, "it has let go");
    settled(&bus).await;
    assert_eq!(log.of("a"), [0, 1, 2, 3, 4, 5]);
    assert!(bus.health().await.is_well(), "there is a successor");
}
