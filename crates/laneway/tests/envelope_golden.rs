//! The wire formats, byte for byte. A change here is a change for everyone who stored or sent events.
//!
//! The files `jxt_core_*.json` were written by jxt-core's struct and JSON library; the others are ours.

use bytes::Bytes;
use jiff::Timestamp;
use laneway::envelope::cloudevents::{Binding, CloudEvent, MEDIA_TYPE};
use laneway::envelope::{Envelope, EnvelopeBuilder};
use laneway::headers::Headers;

fn when() -> Timestamp {
    "2026-11-15T09:30:00.123456789Z"
        .parse()
        .expect("a timestamp")
}

fn order(event_id: &str) -> EnvelopeBuilder {
    Envelope::builder("order:1042", "OrderPlaced")
        .event_id(event_id)
        .timestamp(when())
}

fn minimal() -> Envelope {
    order("0193e0b1-3f6b-7c3a-9d2e-1f0a5b6c7d8e")
        .json(&serde_json::json!({"total_cents": 4999}))
        .expect("valid")
}

fn full() -> Envelope {
    order("evt \"7\" \\ ü")
        .event_version(9_223_372_036_854_775_807)
        .trace_id("4bf92f3577b34da6a3ce929d0e0e4736")
        .correlation_id("checkout-77")
        .tenant_id("租户-7")
        .bytes(
            "application/vnd.order+json; v=2",
            r#"{ "n": 1.50, "big": 123456789012345678901234567890, "n": 1e400 }"#,
        )
        .expect("valid")
}

fn binary() -> Envelope {
    order("0193e0b1-3f6b-7c3a-9d2e-1f0a5b6c7d8e")
        .bytes("image/png", &b"\x89PNG\r\n\x1a\n\x00\xff"[..])
        .expect("valid")
}

/// Encoding gives exactly the file, and the file decodes to the same envelope.
fn assert_golden(envelope: &Envelope, file: &'static str) {
    let encoded = envelope.encode();
    assert_eq!(std::str::from_utf8(&encoded), Ok(file));
    assert_eq!(Envelope::decode(file).as_ref(), Ok(envelope));
}

#[test]
fn envelopes() {
    assert_golden(&minimal(), include_str!("golden/envelope_minimal.json"));
    assert_golden(&full(), include_str!("golden/envelope_full.json"));
    assert_golden(&binary(), include_str!("golden/envelope_binary.json"));
}

#[test]
fn a_full_envelope_of_jxt_core() {
    let envelope = Envelope::decode(include_str!("golden/jxt_core_full.json")).expect("valid");
    assert_eq!(
        envelope.event_id(),
        "order:1042:OrderPlaced:2:1794735000123456789"
    );
    assert_eq!(envelope.aggregate_id().as_str(), "order:1042");
    assert_eq!(envelope.event_type(), "OrderPlaced <express> & paid");
    assert_eq!(envelope.event_version(), 2);
    assert_eq!(envelope.timestamp(), when());
    assert_eq!(
        envelope.trace_id(),
        Some("4bf92f3577b34da6a3ce929d0e0e4736")
    );
    assert_eq!(envelope.correlation_id(), Some("checkout-77"));
    assert_eq!(envelope.tenant_id(), Some("4207"));
    assert_eq!(
        envelope.payload().data(),
        r#"{"total_cents": 4999, "note": "2 < 3 & \"quoted\"", "rate": 1.50}"#
    );
    // What we send back to jxt-core.
    assert_golden(
        &envelope,
        include_str!("golden/jxt_core_full_returned.json"),
    );
}

/// From 1.1.22 to 1.1.35 a tenant was text there.
#[test]
fn an_envelope_of_an_older_jxt_core() {
    let older = Envelope::decode(include_str!("golden/jxt_core_1_1_22.json")).expect("valid");
    assert_eq!(older.tenant_id(), Some("租户-7"));
    assert_eq!(Envelope::decode(older.encode()), Ok(older));
}

#[test]
fn a_minimal_envelope_of_jxt_core_returns_unchanged() {
    let file = include_str!("golden/jxt_core_minimal.json");
    let envelope = Envelope::decode(file).expect("valid");
    assert_eq!(envelope.trace_id(), None);
    assert_eq!(envelope.payload().data(), "null");
    assert_golden(&envelope, file);
}

#[test]
fn the_extremes_of_jxt_core_return_unchanged() {
    let file = include_str!("golden/jxt_core_extremes.json");
    let envelope = Envelope::decode(file).expect("valid");
    assert_eq!(envelope.event_version(), i64::MAX.unsigned_abs());
    assert_golden(&envelope, file);
}

fn event(envelope: Envelope) -> CloudEvent {
    CloudEvent::new(envelope, "/shop/orders")
        .and_then(|event| event.with_dataschema("https://example.com/order.json"))
        .and_then(|event| event.with_extension("priority", 5))
        .and_then(|event| event.with_extension("replayed", false))
        .and_then(|event| event.with_extension("note", "Euro € 😀"))
        .expect("a valid event")
}

/// Headers and body as text, the way people draw them.
fn drawn(headers: &Headers, body: &Bytes) -> String {
    let mut text = String::new();
    for (name, value) in headers.iter() {
        text.push_str(name);
        text.push_str(": ");
        text.push_str(std::str::from_utf8(value).expect("text"));
        text.push('\n');
    }
    text.push('\n');
    text.push_str(std::str::from_utf8(body).expect("text"));
    text
}

#[test]
fn cloudevents_in_structured_mode() {
    for (envelope, file) in [
        (
            full(),
            include_str!("golden/cloudevent_structured_json.json"),
        ),
        (
            binary(),
            include_str!("golden/cloudevent_structured_bytes.json"),
        ),
    ] {
        let event = event(envelope);
        let encoded = event.to_json();
        assert_eq!(std::str::from_utf8(&encoded), Ok(file));
        assert_eq!(CloudEvent::from_json(file).as_ref(), Ok(&event));
        let mut headers = Headers::new();
        headers
            .append("Content-Type", format!("{MEDIA_TYPE}; charset=utf-8"))
            .expect("fits");
        assert_eq!(CloudEvent::from_message(&headers, file), Ok(event));
    }
}

#[test]
fn cloudevents_in_binary_mode() {
    for (binding, file) in [
        (
            Binding::Http,
            include_str!("golden/cloudevent_binary_http.txt"),
        ),
        (
            Binding::Nats,
            include_str!("golden/cloudevent_binary_nats.txt"),
        ),
        (
            Binding::Kafka,
            include_str!("golden/cloudevent_binary_kafka.txt"),
        ),
    ] {
        let (headers, body) = event(full()).to_binary(binding).expect("fits");
        assert_eq!(drawn(&headers, &body), file, "{binding:?}");
        let received = CloudEvent::from_message(&headers, body).expect("valid");
        assert_eq!(received.envelope(), &full());
        assert_eq!(received.source(), "/shop/orders");
    }
}
