//! A topic that becomes another one while processes live that knew it, and members that do not agree.

mod nats;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use laneway::topic::{Growth, Partitions, Strategy, Topic, partition_of};
use laneway::{BrokerError, Bus, Error, Outgoing, Start};

use nats::{SOON, declare, event, fresh, fresh_with_lease, open, settled};
use waiting::wait_for;

async fn counting(bus: &Bus, topic: &str) -> Arc<AtomicUsize> {
    let handled = Arc::new(AtomicUsize::new(0));
    let seen = handled.clone();
    let subscribing = bus.subscribe_envelope(topic, move |_| {
        seen.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    });
    subscribing.await.expect("subscribed");
    handled
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_published_to_a_topic_made_anew_with_fewer_partitions_is_read() {
    let address = fresh(&needs::service!("nats"), "");
    let (admin, publisher) = (open(&address).await, open(&address).await);
    declare(&admin, "orders", 16).await;
    publisher
        .publish_envelope("orders", &event("warm", 0))
        .await
        .expect("published");
    admin.delete("orders").await.expect("deleted");
    declare(&admin, "orders", 2).await;
    let handled = counting(&admin, "orders").await;
    for number in 0..40 {
        let event = event(&format!("k{number}"), number);
        let receipt = publisher.publish_envelope("orders", &event).await;
        assert!(receipt.expect("published").partition < 2);
    }
    settled(&admin, "orders").await;
    assert_eq!(handled.load(Ordering::SeqCst), 40);
    for bus in [admin, publisher] {
        bus.close(SOON).await.expect("closed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_lives_on_follows_a_topic_that_grew() {
    let address = fresh(&needs::service!("nats"), "");
    let (admin, publisher) = (open(&address).await, open(&address).await);
    declare(&admin, "orders", 2).await;
    for number in 0..8 {
        let event = event(&format!("key-{number}"), 0);
        let receipt = publisher.publish_envelope("orders", &event).await;
        receipt.expect("published");
    }
    let larger = Topic::domain("orders").partitions(16).build();
    let larger = larger.expect("a valid topic");
    admin
        .declare_with(&larger, Strategy::CreateOrUpdate, Growth::Forced)
        .await
        .expect("grown");
    let sixteen = Partitions::new(16).expect("a number");
    for number in 0..8 {
        let key = format!("key-{number}");
        let receipt = publisher.publish_envelope("orders", &event(&key, 1)).await;
        let receipt = receipt.expect("published");
        assert_eq!(receipt.partition, partition_of(&key, sixteen), "{key}");
    }
    // A batch is refused once, with nothing of it published, and then goes where it should.
    let batch: Vec<_> = (0..8).map(|n| event(&format!("key-{n}"), 2)).collect();
    publisher
        .publish_envelope_batch("orders", &batch)
        .await
        .expect("published");
    // What was there before it grew is read as well, in the partitions that it is in.
    let handled = counting(&admin, "orders").await;
    settled(&admin, "orders").await;
    assert_eq!(handled.load(Ordering::SeqCst), 24);
    for bus in [admin, publisher] {
        bus.close(SOON).await.expect("closed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_publisher_hears_of_another_shape_and_goes_on() {
    let address = fresh(&needs::service!("nats"), "");
    let (admin, publisher) = (open(&address).await, open(&address).await);
    let news = |partitions| Topic::plain("news").partitions(partitions).build();
    admin
        .declare(&news(8).expect("valid"))
        .await
        .expect("declared");
    publisher.publish("news", "one").await.expect("published");
    admin.delete("news").await.expect("deleted");
    admin
        .declare(&news(1).expect("valid"))
        .await
        .expect("declared");
    let batch = || ["a", "b"].map(Outgoing::from);
    let refused = publisher.publish_batch("news", batch()).await;
    assert!(
        matches!(
            refused,
            Err(Error::Broker(BrokerError::Reshaped { now: 1, .. }))
        ),
        "{refused:?}"
    );
    let receipts = publisher.publish_batch("news", batch()).await;
    assert_eq!(receipts.expect("published").len(), 2);
    for bus in [admin, publisher] {
        bus.close(SOON).await.expect("closed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_dies_while_joining_from_now_on_leaves_nothing_older_to_read() {
    let address = fresh(&needs::service!("nats"), "");
    let admin = open(&address).await;
    declare(&admin, "orders", 8).await;
    for number in 0..32 {
        let event = event(&format!("k{number}"), 0);
        admin
            .publish_envelope("orders", &event)
            .await
            .expect("published");
    }
    for round in 0..8 {
        let group = format!("g{round}");
        let dying = open(&address).await;
        let subscribing = dying
            .subscription("orders")
            .group(&group)
            .start(Start::Latest)
            .envelope(|_| async { Ok(()) });
        // Somewhere on the way.
        let _ = tokio::time::timeout(Duration::from_micros(700 * round), subscribing).await;
        drop(dying);
        let next = open(&address).await;
        let handled = Arc::new(AtomicUsize::new(0));
        let seen = handled.clone();
        let subscription = next
            .subscription("orders")
            .group(&group)
            .start(Start::Latest)
            .envelope(move |event| {
                let is_old = event.json::<u64>().is_ok_and(|number| number == 0);
                seen.fetch_add(usize::from(is_old), Ordering::SeqCst);
                async { Ok(()) }
            })
            .await
            .expect("subscribed");
        for number in 0..16 {
            let event = event(&format!("k{number}"), 1 + round);
            admin
                .publish_envelope("orders", &event)
                .await
                .expect("published");
        }
        wait_for!(
            {
                let lags = admin.backlog("orders", &group).await;
                lags.is_ok_and(|lags| lags.iter().all(|lag| lag.records == 0))
            },
            "the group is done"
        );
        assert!(subscription.stats().handled >= 16);
        assert_eq!(handled.load(Ordering::SeqCst), 0, "round {round}");
        next.close(SOON).await.expect("closed");
    }
    admin.close(SOON).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_a_later_build_are_read() {
    let server = needs::service!("nats");
    let address = fresh(&server, "");
    let bus = open(&address).await;
    declare(&bus, "orders", 1).await;
    let handled = counting(&bus, "orders").await;
    bus.publish_envelope("orders", &event("a", 0))
        .await
        .expect("published");
    settled(&bus, "orders").await;
    bus.close(SOON).await.expect("closed");
    // A later build adds a field to what it keeps of the group, and to the declaration.
    let namespace = address.split(['=', '&']).nth(1).expect("a namespace");
    let client = async_nats::connect(&server)
        .await
        .expect("the server is there");
    let context = async_nats::jetstream::new(client);
    let groups = context
        .get_key_value(format!("{namespace}-groups"))
        .await
        .expect("the bucket");
    let key = "orders.default.0";
    let entry = groups.get(key).await.expect("read").expect("an entry");
    let later = String::from_utf8(entry.to_vec()).expect("JSON");
    let later = later.replacen('{', r#"{"later":true,"#, 1);
    groups.put(key, later.into()).await.expect("written");
    let mut stream = context
        .get_stream(format!("{namespace}-orders"))
        .await
        .expect("the stream");
    let mut config = stream.info().await.expect("its config").config.clone();
    for value in config
        .metadata
        .values_mut()
        .filter(|value| value.starts_with('{'))
    {
        *value = value.replacen('{', r#"{"later":true,"#, 1);
    }
    context.update_stream(config).await.expect("changed");
    let bus = open(&address).await;
    let again = counting(&bus, "orders").await;
    bus.publish_envelope("orders", &event("a", 1))
        .await
        .expect("published");
    settled(&bus, "orders").await;
    let counts = (handled.load(Ordering::SeqCst), again.load(Ordering::SeqCst));
    assert_eq!(counts, (1, 1), "what was settled stays settled");
    bus.close(SOON).await.expect("closed");
}

fn with_lease(address: &str, settings: &str) -> String {
    let (before, after) = address.split_once("&session_ms=").expect("a lease");
    let rest = after.split_once('&').map_or("", |(_, rest)| rest);
    format!("{before}&{settings}&{rest}")
        .trim_end_matches('&')
        .to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_with_another_lease_is_refused_unless_the_lease_is_being_changed() {
    // One that gives no sign for so long is taken for dead.
    let lease = Duration::from_secs(6);
    let address = fresh_with_lease(&needs::service!("nats"), lease, "");
    let one = open(&address).await;
    declare(&one, "orders", 4).await;
    let by_one = counting(&one, "orders").await;
    let other = open(&with_lease(&address, "session_ms=9000")).await;
    let refused = other
        .subscribe_envelope("orders", |_| async { Ok(()) })
        .await;
    let error = refused.expect_err("another lease").to_string();
    for part in [
        "session_ms=9000",
        "session_ms=6000",
        "session_before_ms=6000",
    ] {
        assert!(error.contains(part), "{error}");
    }
    // It left nothing behind: those who were there still have everything.
    let keys: Vec<_> = (0..16).map(|n| format!("k{n}")).collect();
    for key in &keys {
        one.publish_envelope("orders", &event(key, 0))
            .await
            .expect("published");
    }
    settled(&one, "orders").await;
    assert_eq!(by_one.load(Ordering::SeqCst), keys.len());
    // While it is being changed, members of both kinds share.
    let changing = open(&with_lease(
        &address,
        "session_ms=9000&session_before_ms=6000",
    ))
    .await;
    let by_changing = counting(&changing, "orders").await;
    wait_for!(
        {
            for key in &keys {
                one.publish_envelope("orders", &event(key, 1))
                    .await
                    .expect("published");
            }
            settled(&one, "orders").await;
            by_changing.load(Ordering::SeqCst) > 0
        },
        "both handle"
    );
    for bus in [one, other, changing] {
        bus.close(SOON).await.expect("closed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_died_with_another_lease_keep_nobody_out() {
    let address = fresh(&needs::service!("nats"), "");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let dying = address.clone();
    let joined = runtime.spawn(async move {
        let bus = open(&dying).await;
        declare(&bus, "orders", 2).await;
        counting(&bus, "orders").await;
        bus
    });
    let bus = joined.await.expect("it joins");
    runtime.shutdown_background();
    drop(bus);
    let next = open(&with_lease(&address, "session_ms=900")).await;
    let handled = counting(&next, "orders").await;
    next.publish_envelope("orders", &event("a", 0))
        .await
        .expect("published");
    settled(&next, "orders").await;
    assert_eq!(handled.load(Ordering::SeqCst), 1);
    next.close(SOON).await.expect("closed");
}
