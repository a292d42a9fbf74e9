//! What takes time on the bus takes as long as it says: to the millisecond, on a paused clock.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use laneway::retry::RetryPolicy;
use laneway::topic::Topic;
use laneway::{Bus, Envelope, Failure, Outgoing, RateLimit, testing};
use tokio::time::Instant;

/// Moments, in milliseconds since the start.
#[derive(Clone)]
struct Moments {
    start: Instant,
    seen: Arc<Mutex<Vec<u128>>>,
}

impl Moments {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            seen: Arc::default(),
        }
    }

    fn note(&self) {
        let now = self.start.elapsed().as_millis();
        self.seen.lock().expect("no panic").push(now);
    }

    fn all(&self) -> Vec<u128> {
        self.seen.lock().expect("no panic").clone()
    }
}

fn event(key: &str) -> Envelope {
    let event = Envelope::builder(key, "Happened").json(&1);
    event.expect("a valid envelope")
}

async fn publish(bus: &Bus, key: &str) {
    let published = bus.publish_envelope("orders", &event(key)).await;
    published.expect("published");
}

#[tokio::test(start_paused = true)]
async fn attempts_are_as_far_apart_as_the_policy_says() {
    let bus = testing::bus().await;
    let retry = RetryPolicy::default().with_jitter(0.0).expect("valid");
    let moments = Moments::new();
    let noted = moments.clone();
    bus.subscription("orders")
        .retry(retry)
        .envelope(move |_| {
            noted.note();
            async { Err(Failure::new("no")) }
        })
        .await
        .expect("subscribed");
    publish(&bus, "a").await;
    testing::settled(&bus).await.expect("settled");
    assert_eq!(moments.all(), [0, 100, 300, 700, 1500]);
    let dead = bus.dead_letters("orders").await.expect("there");
    assert_eq!(dead.list(10).await.expect("a list")[0].attempts, 5);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_ends_at_its_time_limit() {
    let bus = testing::bus().await;
    let moments = Moments::new();
    let noted = moments.clone();
    let retry = RetryPolicy::exponential(2, Duration::from_secs(1), Duration::from_secs(1));
    let retry = retry.and_then(|retry| retry.with_jitter(0.0));
    bus.subscription("orders")
        .retry(retry.expect("valid"))
        .time_limit(Duration::from_secs(7))
        .envelope(move |_| {
            noted.note();
            std::future::pending()
        })
        .await
        .expect("subscribed");
    publish(&bus, "a").await;
    testing::settled_within(&bus, Duration::from_mins(1))
        .await
        .expect("settled");
    assert_eq!(moments.all(), [0, 8000]);
}

#[tokio::test(start_paused = true)]
async fn handlers_start_at_their_rate() {
    let bus = testing::bus().await;
    for key in 0..8 {
        publish(&bus, &format!("key-{key}")).await;
    }
    let moments = Moments::new();
    let noted = moments.clone();
    bus.subscription("orders")
        .rate_limit(RateLimit::per_second(10).burst(3))
        .envelope(move |_| {
            noted.note();
            async { Ok(()) }
        })
        .await
        .expect("subscribed");
    testing::settled(&bus).await.expect("settled");
    assert_eq!(moments.all(), [0, 0, 0, 100, 200, 300, 400, 500]);
    // A pause is worth no more than the burst.
    testing::pass(Duration::from_hours(1)).await;
    let before = moments.all().len();
    let an_hour = moments.start.elapsed().as_millis();
    for key in 0..5 {
        publish(&bus, &format!("key-{key}")).await;
    }
    testing::settled(&bus).await.expect("settled");
    let after: Vec<_> = moments.all().split_off(before);
    let after: Vec<_> = after.iter().map(|moment| moment - an_hour).collect();
    assert_eq!(after, [0, 0, 0, 100, 200]);
}

#[tokio::test(start_paused = true)]
async fn plain_messages_start_at_their_rate() {
    let bus = testing::bus().await;
    let one = Topic::plain("news").partitions(1).build();
    bus.declare(&one.expect("valid")).await.expect("declared");
    let messages = (0..8).map(|_| Outgoing::new("x"));
    bus.publish_batch("news", messages)
        .await
        .expect("published");
    let moments = Moments::new();
    let noted = moments.clone();
    bus.subscription("news")
        .rate_limit(RateLimit::per_second(10).burst(3))
        .message(move |_| {
            noted.note();
            async { Ok(()) }
        })
        .await
        .expect("subscribed");
    testing::settled(&bus).await.expect("settled");
    assert_eq!(moments.all(), [0, 0, 0, 100, 200, 300, 400, 500]);
}

#[tokio::test(start_paused = true)]
async fn publishing_waits_for_its_turn() {
    let rate = RateLimit::per_second(10).burst(3);
    let bus = Bus::builder().publish_rate(rate).open("memory:").await;
    let bus = bus.expect("a bus");
    let moments = Moments::new();
    for _ in 0..5 {
        publish(&bus, "a").await;
        moments.note();
    }
    let batch = [event("a"), event("b"), event("c")];
    let published = bus.publish_envelope_batch("orders", &batch).await;
    published.expect("published");
    moments.note();
    assert_eq!(moments.all(), [0, 0, 0, 100, 200, 500]);
}

#[tokio::test(start_paused = true)]
async fn a_released_key_takes_no_longer_than_its_events() {
    // Each takes a third of the time limit: one request could not release all of them.
    let bus = testing::bus().await;
    let moments = Moments::new();
    let noted = moments.clone();
    let frozen = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let is_frozen = frozen.clone();
    let orders = bus
        .subscription("orders")
        .retry(RetryPolicy::none())
        .time_limit(Duration::from_secs(30))
        .on_exhausted(laneway::Exhausted::ParkKey)
        .envelope(move |_| {
            let (noted, frozen) = (noted.clone(), is_frozen.clone());
            async move {
                if frozen.load(std::sync::atomic::Ordering::SeqCst) {
                    return Err(Failure::new("frozen"));
                }
                tokio::time::sleep(Duration::from_secs(10)).await;
                noted.note();
                Ok(())
            }
        })
        .await
        .expect("subscribed");
    for _ in 0..12 {
        publish(&bus, "a").await;
    }
    testing::settled(&bus).await.expect("settled");
    frozen.store(false, std::sync::atomic::Ordering::SeqCst);
    let parked = bus.parked("orders").await.expect("there");
    parked.release("default", "a").await.expect("asked for");
    testing::settled_within(&bus, Duration::from_mins(10))
        .await
        .expect("settled");
    assert_eq!(moments.all().len(), 12);
    assert_eq!(orders.stats().failed, 1, "the one that parked it");
}
