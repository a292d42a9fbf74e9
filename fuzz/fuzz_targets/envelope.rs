//! Any bytes: decoding never panics, and what it accepts is written and read back the same.
#![no_main]

use bytes::Bytes;
use laneway::envelope::{Carrier, Envelope, extract_aggregate_id};
use laneway::headers::Headers;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let carrier = Carrier {
        headers: None,
        key: Some(data),
        subject: Some(&text),
    };
    let _ = extract_aggregate_id(None, &carrier);

    let body = Bytes::copy_from_slice(data);
    let _ = Envelope::decode_from(body.clone(), &carrier);
    let Ok(envelope) = Envelope::decode(body) else {
        return;
    };
    let encoded = envelope.encode();
    let again = Envelope::decode(encoded.clone()).expect("what we write, we read");
    assert_eq!(again, envelope);
    assert_eq!(again.encode(), encoded);
    let _ = envelope.json::<serde_json::Value>();
    let headers = Headers::of_envelope(&envelope);
    let carrier = Carrier {
        headers: Some(&headers),
        ..Carrier::default()
    };
    let found = extract_aggregate_id(None, &carrier).found;
    assert_eq!(found.map(|(id, _)| id).as_ref(), Some(envelope.aggregate_id()));
});
