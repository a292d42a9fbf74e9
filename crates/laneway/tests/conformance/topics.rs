//! Topics: declared, changed, listed, deleted.

use std::time::Duration;

use laneway::topic::{Growth, Kind, Retention, Storage, Strategy, Topic, TopicBuilder};
use laneway::{BrokerError, Bus, Error, Exhausted, Failure};

use super::Fixture;
use super::support::{Log, SOON, declare, event, publish, settled};

fn orders(change: impl FnOnce(TopicBuilder) -> TopicBuilder) -> Topic {
    let topic = change(Topic::domain("orders").partitions(4));
    topic.build().expect("a valid topic")
}

async fn with<F: Fixture>(at: &F, strategy: Strategy) -> Bus {
    let bus = at.open(Bus::builder().strategy(strategy)).await;
    bus.expect("the broker can be opened")
}

/// Created whatever the strategy of the bus is.
async fn create(bus: &Bus, topic: &Topic) {
    let created = bus.declare_with(topic, Strategy::CreateOnly, Growth::Refused);
    created.await.expect("created");
}

fn one_hour() -> Retention {
    Retention::FOREVER.age(Duration::from_hours(1))
}

/// The error names both sides.
fn differ(result: Result<Topic, Error>, sides: [&str; 2]) {
    let error = result.expect_err("a mismatch").to_string();
    for side in sides {
        assert!(error.contains(side), "{side}: {error}");
    }
}

pub(crate) async fn create_only_creates_and_changes_nothing<F: Fixture>(at: &F) {
    let bus = with(at, Strategy::CreateOnly).await;
    let declared = orders(|t| t);
    let created = bus.declare(&declared).await.expect("created");
    assert_eq!(created, declared);
    bus.declare(&declared).await.expect("as it is");
    let partitions = orders(|t| t.partitions(8));
    differ(bus.declare(&partitions).await, ["4", "8"]);
    let retention = orders(|t| t.retention(one_hour()));
    differ(bus.declare(&retention).await, ["7d", "1h"]);
    let storage = orders(|t| t.storage(Storage::Memory));
    differ(bus.declare(&storage).await, ["file", "memory"]);
    let described = bus.describe("orders").await.expect("an answer");
    assert_eq!(described, Some(declared));
}

pub(crate) async fn create_or_update_changes_what_may_be_changed<F: Fixture>(at: &F) {
    let bus = with(at, Strategy::CreateOrUpdate).await;
    bus.declare(&orders(|t| t)).await.expect("created");
    let changed = orders(|t| t.retention(one_hour()));
    assert_eq!(bus.declare(&changed).await.expect("changed"), changed);
    let described = bus.describe("orders").await.expect("an answer");
    assert_eq!(described, Some(changed));
    let plain = Topic::plain("orders").partitions(4).build();
    let plain = plain.expect("a valid topic");
    differ(bus.declare(&plain).await, ["domain", "plain"]);
    let more = orders(|t| t.retention(one_hour()).partitions(8));
    differ(bus.declare(&more).await, ["4", "8"]);
    let fewer = orders(|t| t.retention(one_hour()).partitions(2));
    let forced = bus.declare_with(&fewer, Strategy::CreateOrUpdate, Growth::Forced);
    differ(forced.await, ["4", "2"]);
}

pub(crate) async fn validate_only_touches_nothing<F: Fixture>(at: &F) {
    let bus = with(at, Strategy::ValidateOnly).await;
    let missing = bus.declare(&orders(|t| t)).await;
    let error = missing.expect_err("it does not exist").to_string();
    assert!(error.contains("orders does not exist"), "{error}");
    let error = bus.publish_envelope("orders", &event("a", 0)).await;
    let error = error.expect_err("it does not exist").to_string();
    assert!(error.contains("orders does not exist"), "{error}");
    assert_eq!(bus.topics().await.expect("a list"), []);
    create(&bus, &orders(|t| t)).await;
    bus.declare(&orders(|t| t)).await.expect("as declared");
    let retention = orders(|t| t.retention(one_hour()));
    differ(bus.declare(&retention).await, ["7d", "1h"]);
    publish(&bus, "orders", "a", [0]).await;
}

