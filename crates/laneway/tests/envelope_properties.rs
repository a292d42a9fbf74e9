//! Laws that hold for every envelope, and for every sequence of bytes.

use bytes::Bytes;
use jiff::Timestamp;
use laneway::envelope::cloudevents::{Attribute, Binding, CloudEvent};
use laneway::envelope::{Carrier, Envelope, extract_aggregate_id};
use laneway::headers::Headers;
use laneway::topic::{Topic, TopicName};
use laneway::trace::TraceParent;
use proptest::prelude::*;

/// Every golden file, as a starting point for mutations.
const GOLDEN: [&[u8]; 9] = [
    include_bytes!("golden/envelope_minimal.json"),
    include_bytes!("golden/envelope_full.json"),
    include_bytes!("golden/envelope_binary.json"),
    include_bytes!("golden/jxt_core_full.json"),
    include_bytes!("golden/jxt_core_minimal.json"),
    include_bytes!("golden/jxt_core_extremes.json"),
    include_bytes!("golden/cloudevent_structured_json.json"),
    include_bytes!("golden/cloudevent_structured_bytes.json"),
    b"{\"name\":\"orders\",\"kind\":\"domain\",\"partitions\":8,\"retention\":{\"age\":\"7d\",\"bytes\":\"1GiB\",\"count\":5}}",
];

/// Text that fields allow, with everything that needs escaping somewhere.
fn text() -> impl Strategy<Value = String> {
    proptest::string::string_regex("[!-~é€😀\"\\\\%<&][ -~é€😀\"\\\\%<&]{0,40}").expect("a pattern")
}

fn aggregate_id() -> impl Strategy<Value = String> {
    proptest::string::string_regex("[A-Za-z0-9:_./-]{1,60}").expect("a pattern")
}

fn timestamp() -> impl Strategy<Value = Timestamp> {
    (-62_167_219_200..253_402_207_200_i64, 0..1_000_000_000_i32)
        .prop_map(|(second, nanosecond)| Timestamp::new(second, nanosecond).expect("in range"))
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(serde_json::Value::from),
        any::<i64>().prop_map(serde_json::Value::from),
        any::<String>().prop_map(serde_json::Value::from),
    ];
    leaf.prop_recursive(4, 24, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(serde_json::Value::from),
            proptest::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A content type and bytes that fit it.
fn payload() -> impl Strategy<Value = (String, Vec<u8>)> {
    prop_oneof![
        json().prop_map(|json| ("application/json".to_owned(), json.to_string().into_bytes())),
        json().prop_map(|json| (
            "text/x+JSON; a=\"b\"".to_owned(),
            json.to_string().into_bytes()
        )),
        (
            prop_oneof![Just("image/png"), Just("text/plain; charset=\"x y\"")],
            proptest::collection::vec(any::<u8>(), 0..200),
        )
            .prop_map(|(content_type, bytes)| (content_type.to_owned(), bytes)),
    ]
}

prop_compose! {
    fn envelope()(
        event_id in text(),
        aggregate_id in aggregate_id(),
        event_type in text(),
        version in prop_oneof![1..10_u64, 1..=i64::MAX.unsigned_abs()],
        timestamp in timestamp(),
        trace_id in proptest::option::of(text()),
        correlation_id in proptest::option::of(text()),
        tenant_id in proptest::option::of(text()),
        (content_type, data) in payload(),
    ) -> Envelope {
        let mut builder = Envelope::builder(aggregate_id, event_type)
            .event_id(event_id)
            .event_version(version)
            .timestamp(timestamp);
        if let Some(id) = trace_id {
            builder = builder.trace_id(id);
        }
        if let Some(id) = correlation_id {
            builder = builder.correlation_id(id);
        }
        if let Some(id) = tenant_id {
            builder = builder.tenant_id(id);
        }
        builder.bytes(content_type, data).expect("valid by construction")
    }
}

prop_compose! {
    fn event()(
        envelope in envelope(),
        subject in proptest::option::of(text()),
        schema in proptest::option::of(Just("urn:schema:1")),
        extensions in proptest::collection::btree_map("x[a-z0-9]{0,10}", prop_oneof![
            any::<bool>().prop_map(Attribute::from),
            any::<i32>().prop_map(Attribute::from),
            text().prop_map(Attribute::from),
        ], 0..4),
    ) -> CloudEvent {
        let mut event = CloudEvent::new(envelope, "/a%20b?c=d#e").expect("a source");
        if let Some(subject) = subject {
            event = event.with_subject(subject).expect("text");
        }
        if let Some(schema) = schema {
            event = event.with_dataschema(schema).expect("a URI");
        }
        for (name, value) in extensions {
            event = event.with_extension(name, value).expect("an extension");
        }
        event
    }
}

/// A golden file with a few bytes replaced, inserted, removed or repeated.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let mutation = (
        any::<prop::sample::Index>(),
        any::<u8>(),
        0..5_u8,
        0..40_usize,
    );
    (
        prop::sample::select(&GOLDEN[..]),
        proptest::collection::vec(mutation, 1..6),
    )
        .prop_map(|(golden, mutations)| {
            let mut bytes = golden.to_vec();
            for (index, byte, kind, length) in mutations {
                let at = index.index(bytes.len() + 1);
                let end = (at + length).min(bytes.len());
                match kind {
                    0 => bytes.insert(at, byte),
                    1 => drop(bytes.drain(at..end)),
                    2 => {
                        let copy = bytes[at..end].to_vec();
                        bytes.splice(at..at, copy);
                    }
                    3 => bytes.insert(at, b"{}[]\",:\\0e-."[usize::from(byte) % 12]),
                    _ => {
                        if let Some(place) = bytes.get_mut(at) {
                            *place = byte;
                        }
                    }
                }
            }
            bytes
        })
}

