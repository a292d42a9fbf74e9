//! Groups: who reads what, and from where.

use laneway::{Bus, Error, Start, Subscription};

use super::Fixture;
use super::support::{Log, SOON, declare, publish, settled};

async fn subscribe(bus: &Bus, group: &str, start: Start, log: &Log) -> Result<Subscription, Error> {
    let seen = log.clone();
    bus.subscription("orders")
        .group(group)
        .start(start)
        .envelope(move |event| {
            seen.note(&event);
            async { Ok(()) }
        })
        .await
}

pub(crate) async fn a_second_subscription_is_refused<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    let log = Log::default();
    let first = subscribe(&bus, "one", Start::Earliest, &log).await;
    let first = first.expect("subscribed");
    let second = subscribe(&bus, "one", Start::Earliest, &log).await;
    let error = second.expect_err("a second one");
    assert!(matches!(error, Error::AlreadySubscribed { .. }), "{error}");
    let error = error.to_string();
    assert!(error.contains("orders") && error.contains("one"), "{error}");
    subscribe(&bus, "other", Start::Earliest, &log)
        .await
        .expect("another group");
    first.close(SOON).await;
    subscribe(&bus, "one", Start::Earliest, &log)
        .await
        .expect("after the first one was closed");
}

pub(crate) async fn a_place_is_given_up_once<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(16)).await;
    let log = Log::default();
    let first = subscribe(&bus, "one", Start::Earliest, &log).await;
    let first = first.expect("subscribed");
    first.close(SOON).await;
    let second = subscribe(&bus, "one", Start::Earliest, &log).await;
    let second = second.expect("subscribed");
    first.close(SOON).await;
    drop(first);
    let third = subscribe(&bus, "one", Start::Earliest, &log).await;
    let error = third.expect_err("the second one is there");
    assert!(matches!(error, Error::AlreadySubscribed { .. }), "{error}");
    // A dropped handle is not a close.
    drop(second);
    publish(&bus, "orders", "a", 0..3).await;
    settled(&bus).await;
    assert_eq!(log.of("a"), [0, 1, 2]);
}

pub(crate) async fn two_groups_see_everything<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(16)).await;
    let logs = [Log::default(), Log::default()];
    subscribe(&bus, "one", Start::Earliest, &logs[0])
        .await
        .expect("subscribed");
    publish(&bus, "orders", "a", 0..20).await;
    subscribe(&bus, "two", Start::Earliest, &logs[1])
        .await
        .expect("subscribed");
    publish(&bus, "orders", "a", 20..40).await;
    settled(&bus).await;
    for log in logs {
        assert_eq!(log.of("a"), (0..40).collect::<Vec<_>>());
    }
}

pub(crate) async fn a_group_starts_at_the_oldest_or_now<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(16)).await;
    publish(&bus, "orders", "a", 0..5).await;
    let (oldest, now) = (Log::default(), Log::default());
    for (group, start, log) in [
        ("oldest", Start::Earliest, &oldest),
        ("now", Start::Latest, &now),
    ] {
        subscribe(&bus, group, start, log)
            .await
            .expect("subscribed");
    }
    publish(&bus, "orders", "a", 5..10).await;
    settled(&bus).await;
    assert_eq!(oldest.of("a"), (0..10).collect::<Vec<_>>());
    assert_eq!(now.of("a"), (5..10).collect::<Vec<_>>());
}

pub(crate) async fn a_group_that_has_read_goes_on_where_it_was<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(16)).await;
    let log = Log::default();
    for round in 0..3 {
        let numbers = 10 * round..10 * (round + 1);
        publish(&bus, "orders", "a", numbers.clone().take(5)).await;
        // It counts for groups that have never read.
        let start = if round == 0 {
            Start::Earliest
        } else {
            Start::Latest
        };
        let orders = subscribe(&bus, "one", start, &log).await;
        let orders = orders.expect("subscribed");
        publish(&bus, "orders", "a", numbers.skip(5)).await;
        settled(&bus).await;
        assert!(orders.close(SOON).await.is_clean());
    }
    assert_eq!(log.of("a"), (0..30).collect::<Vec<_>>());
}

pub(crate) async fn names_of_groups_are_checked<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    let log = Log::default();
    let too_long = "x".repeat(256);
    for name in ["", "a b", "a@b", "grüppe", "laneway-letters", &too_long] {
        let refused = subscribe(&bus, name, Start::Earliest, &log).await;
        let error = refused.expect_err(name);
        assert!(matches!(error, Error::Group { .. }), "{error}");
    }
    subscribe(&bus, &too_long[..255], Start::Earliest, &log)
        .await
        .expect("the longest name");
}
