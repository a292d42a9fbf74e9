//! Rate limits, time limits, and event ids that are handled once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use laneway::{Bus, Error, Event, Failure, RateLimit, Start};

use super::Fixture;
use super::support::{Log, SOON, attempts, declare, event, number, publish, settled};

/// At 100 a second with a burst of 5, these take at least so long.
const COUNT: u64 = 25;
const LEAST: Duration = Duration::from_millis(190);

fn rate() -> RateLimit {
    RateLimit::per_second(100).burst(5)
}

pub(crate) async fn publishing_keeps_to_its_rate<F: Fixture>(at: &F) {
    let bus = at.open(Bus::builder().publish_rate(rate())).await;
    let bus = bus.expect("the broker can be opened");
    declare(&bus, "orders", at.partitions(1)).await;
    let began = Instant::now();
    publish(&bus, "orders", "a", 0..COUNT).await;
    assert!(began.elapsed() >= LEAST, "{:?}", began.elapsed());
    // A batch counts for as many as it has.
    let began = Instant::now();
    let events: Vec<_> = (0..COUNT).map(|number| event("a", number)).collect();
    let published = bus.publish_envelope_batch("orders", &events).await;
    assert_eq!(published.expect("published").len(), events.len());
    assert!(began.elapsed() >= LEAST, "{:?}", began.elapsed());
}

pub(crate) async fn handling_keeps_to_its_rate<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    for key in 0..COUNT {
        publish(&bus, "orders", &format!("key-{key}"), [key]).await;
    }
    let log = Log::default();
    let seen = log.clone();
    let began = Instant::now();
    bus.subscription("orders")
        .rate_limit(rate())
        .envelope(move |event| {
            seen.note(&event);
            async { Ok(()) }
        })
        .await
        .expect("subscribed");
    settled(&bus).await;
    assert!(began.elapsed() >= LEAST, "{:?}", began.elapsed());
    assert_eq!(log.sorted(), (0..COUNT).collect::<Vec<_>>());
}

pub(crate) async fn plain_messages_keep_to_their_rate<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    for number in 0..COUNT {
        let published = bus.publish("news", number.to_string()).await;
        published.expect("published");
    }
    let log = Log::default();
    let seen = log.clone();
    let began = Instant::now();
    bus.subscription("news")
        .start(Start::Earliest)
        .rate_limit(rate())
        .message(move |message| {
            seen.note_message(&message);
            async { Ok(()) }
        })
        .await
        .expect("subscribed");
    settled(&bus).await;
    assert!(began.elapsed() >= LEAST, "{:?}", began.elapsed());
    assert_eq!(log.sorted(), (0..COUNT).collect::<Vec<_>>());
}

pub(crate) async fn a_rate_that_is_too_slow_for_the_deadline_is_an_error<F: Fixture>(at: &F) {
    let slow = Bus::builder().publish_rate(RateLimit::per_second(1).burst(1));
    let bus = at.open(slow).await.expect("the broker can be opened");
    publish(&bus, "orders", "a", [0]).await;
    let one_of_many = |number: u64| event(&format!("key-{number}"), number);
    let events: Vec<_> = (1..100).map(one_of_many).collect();
    let refused = bus.publish_envelope_batch("orders", &events).await;
    let error = refused.expect_err("it would take more than the half minute that a call may take");
    assert!(
        matches!(error, Error::RateLimited { count: 99, .. }),
        "{error}"
    );
    let sent = bus.backlog("orders", "g").await.expect("an answer");
    let sent: u64 = sent.iter().map(|lag| lag.records).sum();
    assert_eq!(sent, 1, "nothing of it was sent");
}

pub(crate) async fn an_event_id_is_handled_once<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(1)).await;
    let log = Log::default();
    let seen = log.clone();
    let orders = bus
        .subscription("orders")
        .retry(attempts(3))
        .dedup(2)
        .envelope(move |event| {
            // A failure does not count as handled.
            let fails = event.context().attempt() == 1;
            if !fails {
                seen.note(&event);
            }
            async move { super::support::fail_if(fails, "once") }
        })
        .await
        .expect("subscribed");
    let events: Vec<_> = (0..4).map(|number| event("a", number)).collect();
    // By the time 0 comes the third time, two others have been handled since.
    for number in [0, 0, 1, 1, 0, 2, 0, 3, 3] {
        let published = bus.publish_envelope("orders", &events[number]).await;
        published.expect("published");
    }
    settled(&bus).await;
    assert_eq!(log.of("a"), [0, 1, 2, 0, 3]);
    assert_eq!(orders.stats().deduplicated, 4);
    orders.close(SOON).await;
}

pub(crate) async fn an_event_id_is_handled_once_in_a_batch<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(1)).await;
    let (one, two) = (event("a", 1), event("a", 2));
    let repeated = [one.clone(), one.clone(), two.clone(), one, two];
    bus.publish_envelope_batch("orders", &repeated)
        .await
        .expect("published");
    let log = Log::default();
    let seen = log.clone();
    let orders = bus
        .subscription("orders")
        .dedup(10)
        .envelopes(10, move |events: Vec<Event>| {
            for event in &events {
                seen.note(event);
            }
            async { Ok(()) }
        })
        .await
        .expect("subscribed");
    settled(&bus).await;
    assert_eq!(log.of("a"), [1, 2]);
    let figures = orders.stats();
    assert_eq!((figures.handled, figures.deduplicated), (2, 3));
}

pub(crate) async fn an_attempt_over_its_time_limit_is_cancelled_and_tried_again<F: Fixture>(
    at: &F,
) {
    /// Notices when it is dropped.
    struct Noticed(Arc<AtomicU32>);
    impl Drop for Noticed {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(1)).await;
    let limit = Duration::from_millis(50);
    let (log, dropped) = (Log::default(), Arc::new(AtomicU32::new(0)));
    let (seen, noticed) = (log.clone(), dropped.clone());
    bus.subscription("orders")
        .retry(attempts(3))
        .time_limit(limit)
        .envelope(move |event| {
            let (log, noticed) = (seen.clone(), noticed.clone());
            async move {
                let left = event.context().time_left().expect("there is a limit");
                assert!(left <= Duration::from_millis(50), "{left:?}");
                if number(&event) == 0 && event.context().attempt() < 3 {
                    let _noticed = Noticed(noticed);
                    std::future::pending::<()>().await;
                }
                log.note(&event);
                Ok::<_, Failure>(())
            }
        })
        .await
        .expect("subscribed");
    publish(&bus, "orders", "a", 0..2).await;
    settled(&bus).await;
    assert_eq!(log.of("a"), [0, 1], "in order");
    assert_eq!(dropped.load(Ordering::SeqCst), 2);
}