/// Nothing panics, and what is accepted is a fixed point: it encodes to something that decodes to
/// itself.
fn survives(bytes: &[u8]) {
    let body = Bytes::copy_from_slice(bytes);
    if let Ok(envelope) = Envelope::decode(body.clone()) {
        let encoded = envelope.encode();
        let again = Envelope::decode(encoded.clone()).expect("what we write, we read");
        assert_eq!(again, envelope);
        assert_eq!(again.encode(), encoded);
        let event = CloudEvent::new(envelope.clone(), "/s").expect("a source");
        let event = CloudEvent::from_json(event.to_json()).expect("what we write, we read");
        assert_eq!(event.into_envelope(), envelope);
    }
    if let Ok(event) = CloudEvent::from_json(body.clone()) {
        let again = CloudEvent::from_json(event.to_json()).expect("what we write, we read");
        assert_eq!(again, event);
    }
    if let Ok(topic) = serde_json::from_slice::<Topic>(bytes) {
        let json = serde_json::to_vec(&topic).expect("a topic is JSON");
        assert_eq!(
            serde_json::from_slice::<Topic>(&json).expect("valid"),
            topic
        );
    }
    let text = String::from_utf8_lossy(bytes);
    if let Ok(parent) = TraceParent::parse(&text) {
        assert_eq!(TraceParent::parse(&parent.to_string()), Ok(parent));
    }
    if let Ok(name) = TopicName::new(&text) {
        assert_eq!(TopicName::new(name.dead()), Ok(name.dead()));
    }
    let carrier = Carrier {
        key: Some(bytes),
        subject: Some(&text),
        ..Carrier::default()
    };
    if let Some((id, _)) = extract_aggregate_id(None, &carrier).found {
        assert!((1..=256).contains(&id.as_bytes().len()));
    }
}

proptest! {
    #[test]
    fn every_envelope_survives_the_wire(envelope in envelope()) {
        let encoded = envelope.encode();
        prop_assert_eq!(Envelope::decode(encoded), Ok(envelope));
    }

    #[test]
    fn headers_say_the_same_as_the_envelope(envelope in envelope()) {
        let headers = Headers::of_envelope(&envelope);
        prop_assert_eq!(headers.get_str("x-event-id"), Some(envelope.event_id()));
        prop_assert_eq!(headers.get_str("x-tenant-id"), envelope.tenant_id());
        let carrier = Carrier { headers: Some(&headers), ..Carrier::default() };
        let found = extract_aggregate_id(None, &carrier).found.map(|(id, _)| id);
        prop_assert_eq!(found.as_ref(), Some(envelope.aggregate_id()));
    }

    #[test]
    fn every_event_survives_structured_mode(event in event()) {
        prop_assert_eq!(CloudEvent::from_json(event.to_json()), Ok(event));
    }

    #[test]
    fn every_event_survives_binary_mode(event in event()) {
        for binding in [Binding::Http, Binding::Nats, Binding::Kafka] {
            let (headers, body) = event.to_binary(binding).expect("fits");
            let received = CloudEvent::from_message(&headers, body).expect("valid");
            prop_assert_eq!(received.envelope(), event.envelope());
            prop_assert_eq!(received.source(), event.source());
            prop_assert_eq!(received.subject(), event.subject());
            prop_assert_eq!(received.dataschema(), event.dataschema());
            // Headers know no types: extensions come back as text.
            let sent: Vec<_> = event.extensions().map(|(name, value)| (name, value.to_text())).collect();
            let got: Vec<_> = received.extensions().map(|(name, value)| (name, value.to_text())).collect();
            prop_assert_eq!(got, sent);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        survives(&bytes);
    }

    #[test]
    fn mutated_messages_never_panic(bytes in mutated()) {
        survives(&bytes);
    }

    #[test]
    fn every_trace_parent_survives(trace in any::<[u8; 16]>(), span in any::<[u8; 8]>(), flags in 0..4_u8) {
        let text = format!(
            "00-{:032x}-{:016x}-{flags:02x}",
            u128::from_be_bytes(trace),
            u64::from_be_bytes(span),
        );
        match TraceParent::parse(&text) {
            Ok(parent) => prop_assert_eq!(parent.to_string(), text),
            Err(_) => prop_assert!(trace == [0; 16] || span == [0; 8]),
        }
    }
}
