use bytes::Bytes;
use laneway_cluster::owner::Submit;
use laneway_delay::Timestamp;
use prost::Message as _;

use super::{Invalid, Parts, field};
use crate::proto;

/// A submit as it goes into the intake; its bytes are `encode_to_vec()` of that. `submit.body` is a [`body`](super::body).
#[must_use]
pub fn intake(submit: &Submit) -> proto::Intake {
    proto::Intake {
        id: submit.id.as_str().to_owned(),
        digest: Bytes::copy_from_slice(&submit.digest.0),
        due_ms: submit.due.as_millis(),
        submitted_ms: submit.at.as_millis(),
        topic: submit.topic.clone(),
        content: submit.body.clone(),
    }
}

/// A submit as it came from the intake. Its content is checked, and becomes the body as it is.
///
/// # Errors
/// [`Invalid`] with the field: the record has to become a dead letter.
pub fn submit(intake: proto::Intake) -> Result<Submit, Invalid> {
    let id = field::id("intake.id", &intake.id)?;
    let digest = field::digest("intake.digest", &intake.digest)?;
    if intake.topic.is_empty() {
        return Err(Invalid::new("intake.topic", "it is empty"));
    }
    let due = Timestamp::from_millis(intake.due_ms);
    if due > Timestamp::LAST_DUE {
        let problem = format!("{} is behind the last moment there is", intake.due_ms);
        return Err(Invalid::new("intake.due_ms", problem));
    }
    let content = super::content::decode(intake.content.clone());
    let content = content.map_err(|invalid| invalid.within("intake"))?;
    Parts::try_from(content).map_err(|invalid| invalid.within("intake"))?;
    Ok(Submit {
        id,
        digest,
        due,
        at: Timestamp::from_millis(intake.submitted_ms),
        topic: intake.topic,
        body: intake.content,
    })
}

/// A submit from the bytes of a record of the intake.
///
/// # Errors
/// [`Invalid`] with the field: the record has to become a dead letter.
pub fn decode_intake(record: Bytes) -> Result<Submit, Invalid> {
    let intake = proto::Intake::decode(record);
    submit(intake.map_err(|error| Invalid::new("intake", error.to_string()))?)
}
