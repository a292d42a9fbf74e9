//! Dead letters.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use laneway::headers::Headers;
use laneway::record::Record;
use laneway::trace::{self, TraceParent};
use laneway::{Bus, Failure, Subscription, testing};
use serde::Deserialize;
use serde_json::json;

use super::Fixture;
use super::support::{Log, attempts, declare, event, fail_if, publish, settled};

/// A handler that fails for aggregate `bad` until it is told not to.
struct Failing {
    log: Log,
    well: Arc<AtomicBool>,
    subscription: Subscription,
}

async fn failing(bus: &Bus, group: &str) -> Failing {
    let (log, well) = (Log::default(), Arc::new(AtomicBool::new(false)));
    let (seen, is_well) = (log.clone(), well.clone());
    let subscription = bus
        .subscription("orders")
        .group(group)
        .retry(attempts(3))
        .envelope(move |event| {
            let fails = event.aggregate_id().as_str() == "bad" && !is_well.load(Ordering::SeqCst);
            if !fails {
                seen.note(&event);
            }
            async move { fail_if(fails, "the stock is empty") }
        })
        .await
        .expect("subscribed");
    Failing {
        log,
        well,
        subscription,
    }
}

pub(crate) async fn an_exhausted_event_becomes_a_dead_letter_and_its_key_goes_on<F: Fixture>(
    at: &F,
) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(1)).await;
    let log = Log::default();
    let seen = log.clone();
    let orders = bus
        .subscription("orders")
        .group("billing")
        .retry(attempts(3))
        .envelope(move |event| {
            let number = super::support::number(&event);
            seen.push("started", number);
            async move {
                match number {
                    1 => Err(Failure::new("the stock is empty")),
                    _ => Ok(()),
                }
            }
        })
        .await
        .expect("subscribed");
    let before = jiff_now_ms();
    publish(&bus, "orders", "a", [0]).await;
    let bad = event("a", 1);
    let parent = TraceParent::root(true);
    let receipt = trace::scope(parent, bus.publish_envelope("orders", &bad)).await;
    let receipt = receipt.expect("published");
    publish(&bus, "orders", "a", [2]).await;
    settled(&bus).await;

    assert_eq!(log.of("started"), [0, 1, 1, 1, 2], "in order");
    let figures = orders.stats();
    assert_eq!((figures.handled, figures.failed), (2, 3));
    assert_eq!(figures.dead_lettered, 1);
    let letters = bus.dead_letters("orders").await.expect("there");
    let letters = letters.list(10).await.expect("a list");
    let [letter] = &letters[..] else {
        panic!("one letter, not {letters:?}");
    };
    assert_eq!(letter.key.as_deref(), Some("a"));
    assert_eq!(letter.group, "billing");
    assert_eq!(letter.reason, "the stock is empty");
    assert_eq!(letter.attempts, 3);
    let origin = (u64::from(receipt.partition), receipt.offset);
    assert_eq!(letter.origin, origin);
    assert!((before..=jiff_now_ms()).contains(&letter.at_ms));
    assert_eq!(letter.record.payload, bad.encode(), "as it was");
    let trace = TraceParent::from_headers(&letter.record.headers);
    let trace = trace.expect("valid").expect("the header it came with");
    assert_eq!(trace.trace_id(), parent.trace_id());
    let ours: Vec<_> = letter.record.headers.iter().collect();
    assert!(ours.iter().all(|(name, _)| !name.starts_with("laneway-")));
}

fn jiff_now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let millis = since.expect("after 1970").as_millis();
    i64::try_from(millis).expect("before the year 292 million")
}

pub(crate) async fn a_fatal_failure_is_not_tried_again<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    let orders = bus
        .subscription("orders")
        .envelope(|_| async { Err(Failure::fatal("never")) })
        .await
        .expect("subscribed");
    publish(&bus, "orders", "a", [0]).await;
    settled(&bus).await;
    assert_eq!(orders.stats().failed, 1);
    let letters = bus.dead_letters("orders").await.expect("there");
    assert_eq!(letters.list(10).await.expect("a list")[0].attempts, 1);
}

