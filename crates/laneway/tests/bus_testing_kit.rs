//! The kit that users test their handlers with keeps its word.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use laneway::record::Record;
use laneway::retry::RetryPolicy;
use laneway::testing::history::Kind;
use laneway::testing::{self, Faults, Witness};
use laneway::{Bus, Envelope, Event, Exhausted, Failure};
use tokio::time::{Instant, sleep};

fn event(key: &str, number: u64) -> Envelope {
    let event = Envelope::builder(key, "Happened").json(&number);
    event.expect("a valid envelope")
}

async fn publish(bus: &Bus, topic: &str, key: &str) {
    let published = bus.publish_envelope(topic, &event(key, 0)).await;
    published.expect("published");
}

#[tokio::test(start_paused = true)]
async fn settled_waits_for_what_handlers_publish() {
    let bus = testing::bus().await;
    // Subscribed from the end of the chain, and looked at in that order.
    let last = bus
        .subscribe("fourth", async |_| {
            sleep(Duration::from_secs(1)).await;
            Ok(())
        })
        .await
        .expect("subscribed");
    for (from, to) in [
        ("third", "fourth"),
        ("second", "third"),
        ("first", "second"),
    ] {
        let onward = bus.clone();
        let handle = move |event: Event| {
            let bus = onward.clone();
            async move {
                sleep(Duration::from_secs(1)).await;
                if to == "fourth" {
                    bus.publish(to, "done").await?;
                } else {
                    bus.publish_envelope(to, event.envelope()).await?;
                }
                Ok(())
            }
        };
        bus.subscribe_envelope(from, handle)
            .await
            .expect("subscribed");
    }
    for key in 0..20 {
        publish(&bus, "first", &format!("key-{key}")).await;
    }
    testing::settled(&bus).await.expect("settled");
    assert_eq!(last.stats().handled, 20);
}

#[tokio::test(start_paused = true)]
async fn settled_says_what_is_left_when_time_is_over() {
    let bus = testing::bus().await;
    testing::settled(&bus)
        .await
        .expect("there is nothing to do");
    bus.subscription("orders")
        .group("stuck")
        .time_limit(None)
        .envelope(|_| std::future::pending())
        .await
        .expect("subscribed");
    for key in ["a", "b", "c"] {
        publish(&bus, "orders", key).await;
    }
    let began = Instant::now();
    let patience = Duration::from_secs(5);
    let error = testing::settled_within(&bus, patience).await;
    let error = error.expect_err("it never ends");
    assert_eq!(began.elapsed(), patience);
    let said = error.to_string();
    assert_eq!(said, "not settled within 5s; 3 of orders for group stuck");
    assert_eq!(error.pending[0].records, 3);
}

#[tokio::test(start_paused = true)]
async fn settled_does_not_wait_for_what_has_stopped_or_closed() {
    let bus = testing::bus().await;
    let orders = bus
        .subscription("orders")
        .retry(RetryPolicy::none())
        .on_exhausted(Exhausted::Stop)
        .envelope(async |_| Err(Failure::new("enough")))
        .await
        .expect("subscribed");
    publish(&bus, "orders", "a").await;
    orders.stopped().await;
    let began = Instant::now();
    let error = testing::settled(&bus).await.expect_err("it has stopped");
    assert!(error.to_string().contains("stopped: "), "{error}");
    assert!(error.to_string().contains("enough"), "{error}");
    bus.close(Duration::from_secs(1)).await.expect("closed");
    let error = testing::settled(&bus).await;
    // Nobody is subscribed any more, so there is nothing to wait for.
    error.expect("closed");
    assert!(began.elapsed() < Duration::from_secs(5));
}

