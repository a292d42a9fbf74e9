//! Which topic of a name it is, and what is known of groups that Kafka has forgotten.

mod kafka;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use laneway::{Bus, Start};
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;

use kafka::{
    SOON, client, declare, event, forget, fresh, group_of, make, open, publish, settled, unique,
};
use waiting::wait_for;

/// Subscribes until everything is settled; answers how many events were handled.
async fn handled(bus: &Bus, topic: &str, start: Start) -> u64 {
    let count = Arc::new(AtomicU64::new(0));
    let counted = count.clone();
    let subscribing = bus.subscription(topic).start(start).envelope(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    });
    let subscription = subscribing.await.expect("subscribed");
    settled(bus, topic).await;
    subscription.close(SOON).await;
    count.load(Ordering::SeqCst)
}

async fn publish_some(bus: &Bus, topic: &str, count: u64) {
    for number in 0..count {
        publish(bus, topic, &event(&format!("key-{number}"), 0)).await;
    }
}

/// What is unsettled in all partitions together.
async fn left(bus: &Bus, topic: &str) -> u64 {
    let lags = bus.backlog(topic, "default").await.expect("an answer");
    lags.iter().map(|lag| lag.records).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_declare_a_topic_at_once_agree_on_which_it_is() {
    let address = fresh(&needs::service!("kafka"), "");
    let buses = futures_util::future::join_all((0..4).map(|_| open(&address))).await;
    for round in 0..3 {
        let topic = format!("orders-{round}");
        let declaring = buses.iter().map(|bus| declare(bus, &topic, 2));
        futures_util::future::join_all(declaring).await;
        publish_some(&buses[0], &topic, 6).await;
        let mut all = 0;
        for bus in &buses {
            all += handled(bus, &topic, Start::Earliest).await;
        }
        assert_eq!(all, 6, "what one has settled is settled for all");
    }
    for bus in buses {
        bus.close(SOON).await.expect("closed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_was_deleted_with_other_tools_begins_anew() {
    let servers = needs::service!("kafka");
    let bus = open(&format!("kafka://{servers}")).await;
    let topic = unique("anew");
    declare(&bus, &topic, 1).await;
    publish_some(&bus, &topic, 5).await;
    assert_eq!(handled(&bus, &topic, Start::Earliest).await, 5);
    let admin: AdminClient<DefaultClientContext> = client(&servers).create().expect("a client");
    let deleted = admin.delete_topics(&[&topic], &AdminOptions::new()).await;
    deleted.expect("an answer")[0].clone().expect("deleted");
    publish_some(&bus, &topic, 3).await;
    assert_eq!(handled(&bus, &topic, Start::Earliest).await, 3);
    bus.delete(&topic).await.expect("it is ours, still");
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_reads_a_topic_while_it_is_made_anew_misses_nothing() {
    let servers = needs::service!("kafka");
    let address = format!("kafka://{servers}");
    let (bus, other) = (open(&address).await, open(&address).await);
    let topic = unique("under");
    declare(&bus, &topic, 1).await;
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let noted = seen.clone();
    let subscribing = bus.subscribe_envelope(&topic, move |event| {
        let id = event.event_id().to_owned();
        noted.lock().expect("no panic").insert(id);
        async { Ok(()) }
    });
    let subscription = subscribing.await.expect("subscribed");
    publish_some(&bus, &topic, 8).await;
    settled(&bus, &topic).await;
    let admin: AdminClient<DefaultClientContext> = client(&servers).create().expect("a client");
    let deleted = admin.delete_topics(&[&topic], &AdminOptions::new()).await;
    deleted.expect("an answer")[0].clone().expect("deleted");
    // Fewer than there were, so all of them are where others were settled. What is handled before the group
    // knows that the topic is another one comes again.
    publish_some(&other, &topic, 3).await;
    wait_for!(
        { seen.lock().expect("no panic").len() == 11 },
        "the new ones are handled"
    );
    wait_for!(
        { left(&other, &topic).await == 0 },
        "the new ones are settled"
    );
    subscription.close(SOON).await;
    assert_eq!(handled(&other, &topic, Start::Earliest).await, 0);
    bus.close(SOON).await.expect("closed");
    other.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_others_have_just_made_is_theirs() {
    let servers = needs::service!("kafka");
    let bus = open(&format!("kafka://{servers}")).await;
    for _ in 0..5 {
        let topic = unique("theirs");
        make(&servers, &topic, 2, &[]).await;
        publish(&bus, &topic, &event("a", 0)).await;
        bus.delete(&topic).await.expect_err("it is not ours");
    }
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_kafka_has_forgotten_goes_on_where_it_was() {
    let servers = needs::service!("kafka");
    let address = fresh(&servers, "");
    let bus = open(&address).await;
    for start in [Start::Latest, Start::Earliest] {
        let topic = unique("forgotten");
        declare(&bus, &topic, 4).await;
        publish_some(&bus, &topic, 3).await;
        let expected = if start == Start::Latest { 0 } else { 3 };
        assert_eq!(handled(&bus, &topic, start).await, expected);
        publish_some(&bus, &topic, 10).await;
        assert_eq!(handled(&bus, &topic, start).await, 10);
        publish_some(&bus, &topic, 8).await;
        wait_for!(
            { kafka::members_of(&servers, &group_of(&address, &topic)) == 0 },
            "the group has no members"
        );
        forget(&servers, &group_of(&address, &topic)).await;
        assert_eq!(left(&bus, &topic).await, 8);
        assert_eq!(handled(&bus, &topic, start).await, 8, "{start:?}");
    }
    bus.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_was_killed_and_forgotten_misses_nothing() {
    let servers = needs::service!("kafka");
    // It is waited for so long until the member that died is none; one that is alive is not taken for dead.
    let address = fresh(&servers, "&session_ms=6000");
    let bus = open(&address).await;
    declare(&bus, "orders", 2).await;
    // A process that dies without a word.
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let killed = address.clone();
    let living = runtime.spawn(async move {
        let bus = open(&killed).await;
        let orders = bus.subscription("orders").start(Start::Latest);
        orders
            .envelope(|_| async { Ok(()) })
            .await
            .expect("subscribed");
    });
    living.await.expect("no panic");
    publish_some(&bus, "orders", 6).await;
    settled(&bus, "orders").await;
    runtime.shutdown_background();
    let group = group_of(&address, "orders");
    wait_for!(
        { kafka::members_of(&servers, &group) == 0 },
        "its session is over"
    );
    forget(&servers, &group).await;
    publish_some(&bus, "orders", 4).await;
    // Nobody has told how far it was; so all of it comes again, and nothing is passed over.
    assert_eq!(handled(&bus, "orders", Start::Latest).await, 10);
    bus.close(SOON).await.expect("closed");
}