pub(crate) async fn skip_takes_topics_as_they_are<F: Fixture>(at: &F) {
    let bus = with(at, Strategy::Skip).await;
    bus.declare(&orders(|t| t)).await.expect("not looked at");
    assert_eq!(bus.topics().await.expect("a list"), [], "nor created");
    let error = bus.publish_envelope("orders", &event("a", 0)).await;
    let error = error.expect_err("it does not exist").to_string();
    assert!(error.contains("orders does not exist"), "{error}");
    let refused = bus.subscribe_envelope("orders", async |_| Ok(())).await;
    let error = refused.expect_err("it does not exist").to_string();
    assert!(error.contains("orders does not exist"), "{error}");
    // Somebody creates it after all, and not as we thought.
    let plain = Topic::plain("orders").partitions(2).build();
    create(&bus, &plain.expect("a valid topic")).await;
    let declared = bus.declare(&orders(|t| t)).await.expect("as it is");
    assert_eq!(declared.kind(), Kind::Plain);
    bus.publish("orders", "hello").await.expect("published");
    let refused = bus.publish_envelope("orders", &event("a", 0)).await;
    assert!(matches!(refused, Err(Error::WrongKind { .. })));
}

pub(crate) async fn presets_work_on_every_broker<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    let presets = [
        Topic::domain("busy").high_throughput(),
        Topic::domain("audit").audit_trail(),
        Topic::domain("short").short_lived(),
        Topic::domain("small").development(),
    ];
    for preset in presets {
        // As many as the smallest broker has.
        let topic = preset.partitions(at.partitions(4)).build().expect("valid");
        let declared = bus.declare(&topic).await.expect("declared");
        assert_eq!(declared.retention(), topic.retention());
        let again = bus.declare(&topic).await.expect("the same again");
        assert_eq!(again, declared);
    }
}

pub(crate) async fn names_are_checked<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    let too_long = "x".repeat(256);
    for name in ["", "a b", "tab\t", "ünder", "\u{7f}", &too_long] {
        let named = |result: Option<Error>| {
            let error = result.unwrap_or_else(|| panic!("{name:?} is no name"));
            assert!(matches!(error, Error::Topic(_)), "{error}");
            assert!(error.to_string().starts_with("name "), "{error}");
        };
        named(bus.publish(name, "x").await.err());
        named(bus.publish_envelope(name, &event("a", 0)).await.err());
        named(bus.subscribe(name, async |_| Ok(())).await.err());
        named(bus.subscribe_envelope(name, async |_| Ok(())).await.err());
        named(bus.describe(name).await.err());
        named(bus.delete(name).await.err());
        named(bus.backlog(name, "default").await.err());
        named(bus.dead_letters(name).await.err());
        named(bus.parked(name).await.err());
    }
    assert_eq!(bus.topics().await.expect("a list"), []);
    // What is a name everywhere: the longest, and ones that some brokers have a use for.
    for name in [&too_long[..255], "a/b", "a.*.>", "@", "..", "%2e", "CON"] {
        publish(&bus, name, "a", [7]).await;
        let described = bus.describe(name).await.expect("an answer");
        assert_eq!(described.expect("it exists").name().as_str(), name);
    }
    let log = Log::default();
    let seen = log.clone();
    bus.subscribe_envelope("a/b", move |event| {
        seen.note(&event);
        async { Ok(()) }
    })
    .await
    .expect("subscribed");
    settled(&bus).await;
    assert_eq!(log.of("a"), [7]);
}

pub(crate) async fn topics_are_listed_described_and_deleted<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    publish(&bus, "orders", "a", [0]).await;
    bus.publish("news", "hello").await.expect("published");
    let topics = bus.topics().await.expect("a list");
    let names: Vec<_> = topics.iter().map(|topic| topic.name().as_str()).collect();
    assert_eq!(names, ["news", "orders"], "by name");
    let by_first_use = Topic::domain("orders").build().expect("a valid topic");
    assert_eq!(topics[1], by_first_use);
    let described = bus.describe("news").await.expect("an answer");
    assert_eq!(described.as_ref(), Some(&topics[0]));
    assert_eq!(bus.describe("nothing").await.expect("an answer"), None);
    bus.delete("news").await.expect("deleted");
    assert_eq!(bus.describe("news").await.expect("an answer"), None);
    let unknown = |error: Error| {
        let unknown = matches!(error, Error::Broker(BrokerError::UnknownTopic(_)));
        assert!(unknown, "{error}");
    };
    unknown(bus.delete("news").await.expect_err("it is gone"));
    unknown(bus.backlog("news", "g").await.expect_err("it is gone"));
    unknown(bus.dead_letters("news").await.map(drop).expect_err("gone"));
}

