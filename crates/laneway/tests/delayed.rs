//! Events that are published later.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use laneway::{Bus, Envelope, Error, testing};
use tokio::time::Instant;
use waiting::wait_for;

const HOUR: Duration = Duration::from_hours(1);

/// For closing: disks may take their time.
const LONG: Duration = Duration::from_mins(1);

fn event(key: &str, number: u64) -> Envelope {
    let event = Envelope::builder(key, "Due").json(&number);
    event.expect("a valid envelope")
}

/// What was handled, and when, in milliseconds since the start.
#[derive(Clone)]
struct Seen {
    start: Instant,
    events: Arc<Mutex<Vec<(u128, u64)>>>,
}

impl Seen {
    async fn on(bus: &Bus) -> Self {
        let seen = Self {
            start: Instant::now(),
            events: Arc::default(),
        };
        let noted = seen.clone();
        bus.subscribe_envelope("orders", move |event| {
            let noted = noted.clone();
            async move {
                let at = noted.start.elapsed().as_millis();
                noted
                    .events
                    .lock()
                    .expect("no panic")
                    .push((at, event.json()?));
                Ok(())
            }
        })
        .await
        .expect("subscribed");
        seen
    }

    fn all(&self) -> Vec<(u128, u64)> {
        self.events.lock().expect("no panic").clone()
    }

    async fn wait_for(&self, count: usize) {
        wait_for!(self.all().len() >= count, "{count} events came");
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_is_published_when_it_is_due_to_the_millisecond() {
    let bus = testing::bus().await;
    let seen = Seen::on(&bus).await;
    bus.publish_after("orders", &event("a", 2), 2 * HOUR)
        .await
        .expect("kept");
    bus.publish_after("orders", &event("a", 1), HOUR)
        .await
        .expect("kept");
    bus.publish_after("orders", &event("a", 0), Duration::ZERO)
        .await
        .expect("kept");
    testing::pass(3 * HOUR).await;
    let ms = HOUR.as_millis();
    assert_eq!(seen.all(), [(0, 0), (ms, 1), (2 * ms, 2)]);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_taken_back_is_not_published_and_one_that_is_moved_is_later() {
    let bus = testing::bus().await;
    let seen = Seen::on(&bus).await;
    let first = bus
        .publish_after("orders", &event("a", 1), HOUR)
        .await
        .expect("kept");
    let mut second = bus
        .publish_after("orders", &event("a", 2), HOUR)
        .await
        .expect("kept");
    assert!(first.is_pending().await.expect("known"));
    bus.delayed(first.id())
        .expect("an id")
        .withdraw()
        .await
        .expect("taken back");
    assert!(!first.is_pending().await.expect("known"));
    let due = second.due().expect("known");
    assert_eq!(second.extend(HOUR).await.expect("moved"), due + HOUR);
    testing::pass(3 * HOUR).await;
    assert_eq!(seen.all(), [(2 * HOUR.as_millis(), 2)]);
    let error = second.withdraw().await.expect_err("too late");
    assert!(matches!(error, Error::Delay(_)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_event_is_the_one_that_was_published() {
    let bus = testing::bus().await;
    let (sent, mut received) = tokio::sync::mpsc::unbounded_channel();
    bus.subscribe_envelope("orders", move |event| {
        sent.send(event.envelope().clone()).ok();
        std::future::ready(Ok(()))
    })
    .await
    .expect("subscribed");
    let original = Envelope::builder("a", "Due")
        .tenant_id("acme")
        .correlation_id("c-1")
        .event_version(7)
        .bytes("application/octet-stream", vec![0, 255])
        .expect("valid");
    let moment = SystemTime::now() - HOUR;
    bus.publish_at("orders", &original, moment)
        .await
        .expect("kept");
    assert_eq!(received.recv().await, Some(original));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_published_later_is_refused_now() {
    let bus = testing::bus().await;
    let refused = async |topic: &str| {
        let refused = bus.publish_after(topic, &event("a", 1), HOUR).await;
        refused.expect_err("refused")
    };
    assert!(matches!(refused("a b").await, Error::Topic(_)));
    assert!(matches!(refused("orders.dead").await, Error::Reserved(_)));
    bus.publish("plain", "body").await.expect("published");
    assert!(matches!(refused("plain").await, Error::WrongKind { .. }));
    assert!(matches!(bus.delayed("a b"), Err(Error::Delay(_))));
    bus.close(Duration::from_secs(5)).await.expect("closed");
    assert!(matches!(refused("orders").await, Error::Closed));
}

#[tokio::test]
async fn on_disk_an_event_waits_while_nobody_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("file:{}", folder.path().display());
    let soon = Duration::from_millis(300);
    let bus = Bus::open(&url).await.expect("open");
    for number in 0..50 {
        let delay = soon + Duration::from_millis(number);
        bus.publish_after("orders", &event("a", number), delay)
            .await
            .expect("kept");
    }
    // Late enough to be taken back in time on any disk.
    let withdrawn = bus
        .publish_after("orders", &event("a", 99), HOUR)
        .await
        .expect("kept");
    let id = withdrawn.id().to_owned();
    withdrawn.withdraw().await.expect("taken back");
    bus.close(LONG).await.expect("closed");

    let bus = Bus::open(&url).await.expect("open");
    let seen = Seen::on(&bus).await;
    seen.wait_for(50).await;
    let settled = testing::settled_within(&bus, LONG).await;
    settled.expect("settled");
    let numbers: Vec<u64> = seen.all().into_iter().map(|(_, number)| number).collect();
    assert_eq!(numbers, (0..50).collect::<Vec<_>>());
    let withdrawn = bus.delayed(&id).expect("an id");
    assert!(!withdrawn.is_pending().await.expect("known"));
    bus.close(LONG).await.expect("closed");
}
