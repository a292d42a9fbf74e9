//! Records that other programs write: each is handled, or a dead letter with a reason, and none is in the way.

use bytes::Bytes;
use laneway::record::Record;
use laneway::{Bus, Envelope, State, testing};
use serde_json::{Value, json};

use super::Fixture;
use super::support::{Log, declare, event, settled};

/// What must become of a record.
enum Fate {
    /// The handler gets it, as an event of this aggregate.
    Handled(&'static str),
    /// It is a dead letter, whose reason has this in it.
    Dead(&'static str),
}

use Fate::{Dead, Handled};
use waiting::wait_for;

fn record(key: Option<&str>, payload: impl Into<Bytes>) -> Record {
    Record {
        key: key.map(Into::into),
        payload: payload.into(),
        ..Record::default()
    }
}

/// The envelope of an event, with something done to it.
fn changed(key: &str, change: impl FnOnce(&mut Value)) -> Bytes {
    let mut envelope: Value = serde_json::from_slice(&event(key, 0).encode()).expect("JSON");
    change(&mut envelope);
    envelope.to_string().into()
}

/// An envelope of exactly so many bytes.
fn envelope_of(key: &str, bytes: usize) -> Bytes {
    let with = |padding: usize| {
        let event = Envelope::builder(key, "Happened").json(&"x".repeat(padding));
        event.expect("a valid envelope").encode()
    };
    // Timestamps end where their last digit that counts is, so that two differ by up to ten bytes, the point among them. White
    // space behind an envelope is a part of the record.
    let mut envelope = with(bytes - with(0).len() - 10).to_vec();
    assert!(envelope.len() <= bytes);
    envelope.resize(bytes, b' ');
    envelope.into()
}

/// Keys that no aggregate has, and envelopes that a later version might write.
fn oddities() -> Vec<(Record, Fate)> {
    // As long as a header on NATS can be.
    let huge = "k".repeat(45_000);
    let too_long = "k".repeat(257);
    let encoded = |key| event(key, 0).encode();
    let without_id = || {
        changed("none", |envelope| {
            let fields = envelope.as_object_mut().expect("an object");
            fields.remove("aggregate_id");
        })
    };
    let unknown = changed("unknown", |envelope| {
        envelope["region"] = json!("eu-1");
        envelope["causes"] = json!([{"event_id": null, "depth": [[[1.5e300]]]}, {}]);
        envelope[""] = Value::Null;
    });
    let mut odd_headers = record(Some("headers"), encoded("headers"));
    for (name, value) in [
        ("X-Name", &b"M\xfcller"[..]),
        ("X-Name", b""),
        ("traceparent", b"\xff"),
    ] {
        let value = Bytes::copy_from_slice(value);
        odd_headers.headers.append(name, value).expect("it fits");
    }
    vec![
        (record(None, ""), Dead("not one JSON object")),
        (record(Some(""), ""), Dead("not one JSON object")),
        (record(Some(""), encoded("empty-key")), Handled("empty-key")),
        (record(None, encoded("no-key")), Handled("no-key")),
        (
            record(Some(&huge), encoded("huge-key")),
            Handled("huge-key"),
        ),
        (
            record(Some("other"), encoded("other-key")),
            Handled("other-key"),
        ),
        (
            record(Some("ä\0\r\n"), encoded("odd-key")),
            Handled("odd-key"),
        ),
        (record(Some(&huge), "noise"), Dead("not one JSON object")),
        (record(Some(&too_long), without_id()), Dead("aggregate_id")),
        (record(Some(""), without_id()), Dead("aggregate_id")),
        (record(None, without_id()), Dead("aggregate_id")),
        (record(Some("by-key"), without_id()), Handled("by-key")),
        (record(Some("unknown"), unknown), Handled("unknown")),
        (odd_headers, Handled("headers")),
        (
            record(Some("a"), b"\xff\xfe\x00".to_vec()),
            Dead("not one JSON object"),
        ),
        (record(Some("a"), "null"), Dead("not one JSON object")),
        (
            record(Some("a"), "[".repeat(10_000)),
            Dead("not one JSON object"),
        ),
    ]
}

/// Publishes records among events of ours, and checks what becomes of each.
async fn check(bus: &Bus, records: Vec<(Record, Fate)>) {
    let log = Log::default();
    let seen = log.clone();
    let subscribing = bus.subscribe_envelope("orders", move |event| {
        seen.push(event.aggregate_id().as_str(), 0);
        async { Ok(()) }
    });
    let orders = subscribing.await.expect("subscribed");
    let (mut handled, mut dead) = (Vec::new(), Vec::new());
    for (record, fate) in records {
        let payload = record.payload.clone();
        let published = testing::publish_foreign(bus, "orders", record).await;
        let receipt = published.expect("published");
        match fate {
            Handled(key) => handled.push(key),
            Dead(reason) => {
                dead.push((
                    (u64::from(receipt.partition), receipt.offset),
                    reason,
                    payload,
                ));
            }
        }
        let ours = bus.publish_envelope("orders", &event("ours", 0)).await;
        ours.expect("published");
        handled.push("ours");
    }
    settled(bus).await;
    let mut seen: Vec<_> = log.all().into_iter().map(|(key, _)| key).collect();
    seen.sort_unstable();
    handled.sort_unstable();
    assert_eq!(seen, handled);
    let letters = bus.dead_letters("orders").await.expect("there");
    let mut letters = letters.list(usize::MAX).await.expect("a list");
    letters.sort_by_key(|letter| letter.origin);
    dead.sort_by_key(|(origin, ..)| *origin);
    assert_eq!(letters.len(), dead.len());
    for (letter, (origin, reason, payload)) in letters.iter().zip(&dead) {
        assert_eq!(letter.origin, *origin);
        assert!(
            letter.reason.contains(reason),
            "{}: {reason}",
            letter.reason
        );
        assert!(letter.record.payload == *payload, "{origin:?} is not whole");
    }
    assert_eq!(orders.stats().dead_lettered, dead.len() as u64);
    wait_for!(orders.state() == State::Running, "it is well");
}

pub(crate) async fn whatever_others_write_is_handled_or_put_aside_with_a_reason<F: Fixture>(
    at: &F,
) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(2)).await;
    check(&bus, oddities()).await;
}

pub(crate) async fn records_as_large_as_they_may_be_are_handled_or_put_aside<F: Fixture>(at: &F) {
    let bus = at.bus().await;
    declare(&bus, "orders", at.partitions(1)).await;
    let largest = at.largest();
    let records = vec![
        (
            record(Some("full"), envelope_of("full", largest)),
            Handled("full"),
        ),
        (
            record(Some("full"), vec![b'x'; largest]),
            Dead("not one JSON object"),
        ),
        (
            record(None, vec![b'x'; largest]),
            Dead("not one JSON object"),
        ),
        (
            record(None, envelope_of("no-key", largest)),
            Handled("no-key"),
        ),
    ];
    check(&bus, records).await;
}