pub(crate) async fn a_deleted_topic_leaves_nothing_behind<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    for exhausted in [Exhausted::DeadLetter, Exhausted::ParkKey] {
        let orders = bus
            .subscription("orders")
            .group(format!("{exhausted:?}"))
            .on_exhausted(exhausted)
            .envelope(async |_| Err(Failure::fatal("no")))
            .await
            .expect("subscribed");
        publish(&bus, "orders", "a", 0..3).await;
        settled(&bus).await;
        orders.close(SOON).await;
    }
    bus.delete("orders").await.expect("deleted");
    assert_eq!(bus.topics().await.expect("a list"), []);
    // As a plain topic, to see that nobody remembers what it was.
    bus.publish("orders", "hello").await.expect("published");
    bus.delete("orders").await.expect("deleted");
    let log = Log::default();
    for group in ["DeadLetter", "ParkKey"] {
        let seen = log.clone();
        bus.subscription("orders")
            .group(group)
            .envelope(move |event| {
                seen.note(&event);
                async { Ok(()) }
            })
            .await
            .expect("subscribed");
    }
    publish(&bus, "orders", "a", [7]).await;
    settled(&bus).await;
    assert_eq!(log.of("a"), [7, 7], "for each group, from the start");
    let dead = bus.dead_letters("orders").await.expect("there");
    assert_eq!(dead.list(10).await.expect("a list").len(), 0);
    let parked = bus.parked("orders").await.expect("there");
    assert_eq!(parked.list(10).await.expect("a list").len(), 0);
}

pub(crate) async fn a_topic_in_use_is_not_deleted<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    let log = Log::default();
    let seen = log.clone();
    let orders = bus
        .subscribe_envelope("orders", move |event| {
            seen.note(&event);
            async { Ok(()) }
        })
        .await
        .expect("subscribed");
    let refused = bus.delete("orders").await.expect_err("it is in use");
    let text = refused.to_string();
    assert!(
        text.contains("orders") && text.contains("default"),
        "{text}"
    );
    publish(&bus, "orders", "a", [0]).await;
    settled(&bus).await;
    assert_eq!(log.of("a"), [0], "and unharmed");
    orders.close(SOON).await;
    bus.delete("orders").await.expect("deleted");
}

pub(crate) async fn a_subscription_goes_on_when_its_topic_is_updated<F: Fixture>(at: &F) {
    let bus = with(at, Strategy::CreateOrUpdate).await;
    bus.declare(&orders(|t| t)).await.expect("created");
    let log = Log::default();
    let seen = log.clone();
    bus.subscribe_envelope("orders", move |event| {
        seen.note(&event);
        async { Ok(()) }
    })
    .await
    .expect("subscribed");
    publish(&bus, "orders", "a", 0..3).await;
    let changed = orders(|t| t.retention(one_hour()));
    bus.declare(&changed).await.expect("changed");
    publish(&bus, "orders", "a", 3..6).await;
    settled(&bus).await;
    assert_eq!(log.of("a"), (0..6).collect::<Vec<_>>());
}

pub(crate) async fn a_topic_grows_only_while_nobody_reads_it<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", 1).await;
    let log = Log::default();
    let subscribe = async || {
        let seen = log.clone();
        bus.subscribe_envelope("orders", move |event| {
            seen.note(&event);
            async { Ok(()) }
        })
        .await
        .expect("subscribed")
    };
    let grow = async || {
        let more = orders(|t| t.partitions(8));
        bus.declare_with(&more, Strategy::CreateOrUpdate, Growth::Forced)
            .await
    };
    let before = subscribe().await;
    publish(&bus, "orders", "a", [0]).await;
    settled(&bus).await;
    let refused = grow().await.expect_err("it is read").to_string();
    assert!(refused.contains("default reads orders"), "{refused}");
    before.close(SOON).await;
    grow().await.expect("nobody reads it");
    for number in 1..50 {
        let key = format!("key-{number}");
        publish(&bus, "orders", &key, [number]).await;
    }
    subscribe().await;
    settled(&bus).await;
    assert_eq!(log.sorted(), (0..50).collect::<Vec<_>>(), "all, once");
}
