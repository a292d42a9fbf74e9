//! Settings that do nothing are refused, addresses are explained, failures are logged.

use std::fmt::Write;
use std::sync::Mutex;

use tracing::field::{Field, Visit};
use tracing::span;
use waiting::wait_for;

use super::*;
use crate::BrokerError;
use crate::topic::Compression;

async fn refused(url: &str) -> String {
    Bus::open(url).await.map(drop).unwrap_err().to_string()
}

#[tokio::test]
async fn an_address_that_is_none_says_which_there_are() {
    for url in ["redis://x", "kafka:x", "nats:x", "memory", "file:", ""] {
        let error = refused(url).await;
        assert!(
            error.ends_with("give memory:, file:DIRECTORY, nats://HOST:PORT or kafka://HOST:PORT"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn what_a_broker_does_not_have_is_refused_unless_a_preset_asks_for_it() {
    let bus = testing::bus().await;
    let wanted = Topic::domain("wanted").compression(Compression::Lz4);
    let copies = Topic::domain("copies").replicas(3);
    for (topic, what) in [(wanted, "compression lz4"), (copies, "3 replicas")] {
        let topic = topic.build().unwrap();
        let error = bus.declare(&topic).await.unwrap_err();
        let Error::Broker(BrokerError::Unsupported { .. }) = error else {
            panic!("{error}");
        };
        let error = error.to_string();
        assert!(
            error.contains(what) && error.contains(topic.name().as_str()),
            "{error}"
        );
    }
    for fine in [
        Topic::domain("a").replicas(1),
        Topic::domain("b").compression(Compression::None),
        Topic::domain("c").high_throughput(),
        Topic::domain("d").audit_trail(),
    ] {
        bus.declare(&fine.build().unwrap()).await.unwrap();
    }
    // A preset that is changed by hand is no preset in that.
    let again = Topic::domain("e")
        .audit_trail()
        .compression(Compression::Zstd);
    let error = bus.declare(&again.build().unwrap()).await;
    assert!(error.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_failed_message_is_no_dead_letter() {
    let bus = testing::bus().await;
    let mut events = bus.lanes().events();
    bus.subscribe("news", async |_| Err(Failure::new("no")))
        .await
        .unwrap();
    bus.publish("news", "hello").await.unwrap();
    testing::settled(&bus).await.unwrap();
    bus.close(DEADLINE).await.unwrap();
    let a_while = Duration::from_secs(1);
    while let Ok(Some(event)) = tokio::time::timeout(a_while, events.next()).await {
        let told = format!("{event:?}");
        assert!(!told.contains("DeadLettered"), "{told}");
    }
}

#[tokio::test]
async fn the_65th_subscription_says_what_can_be_done() {
    let bus = testing::bus().await;
    let mut last = None;
    for number in 0..65 {
        let name = format!("t{number}");
        let topic = Topic::domain(&name).partitions(1).build().unwrap();
        bus.declare(&topic).await.unwrap();
        let subscribed = bus.subscribe_envelope(&name, async |_| Ok(())).await;
        last = subscribed.err();
    }
    let error = last.unwrap().to_string();
    assert!(
        error.contains("every subscription of a bus is one"),
        "{error}"
    );
    assert!(error.contains("most_topics"), "{error}");
}

/// Remembers what is logged as a warning or worse.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = String::new();
        event.record(&mut Line(&mut line));
        self.0.lock().unwrap().push(line);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn events_that_fail_for_good_are_logged_and_a_storm_of_them_is_not() {
    let log = Log::default();
    let _logging = tracing::subscriber::set_default(log.clone());
    for (exhausted, what) in [
        (Exhausted::DeadLetter, "the event is a dead letter"),
        (Exhausted::ParkKey, "are parked"),
        (Exhausted::Stop, "the subscription stops"),
    ] {
        let bus = testing::bus().await;
        let orders = bus
            .subscription("orders")
            .retry(RetryPolicy::none())
            .on_exhausted(exhausted)
            .envelope(async |_| Err(Failure::new("the stock is empty")))
            .await
            .unwrap();
        publish(&bus, "order-7").await;
        wait_for!(orders.stats().failed > 0, "it has failed");
        wait_for!(!log.0.lock().unwrap().is_empty(), "it is logged");
        let lines = std::mem::take(&mut *log.0.lock().unwrap());
        for part in [
            what,
            "topic=orders",
            "order-7",
            "attempts=1",
            "the stock is empty",
        ] {
            assert!(lines[0].contains(part), "{part} is not in {lines:?}");
        }
        if exhausted == Exhausted::DeadLetter {
            for _ in 0..1_000 {
                publish(&bus, "order-7").await;
            }
            testing::settled(&bus).await.unwrap();
            let said = log.0.lock().unwrap().len();
            assert!((5..100).contains(&said), "{said} lines of 1,000");
        }
        bus.close(DEADLINE).await.unwrap();
        log.0.lock().unwrap().clear();
    }
}