pub(crate) async fn letters_are_replayed_in_order_to_the_group_that_failed<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(4)).await;
    let failing = failing(&bus, "failing").await;
    let other = Log::default();
    let seen = other.clone();
    bus.subscription("orders")
        .group("other")
        .envelope(move |event| {
            seen.note(&event);
            async { Ok(()) }
        })
        .await
        .expect("subscribed");
    publish(&bus, "orders", "bad", 0..20).await;
    publish(&bus, "orders", "good", 0..20).await;
    settled(&bus).await;
    let dead = bus.dead_letters("orders").await.expect("there");
    let letters = dead.list(usize::MAX).await.expect("a list");
    assert_eq!(letters.len(), 20);
    let first = dead.list(5).await.expect("a list");
    let ids = |letters: &[laneway::Letter]| letters.iter().map(|l| l.id).collect::<Vec<_>>();
    assert_eq!(ids(&first), ids(&letters)[..5], "the oldest first");

    failing.well.store(true, Ordering::SeqCst);
    assert_eq!(dead.replay_all().await.expect("replayed"), 20);
    publish(&bus, "orders", "bad", [20]).await;
    settled(&bus).await;
    assert_eq!(failing.log.of("bad"), (0..=20).collect::<Vec<_>>());
    assert_eq!(failing.log.of("good"), (0..20).collect::<Vec<_>>());
    assert_eq!(other.of("bad"), (0..=20).collect::<Vec<_>>(), "each once");
    assert_eq!(dead.list(10).await.expect("a list").len(), 0);
    assert_eq!(dead.replay_all().await.expect("none left"), 0);
}

pub(crate) async fn a_letter_is_replayed_once<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(16)).await;
    let failing = failing(&bus, "default").await;
    publish(&bus, "orders", "bad", 0..4).await;
    settled(&bus).await;
    failing.well.store(true, Ordering::SeqCst);
    let (one, two) = (
        bus.dead_letters("orders").await.expect("there"),
        bus.dead_letters("orders").await.expect("there"),
    );
    let letters = one.list(10).await.expect("a list");
    let some = [letters[2].clone(), letters[0].clone(), letters[2].clone()];
    assert_eq!(one.replay(&some).await.expect("replayed"), 2);
    let both = tokio::join!(one.replay(&letters), two.replay(&letters));
    let count = both.0.expect("replayed") + both.1.expect("replayed");
    assert_eq!(count, 2, "the other two, once");
    settled(&bus).await;
    assert_eq!(failing.log.of("bad")[..2], [2, 0], "in the order given");
    assert_eq!(failing.log.sorted(), [0, 1, 2, 3]);
}

pub(crate) async fn a_replayed_event_that_fails_again_is_a_letter_again<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(16)).await;
    let failing = failing(&bus, "default").await;
    publish(&bus, "orders", "bad", 0..2).await;
    settled(&bus).await;
    let dead = bus.dead_letters("orders").await.expect("there");
    let before = dead.list(10).await.expect("a list");
    dead.replay_all().await.expect("replayed");
    settled(&bus).await;
    let after = dead.list(10).await.expect("a list");
    assert_eq!(after.len(), 2);
    for (before, after) in before.iter().zip(&after) {
        assert!(after.id > before.id);
        assert_eq!(after.record.payload, before.record.payload);
        assert_eq!(after.record.headers, before.record.headers);
    }
    assert_eq!(failing.subscription.stats().dead_lettered, 4);
}

pub(crate) async fn dropped_letters_are_gone<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(16)).await;
    let failing = failing(&bus, "default").await;
    publish(&bus, "orders", "bad", 0..3).await;
    settled(&bus).await;
    let dead = bus.dead_letters("orders").await.expect("there");
    let letters = dead.list(10).await.expect("a list");
    dead.discard(&[letters[1].id, letters[1].id, 999])
        .await
        .expect("dropped");
    assert_eq!(dead.list(10).await.expect("a list").len(), 2);
    failing.well.store(true, Ordering::SeqCst);
    assert_eq!(dead.replay(&letters).await.expect("replayed"), 2);
    settled(&bus).await;
    assert_eq!(failing.log.of("bad"), [0, 2]);
}

fn foreign(key: Option<&str>, payload: &str) -> Record {
    Record {
        key: key.map(Into::into),
        payload: payload.to_owned().into(),
        ..Record::default()
    }
}

