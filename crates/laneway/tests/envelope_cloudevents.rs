//! `CloudEvents`: what comes in, what is refused, and the examples of the specification.

use laneway::envelope::Problem;
use laneway::envelope::cloudevents::{Attribute, Binding, CloudEvent, Error};
use laneway::headers::Headers;

fn event(more: &str) -> String {
    format!(
        r#"{{"specversion":"1.0","id":"1","source":"/s","type":"t","time":"2018-04-05T17:31:00Z","partitionkey":"k"{more}}}"#
    )
}

fn read(json: impl Into<String>) -> Result<CloudEvent, Error> {
    CloudEvent::from_json(json.into())
}

fn headers(entries: &[(&str, &str)]) -> Headers {
    let mut headers = Headers::new();
    for (name, value) in entries {
        headers.append(name, (*value).to_owned()).expect("fits");
    }
    headers
}

const BINARY: [(&str, &str); 5] = [
    ("ce-specversion", "1.0"),
    ("ce-id", "1"),
    ("ce-source", "/s"),
    ("ce-type", "t"),
    ("ce-partitionkey", "k"),
];

fn binary(more: &[(&str, &str)], body: &'static str) -> Result<CloudEvent, Error> {
    CloudEvent::from_binary(&headers(&[&BINARY, more].concat()), body)
}

