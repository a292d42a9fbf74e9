//! Writing an envelope as JSON.
//!
//! Field order is fixed and the same as in jxt-core, so that equal envelopes are equal bytes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Serialize;

use super::content_type::ContentType;
use super::error::Field;
use super::{Envelope, tenant, timestamp};

/// Room for the required field names, the version, the timestamp and their punctuation.
const FRAME: usize = 144;

/// Room for the name of an optional field and its punctuation.
const OPTIONAL: usize = 24;

pub(super) fn encode(envelope: &Envelope) -> Vec<u8> {
    let payload = &envelope.payload;
    let mut out = Vec::with_capacity(capacity(envelope));
    out.push(b'{');
    text(&mut out, Field::EventId, &envelope.event_id);
    text(&mut out, Field::AggregateId, envelope.aggregate_id.as_str());
    text(&mut out, Field::EventType, &envelope.event_type);
    name(&mut out, Field::EventVersion);
    json(&mut out, &envelope.event_version);
    name(&mut out, Field::Timestamp);
    out.push(b'"');
    timestamp::write(envelope.timestamp, &mut out);
    out.push(b'"');
    optional(&mut out, Field::TraceId, envelope.trace_id());
    optional(&mut out, Field::CorrelationId, envelope.correlation_id());
    match envelope.tenant_id() {
        Some(id) if tenant::is_number(id) => {
            name(&mut out, Field::TenantId);
            out.extend_from_slice(id.as_bytes());
        }
        id => optional(&mut out, Field::TenantId, id),
    }
    if *payload.content_type() != ContentType::JSON {
        text(
            &mut out,
            Field::ContentType,
            payload.content_type().as_str(),
        );
    }
    if payload.is_json() {
        name(&mut out, Field::Payload);
        out.extend_from_slice(payload.data());
    } else {
        text(
            &mut out,
            Field::PayloadBase64,
            &BASE64.encode(payload.data()),
        );
    }
    out.push(b'}');
    out
}

/// About as much as the envelope takes, so that the buffer grows rarely.
fn capacity(envelope: &Envelope) -> usize {
    let optional = [
        envelope.trace_id(),
        envelope.correlation_id(),
        envelope.tenant_id(),
    ];
    let texts = optional.iter().flatten().map(|text| OPTIONAL + text.len());
    let payload = envelope.payload.data().len();
    FRAME
        + envelope.event_id.len()
        + envelope.aggregate_id.as_str().len()
        + envelope.event_type.len()
        + texts.sum::<usize>()
        + if envelope.payload.is_json() {
            payload
        } else {
            payload.div_ceil(3) * 4
        }
}

fn optional(out: &mut Vec<u8>, field: Field, value: Option<&str>) {
    if let Some(value) = value {
        text(out, field, value);
    }
}

fn text(out: &mut Vec<u8>, field: Field, value: &str) {
    name(out, field);
    json(out, value);
}

/// Starts a member: a comma unless it is the first, the name, a colon.
fn name(out: &mut Vec<u8>, field: Field) {
    if out.len() > 1 {
        out.push(b',');
    }
    out.push(b'"');
    out.extend_from_slice(field.name().as_bytes());
    out.extend_from_slice(b"\":");
}

fn json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value).expect("text and numbers can always be written to memory");
}
