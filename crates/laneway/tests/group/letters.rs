//! Events that are put aside, whatever broker it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use laneway::retry::RetryPolicy;
use laneway::{BrokerError, Bus, Envelope, Error, Exhausted, Failure};
use waiting::wait_for;

use super::{SOON, Starts, declare, event, open, publish, settled};

/// Publishes an event of `bad` that hardly fits, found from above.
async fn publish_largest(bus: &Bus, topic: &str, from: usize) -> Envelope {
    for size in (0..from).rev().step_by(64) {
        let event = Envelope::builder("bad", "Happened").json(&"x".repeat(size));
        let event = event.expect("a valid envelope");
        match bus.publish_envelope(topic, &event).await {
            Ok(_) => return event,
            Err(Error::Broker(BrokerError::TooLarge { .. })) => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("not even the smallest one fits");
}

/// An event that hardly fits fails, is put aside, and is handled when that is asked for.
pub(crate) async fn put_aside_the_largest_and_handle_it_later(
    address: &str,
    from: usize,
    exhausted: Exhausted,
) {
    let bus = open(address).await;
    declare(&bus, "orders", 1).await;
    let fails = Arc::new(AtomicBool::new(true));
    let failing = fails.clone();
    let orders = bus
        .subscription("orders")
        .retry(RetryPolicy::none())
        .on_exhausted(exhausted)
        .envelope(move |event| {
            let fails = event.aggregate_id().as_str() == "bad" && failing.load(Ordering::SeqCst);
            async move {
                if fails {
                    Err(Failure::new("a reason\nof two lines ".repeat(20)))
                } else {
                    Ok(())
                }
            }
        })
        .await
        .expect("subscribed");
    let largest = publish_largest(&bus, "orders", from).await;
    settled(&bus, "orders").await;
    let (dead, parked) = (
        bus.dead_letters("orders").await.expect("there"),
        bus.parked("orders").await.expect("there"),
    );
    let letters = match exhausted {
        Exhausted::ParkKey => parked.list(10).await,
        _ => dead.list(10).await,
    };
    let letters = letters.expect("a list");
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].missing, None);
    assert_eq!(letters[0].record.payload, largest.encode(), "all of it");
    fails.store(false, Ordering::SeqCst);
    if exhausted == Exhausted::ParkKey {
        parked.release("default", "bad").await.expect("released");
    } else {
        assert_eq!(dead.replay(&letters).await.expect("replayed"), 1);
    }
    wait_for!(orders.stats().handled == 1, "it is handled");
    settled(&bus, "orders").await;
    bus.close(super::SOON).await.expect("closed");
}

/// The key `bad` is parked, the topic is made anew with one partition, and what is published then is parked behind it.
pub(crate) async fn park_and_make_the_topic_anew(
    bus: &Bus,
    topic: &str,
    make_anew: impl AsyncFnOnce(),
) {
    let subscription = || {
        let subscription = bus.subscription(topic).retry(RetryPolicy::none());
        subscription.on_exhausted(Exhausted::ParkKey)
    };
    let parking = subscription().envelope(async |_| Err(Failure::new("not yet")));
    let parking = parking.await.expect("subscribed");
    for number in 0..3 {
        publish(bus, topic, &event("bad", number)).await;
    }
    wait_for!(parking.stats().parked == 3, "parked");
    settled(bus, topic).await;
    parking.close(SOON).await;
    make_anew().await;

    for number in 3..5 {
        publish(bus, topic, &event("bad", number)).await;
    }
    let starts = Starts::default();
    let seen = starts.clone();
    let next = subscription().envelope(move |event| {
        seen.note("next", &event);
        async { Ok(()) }
    });
    let _next = next.await.expect("subscribed");
    let parked = bus.parked(topic).await.expect("there");
    wait_for!(
        {
            parked
                .list(10)
                .await
                .is_ok_and(|letters| letters.len() == 5)
        },
        "all are parked"
    );
    settled(bus, topic).await;
    assert_eq!(starts.len(), 0, "an earlier one of their key is parked");
    parked.release("default", "bad").await.expect("asked for");
    wait_for!(starts.len() == 5, "all are handled");
    let all = starts.all();
    let numbers: Vec<_> = all.iter().map(|start| start.number).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4]);
}
