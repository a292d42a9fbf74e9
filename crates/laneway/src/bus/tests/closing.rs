//! Closing in trouble, and giving up.

use std::sync::atomic::{AtomicUsize, Ordering};

use waiting::wait_for;

use super::*;
use crate::broker::lease::Lease;

#[tokio::test(start_paused = true)]
async fn a_caller_that_gives_up_subscribing_can_subscribe_again() {
    let (bus, broker) = bus().await;
    one_partition(&bus).await;
    broker.begin(Trouble::StalledLetters);
    let subscribing = bus.subscribe_envelope("orders", async |_| Ok(()));
    let gave_up = tokio::time::timeout(Duration::from_secs(1), subscribing).await;
    assert!(gave_up.is_err());
    broker.end(Trouble::StalledLetters);
    let orders = subscribe(&bus).await;
    publish(&bus, "a").await;
    testing::settled(&bus).await.unwrap();
    assert_eq!(orders.stats().handled, 1);
}

#[tokio::test(start_paused = true)]
async fn the_longest_deadline_is_no_deadline() {
    let bus = testing::bus().await;
    let handled = Arc::new(AtomicUsize::new(0));
    let count = handled.clone();
    let orders = bus
        .subscription("orders")
        .time_limit(Duration::MAX)
        .envelope(move |event| {
            assert_eq!(event.context().deadline(), None);
            count.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok(()))
        });
    let orders = orders.await.unwrap();
    publish(&bus, "a").await;
    testing::settled_within(&bus, Duration::MAX).await.unwrap();
    assert_eq!(orders.stats().dead_lettered, 0);
    assert!(orders.close(Duration::MAX).await.is_clean());
    publish(&bus, "a").await;
    sleep(Duration::from_mins(1)).await;
    assert_eq!(handled.load(Ordering::SeqCst), 1, "it is closed");
    bus.subscribe("news", async |_| Ok(())).await.unwrap();
    bus.close(Duration::MAX).await.unwrap();
    assert!(matches!(bus.close(Duration::MAX).await, Err(Error::Closed)));
}

/// A handler that is running when the bus closes, and then publishes.
#[tokio::test(start_paused = true)]
async fn handlers_that_run_while_the_bus_closes_can_publish() {
    let bus = testing::bus().await;
    let begun = Arc::new(tokio::sync::Semaphore::new(0));
    let go_on = Arc::new(tokio::sync::Notify::new());
    let results = Arc::<std::sync::Mutex<Vec<Result<(), String>>>>::default();
    bus.subscribe("in", {
        let (bus, begun) = (bus.clone(), begun.clone());
        let (go_on, results) = (go_on.clone(), results.clone());
        move |_| {
            let (bus, begun) = (bus.clone(), begun.clone());
            let (go_on, results) = (go_on.clone(), results.clone());
            async move {
                begun.add_permits(1);
                go_on.notified().await;
                // Topics that exist, that do not, and later.
                let a = bus.publish("in", "more").await.map(drop);
                let b = bus.publish_envelope("out", &event("a")).await.map(drop);
                let later = Duration::from_hours(1);
                let c = bus.publish_after("out", &event("a"), later).await.map(drop);
                let told = [a, b, c].map(|told| told.map_err(|error| error.to_string()));
                results.lock().unwrap().extend(told);
                Ok(())
            }
        }
    })
    .await
    .unwrap();
    bus.publish("in", "hello").await.unwrap();
    let _ = begun.acquire().await.unwrap();
    let closing = tokio::spawn({
        let bus = bus.clone();
        async move { bus.close(Duration::from_secs(5)).await }
    });
    wait_for!(bus.topics().await.is_err(), "it closes");
    go_on.notify_one();
    let report = closing.await.unwrap().unwrap();
    assert!(report.is_clean());
    assert_eq!(*results.lock().unwrap(), [Ok(()), Ok(()), Ok(())]);
    let published = bus.publish("in", "too late").await;
    assert!(matches!(published, Err(Error::Closed)));
}

#[tokio::test(start_paused = true)]
async fn closing_keeps_its_deadline_although_partitions_cannot_be_given_away() {
    let lease = Lease::until(std::time::Instant::now() + Duration::from_hours(1));
    let broker = Troubled::held(&Arc::new(lease)).await;
    let bus = Bus::builder().deadline(Duration::from_secs(30));
    let bus = bus.over(Arc::new(broker.clone())).unwrap();
    let topic = Topic::domain("orders").partitions(16).build().unwrap();
    bus.declare(&topic).await.unwrap();
    let orders = subscribe(&bus).await;
    broker.begin(Trouble::StalledReleases);
    let began = Instant::now();
    orders.close(Duration::from_secs(2)).await;
    assert_eq!(began.elapsed(), Duration::from_secs(2));
    assert_eq!(broker.released().len(), 16, "all were tried");
    assert_eq!(orders.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn closing_keeps_its_deadline_although_the_broker_stalls() {
    let (bus, broker) = bus().await;
    let orders = subscribe(&bus).await;
    publish(&bus, "a").await;
    wait_for!(orders.stats().handled == 1, "handled");
    broker.begin(Trouble::Stalls);
    let began = Instant::now();
    let closed = bus.close(Duration::from_secs(1)).await;
    assert!(matches!(closed, Err(Error::TimedOut { .. })));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
}