#[test]
fn the_examples_of_the_json_format() {
    let example = |more: &str| {
        read(format!(
            r#"{{
                "specversion" : "1.0",
                "type" : "com.example.someevent",
                "source" : "/mycontext",
                "subject": null,
                "id" : "C234-1234-1234",
                "time" : "2018-04-05T17:31:00Z",
                "partitionkey": "k",
                "comexampleextension1" : "value",
                "comexampleothervalue" : 5,
                "unsetextension": null,
                {more}
            }}"#
        ))
        .expect("an example")
    };
    let json = example(r#""datacontenttype" : "application/json", "data" : { "a" : 1 }"#);
    assert_eq!(json.envelope().payload().data(), r#"{ "a" : 1 }"#);
    assert_eq!(json.subject(), None);
    assert_eq!(
        json.extensions().collect::<Vec<_>>(),
        [
            ("comexampleextension1", &Attribute::from("value")),
            ("comexampleothervalue", &Attribute::from(5)),
        ]
    );

    let xml = example(r#""datacontenttype" : "application/xml", "data" : "<much wow=\"xml\"/>""#);
    assert_eq!(xml.envelope().payload().data(), r#"<much wow="xml"/>"#);

    let bytes = example(
        r#""datacontenttype" : "application/vnd.apache.thrift.binary", "data_base64" : "AP8=""#,
    );
    assert_eq!(bytes.envelope().payload().data(), &b"\x00\xff"[..]);

    let text = example(r#""data" : "I'm just a string""#);
    assert_eq!(text.envelope().payload().data(), r#""I'm just a string""#);
    let (headers, body) = text.to_binary(Binding::Http).expect("fits");
    assert_eq!(headers.get_str("content-type"), Some("application/json"));
    assert_eq!(body, r#""I'm just a string""#);
}

#[test]
fn the_aggregate_id_is_the_partition_key_or_else_the_subject() {
    let id =
        |json: &str| read(json).map(|event| event.envelope().aggregate_id().as_str().to_owned());
    assert_eq!(id(&event(r#","subject":"other""#)), Ok("k".to_owned()));
    let keyless = event("").replace(r#","partitionkey":"k""#, r#","subject":"order-1""#);
    assert_eq!(id(&keyless), Ok("order-1".to_owned()));
    let error = read(event("").replace(r#","partitionkey":"k""#, "")).expect_err("no key");
    assert_eq!(error.to_string(), "partitionkey is missing: it is required");
    let error = read(event("").replace(r#""k""#, r#""a b""#)).expect_err("not an aggregate id");
    assert_eq!(
        error.to_string(),
        "partitionkey has ' ' at byte 1: use only A-Z a-z 0-9 : _ - . /"
    );
}

#[test]
fn required_attributes_are_required_in_both_modes() {
    for name in ["specversion", "id", "source", "type"] {
        let json = event("");
        let members: Vec<&str> = json[1..json.len() - 1]
            .split(',')
            .filter(|member| !member.starts_with(&format!("\"{name}\"")))
            .collect();
        let expected = Error::Attribute {
            name: name.to_owned(),
            problem: Problem::Missing,
        };
        let without = format!("{{{}}}", members.join(","));
        assert_eq!(read(without.clone()), Err(expected.clone()));
        let null = without.replace('{', &format!(r#"{{"{name}":null,"#));
        assert_eq!(read(null), Err(expected.clone()));

        let entries: Vec<_> = BINARY
            .into_iter()
            .filter(|(header, _)| *header != format!("ce-{name}"))
            .collect();
        assert_eq!(
            CloudEvent::from_binary(&headers(&entries), "1"),
            Err(expected)
        );
    }
}

#[test]
fn what_the_specification_forbids_is_refused() {
    for (json, expected) in [
        (
            event("").replace("1.0", "0.3"),
            r#"specversion is "0.3": only 1.0 is known, send that"#,
        ),
        (
            event("").replace("\"/s\"", "\"\""),
            "source is empty: give it at least one visible character",
        ),
        (
            event("").replace("/s", "/a b"),
            "source is not a URI reference: percent-encode what is outside its alphabet",
        ),
        (
            event("").replace("2018-04-05T17:31:00Z", "noon"),
            "time is not an RFC 3339 time of the years 0000 to 9999: write it like 2026-11-15T09:30:00Z",
        ),
        (
            event(r#","id":"2""#),
            "id appears twice: keep one, readers disagree about which one counts",
        ),
        (
            event(r#","data":1,"data":2"#),
            "data appears twice: keep one, readers disagree about which one counts",
        ),
        (
            event(r#","data":1,"data_base64":"AP8=""#),
            "data and data_base64 are both there: keep one",
        ),
        (
            event(r#","data_base64":"AP8""#),
            "data_base64 is not standard base64 with padding: Invalid padding",
        ),
        (
            event(r#","data_base64":1"#),
            "data_base64 has the wrong type: it is not a string",
        ),
        (
            event(r#","myExtension":1"#),
            r#"attribute name "myExtension" is not made of a-z and 0-9: rename it"#,
        ),
        (
            event(r#","big":2147483648"#),
            "big is not a whole number of 32 bits: send it as a string",
        ),
        (
            event(r#","half":0.5"#),
            "half is not a whole number of 32 bits: send it as a string",
        ),
        (
            event(r#","note":"a\nb""#),
            "note has '\\n' at byte 1: remove control characters and noncharacters",
        ),
        (
            event(r#","subject":"""#),
            "subject is empty: give it at least one visible character",
        ),
        (
            event(r#","subject":true"#),
            "subject has the wrong type: true where a string goes",
        ),
        (
            event(r#","eventversion":0"#),
            "eventversion is not a version: use a whole number from 1 to 9223372036854775807",
        ),
        (
            event(r#","eventversion":"01""#),
            "eventversion is not a version: use a whole number from 1 to 9223372036854775807",
        ),
        (
            event(r#","datacontenttype":"text/plain","data":{"a":1}"#),
            "data has the wrong type: data of a content type that is not JSON is a string",
        ),
        (
            event(r#","datacontenttype":"application/json","data_base64":"AP8=""#),
            "data_base64 is not JSON: expected value at line 1 column 1; \
             send the bytes under a content type that is not JSON",
        ),
    ] {
        let error = read(json.clone()).expect_err(&json);
        assert_eq!(error.to_string(), expected, "{json}");
    }
    for json in [
        String::new(),
        "[]".to_owned(),
        event("")[1..].to_owned(),
        event(r#","nested":{"a":1}"#),
        event(r#","list":[]"#),
    ] {
        assert!(
            matches!(read(json.clone()), Err(Error::Malformed(_))),
            "{json}"
        );
    }
}

#[test]
fn missing_data_is_null_or_no_bytes() {
    let payload = |event: CloudEvent| {
        let payload = event.envelope().payload();
        (payload.content_type().to_string(), payload.data().clone())
    };
    let pair = |content_type: &str, data: &'static str| (content_type.to_owned(), data.into());
    let structured = |more| payload(read(event(more)).expect("valid"));
    assert_eq!(structured(""), pair("application/json", "null"));
    assert_eq!(
        structured(r#","data":null"#),
        pair("application/json", "null")
    );
    assert_eq!(
        structured(r#","datacontenttype":"image/png""#),
        pair("image/png", "")
    );
    let body = |more: &[_], body| payload(binary(more, body).expect("valid"));
    assert_eq!(body(&[], ""), pair("application/json", "null"));
    assert_eq!(body(&[], "raw"), pair("application/octet-stream", "raw"));
    assert_eq!(
        body(&[("Content-Type", "text/plain")], ""),
        pair("text/plain", "")
    );
    assert_eq!(
        body(&[("content-type", "application/json")], " [1] "),
        pair("application/json", "[1]")
    );
    assert!(binary(&[("content-type", "application/json")], "{").is_err());
}

#[test]
fn headers_are_read_in_any_case_and_decoded_once() {
    let received = CloudEvent::from_binary(
        &headers(&[
            ("CE-SpecVersion", "1.0"),
            ("Ce-Id", "Euro%20%E2%82%AC%2520"),
            ("ce-Source", "/s"),
            ("ce-type", "\"quoted type\""),
            ("ce-PartitionKey", "k"),
            ("ce-eventversion", "7"),
            ("X-Other", "ignored"),
            ("ce", "ignored"),
        ]),
        "",
    )
    .expect("valid");
    assert_eq!(received.envelope().event_id(), "Euro €%20");
    assert_eq!(received.envelope().event_type(), "quoted type");
    assert_eq!(received.envelope().event_version(), 7);
    assert_eq!(received.extensions().count(), 0);
}

#[test]
fn kafka_headers_are_text_as_it_is() {
    let entries: Vec<(String, &str)> = BINARY
        .iter()
        .map(|(name, value)| (name.replace('-', "_"), *value))
        .collect();
    let mut entries: Vec<(&str, &str)> = entries
        .iter()
        .map(|(name, value)| (name.as_str(), *value))
        .collect();
    entries[1].1 = "100%25 €";
    let received = CloudEvent::from_binary(&headers(&entries), "").expect("valid");
    assert_eq!(received.envelope().event_id(), "100%25 €");
}

#[test]
fn broken_headers_are_refused() {
    for (more, expected) in [
        (
            ("ce-note", "%zz"),
            "note is not percent-encoded UTF-8: write a percent sign as %25",
        ),
        (
            ("ce-note", "%C0%A0"),
            "note is not percent-encoded UTF-8: write a percent sign as %25",
        ),
        (
            ("ce-id", "2"),
            "id appears twice: keep one, readers disagree about which one counts",
        ),
        (
            ("ce_id", "2"),
            "id appears twice: keep one, readers disagree about which one counts",
        ),
        (
            ("ce-my_note", "1"),
            r#"attribute name "my_note" is not made of a-z and 0-9: rename it"#,
        ),
        (
            ("ce-data", "1"),
            "data is not an extension: set it on the envelope or the event",
        ),
        (
            ("content-type", "png"),
            "datacontenttype is not a media type: write it like application/octet-stream",
        ),
    ] {
        let error = binary(&[more], "").expect_err(more.0);
        assert_eq!(error.to_string(), expected);
    }
    let two = [
        ("content-type", "text/plain"),
        ("ce-datacontenttype", "image/png"),
    ];
    assert!(matches!(
        binary(&two, ""),
        Err(Error::TwoContentTypes(_, _))
    ));
    let agreeing = [
        ("content-type", "text/plain"),
        ("ce-datacontenttype", "text/plain"),
    ];
    assert!(binary(&agreeing, "").is_ok());
    let mut entries = headers(&BINARY);
    entries.append("ce_note", &b"\xff"[..]).expect("fits");
    assert!(CloudEvent::from_binary(&entries, "").is_err());
}

#[test]
fn extensions_cannot_take_the_names_of_other_attributes() {
    let event = read(event("")).expect("valid");
    for name in ["id", "data", "partitionkey", "eventversion", "tenantid"] {
        assert_eq!(
            event.clone().with_extension(name, "x"),
            Err(Error::Reserved(name.to_owned()))
        );
    }
    assert!(event.clone().with_extension("Upper", "x").is_err());
    assert!(event.clone().with_extension("note", "a\u{7}").is_err());
    assert!(event.clone().with_subject(" ").is_err());
    assert!(event.with_dataschema("not a uri").is_err());
}

#[test]
fn an_event_that_outgrows_the_headers_is_refused() {
    let event = read(event("")).expect("valid");
    let event = event
        .with_extension("note", "x".repeat(9_000))
        .expect("text");
    assert!(matches!(
        event.to_binary(Binding::Kafka),
        Err(Error::Header(_))
    ));
    assert_eq!(CloudEvent::from_json(event.to_json()), Ok(event));
}