/// Runs fifty events through faults, and answers which attempts failed.
async fn failures(faults: Faults) -> Vec<(u64, u32)> {
    let bus = testing::bus().await;
    let attempts: Arc<Mutex<Vec<(u64, u32)>>> = Arc::default();
    let seen = attempts.clone();
    let orders = bus
        .subscription("orders")
        .envelope_handler(faults.around(move |event: Event| {
            let attempt = event.context().attempt();
            let number: u64 = event.json().expect("a number");
            seen.lock().expect("no panic").push((number, attempt));
            async { Ok(()) }
        }))
        .await
        .expect("subscribed");
    for number in 0..50 {
        let event = event(&format!("key-{}", number % 7), number);
        bus.publish_envelope("orders", &event)
            .await
            .expect("published");
    }
    testing::settled(&bus).await.expect("settled");
    let mut succeeded = attempts.lock().expect("no panic").clone();
    succeeded.sort_unstable();
    let failed: u64 = succeeded.iter().map(|(_, at)| u64::from(at - 1)).sum();
    let dead = orders.stats().dead_lettered;
    assert_eq!(orders.stats().failed, failed + 5 * dead);
    succeeded
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_faults() {
    let faults = |seed| Faults::seeded(seed).failing(0.3).panicking(0.1);
    let (one, again, other) = (
        failures(faults(1)).await,
        failures(faults(1)).await,
        failures(faults(2)).await,
    );
    assert_eq!(one, again);
    assert_ne!(one, other);
    let later = one.iter().filter(|(_, attempt)| *attempt > 1).count();
    assert!((8..=32).contains(&later), "about 20 of 50, not {later}");
    let none = failures(Faults::none()).await;
    assert!(none.iter().all(|(_, attempt)| *attempt == 1));
    let first = failures(Faults::none().failing_first(2)).await;
    assert!(first.iter().all(|(_, attempt)| *attempt == 3));
}

#[tokio::test(start_paused = true)]
async fn faults_take_their_time() {
    let bus = testing::bus().await;
    let slow = Faults::seeded(3).delaying(Duration::from_secs(10));
    bus.subscription("news")
        .message_handler(slow.around(async |_: laneway::Message| Ok(())))
        .await
        .expect("subscribed");
    let began = Instant::now();
    for _ in 0..20 {
        bus.publish("news", "x").await.expect("published");
    }
    testing::settled_within(&bus, Duration::from_mins(1))
        .await
        .expect("settled");
    let took = began.elapsed().as_secs();
    assert!((5..=10).contains(&took), "the longest of twenty: {took} s");
}

#[tokio::test(start_paused = true)]
async fn a_witness_knows_dead_letters_from_losses() {
    let bus = testing::bus().await;
    let witness = Witness::new();
    bus.subscription("orders")
        .time_limit(Duration::from_secs(1))
        .envelope_handler(witness.watching(
            async |event: Event| match event.aggregate_id().as_str() {
                "fails" => Err(Failure::new("no")),
                "fatal" => Err(Failure::fatal("no")),
                "panics" => panic!("no"),
                "dawdles" => std::future::pending().await,
                _ => Ok(()),
            },
        ))
        .await
        .expect("subscribed");
    for key in ["fine", "fails", "fatal", "panics", "dawdles"] {
        for number in 0..2 {
            let published = witness.publish(&bus, "orders", &event(key, number)).await;
            published.expect("published");
        }
    }
    // What others publish is none of its business.
    publish(&bus, "orders", "fine").await;
    let noise = Record::default();
    testing::publish_foreign(&bus, "orders", noise)
        .await
        .expect("published");
    testing::settled_within(&bus, Duration::from_mins(1))
        .await
        .expect("settled");
    let verdict = witness.verdict();
    verdict.assert_ok();
    assert_eq!(verdict.totals().messages, 10);
    assert_eq!(verdict.totals().dead_lettered, 8);

    bus.publish("plain", "x").await.expect("published");
    let refused = witness.publish(&bus, "plain", &event("fine", 7)).await;
    assert!(refused.is_err());
    witness.verdict().assert_ok();
    // Nobody handles this one.
    let published = witness.publish(&bus, "unread", &event("fine", 8)).await;
    published.expect("published");
    assert_eq!(witness.verdict().count(Kind::AckedLost), 1);
}

#[tokio::test(start_paused = true)]
async fn a_witness_sees_events_that_overtake_each_other() {
    let bus = testing::bus().await;
    let witness = Witness::new();
    // Two topics with one witness: there is no order between them, and it was told of one.
    for topic in ["slow", "quick"] {
        bus.subscription(topic)
            .envelope_handler(witness.watching(async |event: Event| {
                if event.context().topic().as_str() == "slow" {
                    sleep(Duration::from_secs(1)).await;
                }
                Ok(())
            }))
            .await
            .expect("subscribed");
        let published = witness.publish(&bus, topic, &event("a", 0)).await;
        published.expect("published");
    }
    testing::settled(&bus).await.expect("settled");
    assert!(witness.verdict().order_violations() > 0);
}
