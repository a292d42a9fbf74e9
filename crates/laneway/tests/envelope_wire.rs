//! What the decoder accepts, what it refuses, and how it says so.

use bytes::Bytes;
use laneway::envelope::{Carrier, Envelope, Error, Field, Problem};
use laneway::headers::Headers;

/// The fields of a valid envelope, to be changed one at a time.
const FIELDS: [(&str, &str); 9] = [
    ("event_id", r#""e-1""#),
    ("aggregate_id", r#""order-1""#),
    ("event_type", r#""OrderPlaced""#),
    ("event_version", "1"),
    ("timestamp", r#""2026-11-15T09:30:00Z""#),
    ("trace_id", r#""t-1""#),
    ("correlation_id", r#""c-1""#),
    ("tenant_id", r#""acme""#),
    ("payload", r#"{"total":1}"#),
];

fn object<'a>(members: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let members: Vec<String> = members
        .into_iter()
        .map(|(name, value)| format!("\"{name}\":{value}"))
        .collect();
    format!("{{{}}}", members.join(","))
}

/// A valid envelope with this field's value replaced, or added at the end.
fn with(field: &str, value: &str) -> String {
    let mut members = FIELDS.to_vec();
    match members.iter_mut().find(|(name, _)| *name == field) {
        Some(member) => member.1 = value,
        None => members.push((field, value)),
    }
    object(members)
}

fn without(field: &str) -> String {
    object(FIELDS.into_iter().filter(|(name, _)| *name != field))
}

fn decode(json: impl Into<Bytes>) -> Result<Envelope, Error> {
    Envelope::decode(json)
}

fn problem(json: &str) -> (Field, Problem) {
    match decode(json.to_owned()) {
        Err(Error::Field { field, problem }) => (field, problem),
        other => panic!("{json} gave {other:?}"),
    }
}

fn malformed(json: impl Into<Bytes>) -> String {
    let json = json.into();
    match decode(json.clone()) {
        Err(Error::Malformed(reason)) => reason,
        other => panic!("{json:?} gave {other:?}"),
    }
}

#[test]
fn the_fixture_is_valid_in_any_field_order() {
    let forward = decode(object(FIELDS)).expect("valid");
    let backward = decode(object(FIELDS.into_iter().rev())).expect("valid");
    assert_eq!(forward, backward);
    assert_eq!(forward.tenant_id(), Some("acme"));
}

#[test]
fn required_fields_are_required() {
    for field in [
        "event_id",
        "aggregate_id",
        "event_type",
        "event_version",
        "timestamp",
        "payload",
    ] {
        let (at, problem) = problem(&without(field));
        assert_eq!((at.name(), problem), (field, Problem::Missing));
    }
}

#[test]
fn optional_fields_may_be_missing_null_or_empty() {
    for field in ["trace_id", "correlation_id", "tenant_id"] {
        let expected = decode(without(field)).expect("valid");
        for value in ["null", r#""""#] {
            assert_eq!(decode(with(field, value)), Ok(expected.clone()), "{field}");
        }
    }
    let expected = decode(object(FIELDS)).expect("valid");
    for value in ["null", r#""""#, r#""application/json""#] {
        assert_eq!(decode(with("content_type", value)), Ok(expected.clone()));
    }
}

#[test]
fn a_known_field_twice_is_refused() {
    for (name, value) in FIELDS {
        let json = object(FIELDS.into_iter().chain([(name, value)]));
        let (field, problem) = problem(&json);
        assert_eq!((field.name(), problem), (name, Problem::Twice));
    }
}

#[test]
fn unknown_fields_are_ignored_whatever_they_hold() {
    let expected = decode(object(FIELDS)).expect("valid");
    let deep = format!("{}1{}", "[".repeat(5_000), "]".repeat(5_000));
    for value in [
        "null",
        "1e400",
        r#"{"event_id":"other"}"#,
        r#""\ud800""#,
        &deep,
    ] {
        let json = object(
            [("new", value)]
                .into_iter()
                .chain(FIELDS)
                .chain([("new", value)]),
        );
        assert_eq!(decode(json), Ok(expected.clone()), "{value:.40}");
    }
    assert_eq!(decode(with("EVENT_ID", r#""other""#)), Ok(expected));
}

#[test]
fn a_tenant_is_a_text_or_a_whole_number_and_goes_out_as_a_number_where_it_is_one() {
    for (value, tenant, written) in [
        ("42", Some("42"), r#""tenant_id":42,"#),
        (r#""42""#, Some("42"), r#""tenant_id":42,"#),
        ("-7", Some("-7"), r#""tenant_id":-7,"#),
        (
            "9223372036854775807",
            Some("9223372036854775807"),
            "\"tenant_id\":9223372036854775807,",
        ),
        // What a Go program without `omitempty` writes for "none".
        ("0", None, ""),
        (r#""0""#, Some("0"), r#""tenant_id":"0","#),
        (r#""007""#, Some("007"), r#""tenant_id":"007","#),
        (r#""acme""#, Some("acme"), r#""tenant_id":"acme","#),
        (
            r#""9223372036854775808""#,
            Some("9223372036854775808"),
            r#""tenant_id":"9223372036854775808","#,
        ),
    ] {
        let envelope = decode(with("tenant_id", value)).expect(value);
        assert_eq!(envelope.tenant_id(), tenant, "{value}");
        let encoded = String::from_utf8(envelope.encode().to_vec()).expect("text");
        assert!(encoded.contains(written), "{value}: {encoded}");
        assert_eq!(encoded.contains("tenant_id"), tenant.is_some(), "{value}");
        assert_eq!(decode(encoded), Ok(envelope), "{value}");
    }
    for value in ["1.5", "1e3", "true", "[]", "{}", "9223372036854775808"] {
        let (field, problem) = problem(&with("tenant_id", value));
        assert_eq!(field, Field::TenantId, "{value}");
        assert!(
            matches!(problem, Problem::WrongType(_)),
            "{value}: {problem}"
        );
    }
}

#[test]
fn text_fields_follow_one_rule() {
    for name in [
        "event_id",
        "event_type",
        "trace_id",
        "correlation_id",
        "tenant_id",
    ] {
        let long = format!("\"{}\"", "x".repeat(1025));
        for (value, expected) in [
            (
                r#""  ""#,
                "is empty: give it at least one visible character",
            ),
            (
                r#""a\nb""#,
                "has '\\n' at byte 1: remove control characters and noncharacters",
            ),
            (
                long.as_str(),
                "is 1025 bytes long: shorten it to 1024 or less",
            ),
        ] {
            let error = decode(with(name, value)).expect_err(value);
            assert_eq!(error.to_string(), format!("{name} {expected}"));
        }
        let number = if name == "tenant_id" { "1.5" } else { "1" };
        for value in [number, "{}", "true", "[]"] {
            let (field, problem) = problem(&with(name, value));
            assert_eq!(field.name(), name);
            assert!(matches!(problem, Problem::WrongType(_)), "{problem:?}");
        }
        let (field, _) = problem(&with(name, &format!("\"{}\"", "\\u0007".repeat(3))));
        assert_eq!(field.name(), name);
    }
    for name in ["event_id", "event_type"] {
        assert_eq!(problem(&with(name, r#""""#)).1, Problem::Blank);
        assert!(matches!(
            problem(&with(name, "null")).1,
            Problem::WrongType(_)
        ));
    }
}

#[test]
fn escapes_are_decoded_in_fields_and_kept_in_the_payload() {
    let json = with("event_type", r#""\u003cPlaced\u003e \ud83e\udd80 \/""#);
    assert_eq!(decode(json).expect("valid").event_type(), "<Placed> 🦀 /");
    let json = with("payload", r#""\u003c\ud800\/""#);
    let envelope = decode(json).expect("valid");
    assert_eq!(envelope.payload().data(), r#""\u003c\ud800\/""#);
    // The payload is carried, but it is no text that Rust could hold.
    assert!(envelope.json::<String>().is_err());
    assert!(malformed(with("event_type", r#""\ud800""#)).starts_with("in event_type: "));
}

#[test]
fn aggregate_ids_are_checked() {
    for (value, expected) in [
        (
            r#""order 1""#,
            "aggregate_id has ' ' at byte 5: use only A-Z a-z 0-9 : _ - . /",
        ),
        (
            r#""ordér""#,
            "aggregate_id has 'é' at byte 3: use only A-Z a-z 0-9 : _ - . /",
        ),
        (
            r#"" order""#,
            "aggregate_id has ' ' at byte 0: use only A-Z a-z 0-9 : _ - . /",
        ),
        (r#""""#, "aggregate_id is missing: it is required"),
        ("null", "aggregate_id is missing: it is required"),
    ] {
        let error = decode(with("aggregate_id", value)).expect_err(value);
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn versions_are_whole_numbers_from_1() {
    for value in ["1", "2", "9223372036854775807"] {
        let envelope = decode(with("event_version", value)).expect(value);
        assert_eq!(envelope.event_version().to_string(), value);
    }
    for value in [
        "0",
        "-1",
        "1.0",
        "1e0",
        "null",
        r#""1""#,
        "9223372036854775808",
        "18446744073709551616",
        "99999999999999999999999999",
    ] {
        let (field, problem) = problem(&with("event_version", value));
        assert_eq!(
            (field, problem),
            (Field::EventVersion, Problem::NotVersion),
            "{value}"
        );
    }
    assert!(malformed(with("event_version", "1e999")).starts_with("in event_version: "));
    assert!(malformed(with("event_version", "01")).starts_with("in event_version: "));
}

#[test]
fn timestamps_are_rfc_3339() {
    for value in [
        r#""yesterday""#,
        r#""2026-11-15""#,
        r#""2026-11-15 09:30:00Z""#,
        r#""2026-13-15T09:30:00Z""#,
        r#""""#,
    ] {
        assert_eq!(
            problem(&with("timestamp", value)),
            (Field::Timestamp, Problem::NotRfc3339)
        );
    }
    assert!(matches!(
        problem(&with("timestamp", "1731663000")).1,
        Problem::WrongType(_)
    ));
}

#[test]
fn payloads_are_kept_byte_for_byte_and_not_copied() {
    let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
    for payload in [
        "null",
        "0",
        "-0.0",
        "1e400",
        "123456789012345678901234567890",
        r#""text""#,
        r#"{ "b" : 1 , "a" : [ ] , "b" : 2 }"#,
        &deep,
    ] {
        let body = Bytes::from(with("payload", payload));
        let envelope = decode(body.clone()).expect("valid");
        assert_eq!(envelope.payload().data(), payload);
        let (outer, inner) = (
            body.as_ptr_range(),
            envelope.payload().data().as_ptr_range(),
        );
        assert!(outer.start <= inner.start && inner.end <= outer.end);
    }
}

#[test]
fn what_a_type_cannot_hold_is_an_error_when_it_is_read() {
    let deep = with(
        "payload",
        &format!("{}{}", "[".repeat(5_000), "]".repeat(5_000)),
    );
    let envelope = decode(deep).expect("carried unread");
    let error = envelope
        .json::<serde_json::Value>()
        .expect_err("too deep to read");
    assert!(error.to_string().contains("recursion limit"), "{error}");
    let envelope = decode(with("payload", "1e400")).expect("carried unread");
    assert!(envelope.json::<f64>().is_err());
}

#[test]
fn bytes_travel_as_base64_with_their_content_type() {
    let binary = |content_type: &str, data: &str| {
        let members = FIELDS.into_iter().filter(|(name, _)| *name != "payload");
        object(members.chain([("content_type", content_type), ("payload_base64", data)]))
    };
    let envelope = decode(binary(r#""image/png""#, r#""iVBORw==""#)).expect("valid");
    assert_eq!(envelope.payload().data(), &b"\x89PNG"[..]);
    assert_eq!(envelope.payload().content_type().as_str(), "image/png");

    let empty = decode(binary(r#""image/png""#, r#""""#)).expect("valid");
    assert!(empty.payload().data().is_empty());

    // JSON may come in as base64; it leaves inline.
    let json = decode(binary(r#""application/json""#, r#""eyJhIjoxfQ==""#)).expect("valid");
    assert_eq!(json.payload().data(), r#"{"a":1}"#);
    let encoded = json.encode();
    assert!(encoded.ends_with(br#""payload":{"a":1}}"#), "{encoded:?}");

    for (json, field, expected) in [
        (
            binary("null", r#""iVBORw==""#),
            Field::ContentType,
            Problem::Missing,
        ),
        (
            with("payload_base64", r#""iVBORw==""#),
            Field::PayloadBase64,
            Problem::SecondPayload,
        ),
        (
            with("content_type", r#""image/png""#),
            Field::Payload,
            Problem::NotDeclaredJson("image/png".to_owned()),
        ),
        (
            with("content_type", r#""png""#),
            Field::ContentType,
            Problem::NotMediaType,
        ),
    ] {
        assert_eq!(problem(&json), (field, expected), "{json}");
    }
    for data in [
        r#""iVBORw""#,
        r#""iVBO Rw==""#,
        r#""_-8=""#,
        r#""iVBORx==""#,
    ] {
        let (field, problem) = problem(&binary(r#""image/png""#, data));
        assert_eq!(field, Field::PayloadBase64);
        assert!(matches!(problem, Problem::NotBase64(_)), "{data}");
    }
    let (field, problem) = problem(&binary(r#""application/json""#, r#""iVBORw==""#));
    assert_eq!(field, Field::PayloadBase64);
    assert!(matches!(problem, Problem::NotJson(_)), "{problem:?}");
}

#[test]
fn only_one_object_in_utf8_is_an_envelope() {
    let valid = object(FIELDS);
    for json in [
        String::new(),
        " ".to_owned(),
        "null".to_owned(),
        "1".to_owned(),
        "\"text\"".to_owned(),
        format!("[{valid}]"),
        r#"["e-1","order-1","OrderPlaced",1,"2026-11-15T09:30:00Z",null,null,null,{}]"#.to_owned(),
        format!("\u{feff}{valid}"),
        format!("{valid}{valid}"),
        format!("{valid},"),
        format!("{valid}\0"),
        valid[..valid.len() - 1].to_owned(),
        valid.replace(':', ";"),
        valid.replace('{', "{,"),
    ] {
        malformed(json);
    }
    for invalid in [&b"\xff"[..], b"\xc0\xaf", b"\xed\xa0\x80"] {
        let mut json = with("payload", r#""?""#).into_bytes();
        let at = json.iter().rposition(|&byte| byte == b'?').expect("there");
        json.splice(at..=at, invalid.iter().copied());
        assert!(malformed(json).contains("utf-8"));
    }
    let padded = format!(" \r\n\t{valid}\n");
    assert_eq!(decode(padded), decode(valid));
}

#[test]
fn every_truncation_is_an_error() {
    let valid = object(FIELDS);
    for length in 0..valid.len() {
        assert!(decode(valid[..length].to_owned()).is_err(), "{length}");
    }
}

#[test]
fn a_missing_aggregate_id_may_come_from_the_carrier() {
    let mut headers = Headers::new();
    headers
        .append("x-aggregate-id", "from-header")
        .expect("fits");
    let carrier = Carrier {
        headers: Some(&headers),
        ..Carrier::default()
    };
    for json in [without("aggregate_id"), with("aggregate_id", r#""""#)] {
        let envelope = Envelope::decode_from(json.clone(), &carrier).expect("valid");
        assert_eq!(envelope.aggregate_id().as_str(), "from-header");
        let error = Envelope::decode_from(json, &Carrier::default()).expect_err("none anywhere");
        assert_eq!(
            error,
            Error::Field {
                field: Field::AggregateId,
                problem: Problem::Missing
            }
        );
    }
    let envelope = Envelope::decode_from(object(FIELDS), &carrier).expect("valid");
    assert_eq!(envelope.aggregate_id().as_str(), "order-1");
    // An id that is there and wrong is not papered over.
    let wrong = with("aggregate_id", r#""order 1""#);
    assert!(Envelope::decode_from(wrong, &carrier).is_err());
}

#[test]
fn the_builder_checks_what_the_decoder_checks() {
    let field = |result: Result<Envelope, Error>| result.expect_err("invalid").field();
    let order = || Envelope::builder("order-1", "OrderPlaced");
    assert_eq!(
        field(Envelope::builder("order 1", "x").json(&1)),
        Some(Field::AggregateId)
    );
    assert_eq!(
        field(Envelope::builder("order-1", " ").json(&1)),
        Some(Field::EventType)
    );
    assert_eq!(field(order().event_id("").json(&1)), Some(Field::EventId));
    assert_eq!(
        field(order().event_version(0).json(&1)),
        Some(Field::EventVersion)
    );
    assert_eq!(
        field(order().event_version(1 << 63).json(&1)),
        Some(Field::EventVersion)
    );
    assert_eq!(field(order().trace_id("\n").json(&1)), Some(Field::TraceId));
    assert_eq!(
        field(order().correlation_id("").json(&1)),
        Some(Field::CorrelationId)
    );
    assert_eq!(field(order().tenant_id("").json(&1)), Some(Field::TenantId));
    assert_eq!(
        field(order().timestamp(jiff::Timestamp::MIN).json(&1)),
        Some(Field::Timestamp)
    );
    assert_eq!(field(order().bytes("png", "")), Some(Field::ContentType));
    assert_eq!(
        field(order().bytes("application/json", "{")),
        Some(Field::Payload)
    );
    let not_json = std::collections::BTreeMap::from([((1, 2), 3)]);
    assert_eq!(field(order().json(&not_json)), Some(Field::Payload));
}

#[test]
fn new_events_get_a_time_and_an_id_that_sorts_by_time() {
    let before = jiff::Timestamp::now();
    let build = || Envelope::builder("order-1", "x").json(&1).expect("valid");
    let (first, second) = (build(), build());
    assert!(first.event_id() < second.event_id());
    for envelope in [first, second] {
        let id: uuid::Uuid = envelope.event_id().parse().expect("a UUID");
        assert_eq!(id.get_version_num(), 7);
        assert_eq!(envelope.event_id(), id.hyphenated().to_string());
        assert!(before <= envelope.timestamp() && envelope.timestamp() <= jiff::Timestamp::now());
        assert_eq!(envelope.event_version(), 1);
    }
}