pub(crate) async fn a_record_that_is_no_event_is_a_dead_letter_at_once<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(1)).await;
    let failing = failing(&bus, "default").await;
    let no_id = json!({
        "event_id": "e-1", "event_type": "Happened", "event_version": 1,
        "timestamp": "2026-01-01T00:00:00Z", "payload": 1,
    });
    let mut no_version = no_id.clone();
    no_version["aggregate_id"] = "a".into();
    no_version["event_version"] = 0.into();
    let records = [
        (foreign(None, "noise"), "JSON"),
        (foreign(Some("a"), "{}"), "event_id"),
        (foreign(None, &no_id.to_string()), "aggregate_id"),
        (foreign(Some("a"), &no_version.to_string()), "event_version"),
    ];
    for (number, (record, _)) in (0..).zip(&records) {
        publish(&bus, "orders", "a", [number]).await;
        testing::publish_foreign(&bus, "orders", record.clone())
            .await
            .expect("published");
    }
    publish(&bus, "orders", "a", [4]).await;
    settled(&bus).await;
    assert_eq!(failing.log.of("a"), [0, 1, 2, 3, 4], "nothing is held up");
    let dead = bus.dead_letters("orders").await.expect("there");
    let letters = dead.list(10).await.expect("a list");
    assert_eq!(letters.len(), records.len());
    for (record, field) in &records {
        let mut letters = letters.iter();
        let letter = letters.find(|letter| letter.record.payload == record.payload);
        let letter = letter.expect("it is among them, as it was");
        assert_eq!((letter.attempts, &letter.key), (1, &record.key));
        assert!(letter.reason.contains(field), "{field}: {}", letter.reason);
    }
    assert_eq!(failing.subscription.stats().dead_lettered, 4);
}

pub(crate) async fn an_aggregate_id_is_found_where_it_is<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(1)).await;
    let failing = failing(&bus, "default").await;
    let body = |id: Option<&str>, number: u64| {
        let mut body = json!({
            "event_id": "e-1", "event_type": "Happened", "event_version": 1,
            "timestamp": "2026-01-01T00:00:00Z", "payload": number,
        });
        if let Some(id) = id {
            body["aggregate_id"] = id.into();
        }
        body.to_string()
    };
    let mut in_header = foreign(Some("by-key"), &body(None, 2));
    let mut headers = Headers::new();
    let inserted = headers.insert("x-aggregate-id", "by-header");
    inserted.expect("a valid header");
    in_header.headers = headers;
    for record in [
        foreign(Some("by-key"), &body(Some("by-envelope"), 1)),
        in_header,
        foreign(Some("by-key"), &body(None, 3)),
    ] {
        testing::publish_foreign(&bus, "orders", record)
            .await
            .expect("published");
    }
    settled(&bus).await;
    let seen: BTreeSet<_> = failing.log.all().into_iter().collect();
    let expected = [("by-envelope", 1), ("by-header", 2), ("by-key", 3)];
    let expected = expected.map(|(key, number)| (key.to_owned(), number));
    assert_eq!(seen, BTreeSet::from(expected));
}

pub(crate) async fn a_payload_of_another_type_is_a_dead_letter_at_once<F: Fixture>(at: &F) {
    #[derive(Deserialize)]
    struct Placed {
        total: u64,
    }
    let bus = at.bus().await;
    let log = Log::default();
    let seen = log.clone();
    let orders = bus
        .subscription("orders")
        .typed(move |placed: Placed, event| {
            seen.push(event.aggregate_id().as_str(), placed.total);
            async { Ok(()) }
        })
        .await
        .expect("subscribed");
    for payload in [
        json!({"total": 1}),
        json!({"total": "two"}),
        json!({"total": 3}),
    ] {
        let event = laneway::Envelope::builder("a", "Placed").json(&payload);
        let event = event.expect("an envelope");
        bus.publish_envelope("orders", &event)
            .await
            .expect("published");
    }
    settled(&bus).await;
    assert_eq!(log.of("a"), [1, 3]);
    assert_eq!(orders.stats().failed, 1, "trying again is of no use");
    let dead = bus.dead_letters("orders").await.expect("there");
    let letters = dead.list(10).await.expect("a list");
    assert_eq!(letters.len(), 1);
    assert!(letters[0].reason.contains("two"), "{}", letters[0].reason);
}
