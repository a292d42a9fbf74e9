//! Any body and any headers: reading never panics, and what it accepts survives every mode.
//!
//! The input is a body in structured mode, or lines of `name: value`, an empty line and a body.
#![no_main]

use bytes::Bytes;
use laneway::envelope::cloudevents::{Binding, CloudEvent};
use laneway::headers::Headers;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(event) = CloudEvent::from_json(Bytes::copy_from_slice(data)) {
        survives(&event);
    }
    let (head, body) = match data.windows(2).position(|pair| pair == b"\n\n") {
        Some(at) => (&data[..at], &data[at + 2..]),
        None => (data, &[][..]),
    };
    let mut headers = Headers::new();
    for line in head.split(|&byte| byte == b'\n') {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else {
            continue;
        };
        let value = line[colon + 1..].trim_ascii().to_vec();
        let _ = headers.append(String::from_utf8_lossy(&line[..colon]), value);
    }
    if let Ok(event) = CloudEvent::from_message(&headers, Bytes::copy_from_slice(body)) {
        survives(&event);
    }
});

fn survives(event: &CloudEvent) {
    let again = CloudEvent::from_json(event.to_json()).expect("what we write, we read");
    assert_eq!(&again, event);
    for binding in [Binding::Http, Binding::Nats, Binding::Kafka] {
        // An event with long extensions does not fit into headers.
        let Ok((headers, body)) = event.to_binary(binding) else {
            continue;
        };
        let again = CloudEvent::from_message(&headers, body).expect("what we write, we read");
        assert_eq!(again.envelope(), event.envelope());
    }
}
