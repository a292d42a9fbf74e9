//! The event that a delayed message becomes.

use bytes::Bytes;
use laneway::Envelope;
use laneway::envelope::{ContentType, Error, Payload};
use laneway_delay::BusTarget;

/// Makes the event. Its id is that of the message, so that a message that comes twice, because nobody
/// knew whether the first one arrived, can be told by its id.
pub(crate) fn made_of(
    id: &str,
    target: &BusTarget,
    content_type: Option<&str>,
    payload: &Bytes,
) -> Result<Envelope, Error> {
    let builder = Envelope::builder(&target.aggregate_id, &target.event_type).event_id(id);
    if payload.is_empty() {
        return builder.json(&());
    }
    let content_type = ContentType::new(content_type.unwrap_or("application/octet-stream"))?;
    builder.payload(Payload::bytes(content_type, payload.clone())?)
}
