use std::time::Duration;

use laneway_cluster::apply::Kept;
use laneway_cluster::owner::{Go, Outcome, Request};
use laneway_cluster::record::Instance;
use laneway_cluster::worker::Status;
use laneway_delay::{MessageId, Record, State, Timestamp, Version};

use super::field::{self, required};
use super::{Invalid, Parts};
use crate::proto::{self, status::What};

/// What an owner asks a worker: what became of this attempt?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The shard of the message.
    pub shard: u32,
    /// The epoch of the owner.
    pub epoch: u64,
    /// Which message.
    pub id: MessageId,
    /// Which attempt.
    pub attempt: u32,
}

/// A go as it is sent to its worker, with the content of its message.
///
/// # Errors
/// [`Invalid`] with the field, if the body of the row cannot be read.
pub fn go(shard: u32, go: &Go, kept: &Kept) -> Result<proto::Go, Invalid> {
    let image = &kept.image;
    Ok(proto::Go {
        shard,
        epoch: go.epoch,
        id: go.id.as_str().to_owned(),
        attempt: go.attempt,
        not_before_ms: go.not_before.as_millis(),
        due_ms: image.due.as_millis(),
        accepted_ms: image.accepted.as_millis(),
        topic: image.topic.clone(),
        content: Some(super::content::decode(image.body.clone())?),
        failures: image.failures,
    })
}

/// A go as the worker `worker` got it.
///
/// # Errors
/// [`Invalid`] with the field.
pub fn attempt(go: &proto::Go, worker: Instance) -> Result<Go, Invalid> {
    Ok(Go {
        worker,
        epoch: go.epoch,
        id: field::id("go.id", &go.id)?,
        attempt: numbered("go.attempt", go.attempt)?,
        not_before: Timestamp::from_millis(go.not_before_ms),
    })
}

/// The message of a go as sinks want it: firing since `since`, for the attempt of the go.
///
/// # Errors
/// [`Invalid`] with the field.
pub fn firing(go: proto::Go, since: Timestamp) -> Result<laneway_delay::Message, Invalid> {
    let id = field::id("go.id", &go.id)?;
    let attempts = numbered("go.attempt", go.attempt)?;
    let content = required("go.content", go.content)?;
    let parts = Parts::try_from(content).map_err(|invalid| invalid.within("go"))?;
    let due = Timestamp::from_millis(go.due_ms);
    let record = Record::restore(
        Version::FIRST,
        due,
        attempts,
        go.failures,
        State::Firing { since },
    );
    Ok(laneway_delay::Message {
        id,
        topic: go.topic,
        record,
        accepted: Timestamp::from_millis(go.accepted_ms),
        payload: parts.payload,
        content_type: parts.content_type,
        target: parts.target,
        retry: parts.retry,
        metadata: parts.metadata,
        history: Vec::new(),
    })
}

impl From<&Asked> for proto::Ask {
    fn from(asked: &Asked) -> Self {
        Self {
            shard: asked.shard,
            epoch: asked.epoch,
            id: asked.id.as_str().to_owned(),
            attempt: asked.attempt,
        }
    }
}

impl TryFrom<proto::Ask> for Asked {
    type Error = Invalid;

    fn try_from(ask: proto::Ask) -> Result<Self, Invalid> {
        Ok(Self {
            shard: ask.shard,
            epoch: ask.epoch,
            id: field::id("ask.id", &ask.id)?,
            attempt: numbered("ask.attempt", ask.attempt)?,
        })
    }
}

/// What a worker says to `asked`.
#[must_use]
pub fn status(asked: &Asked, status: Status) -> proto::Status {
    let what = match status {
        Status::Refused => What::Refused(true),
        Status::Disclaimed => What::Disclaimed(true),
        Status::Runs => What::Runs(true),
        Status::Ended(outcome) => What::Ended(outcome.into()),
    };
    proto::Status {
        shard: asked.shard,
        epoch: asked.epoch,
        id: asked.id.as_str().to_owned(),
        attempt: asked.attempt,
        what: Some(what),
    }
}

impl TryFrom<proto::Status> for (Asked, Status) {
    type Error = Invalid;

    fn try_from(status: proto::Status) -> Result<Self, Invalid> {
        let no = |field| Err(Invalid::new(field, "it is false, which says nothing"));
        let what = match required("status.what", status.what)? {
            What::Refused(true) => Status::Refused,
            What::Refused(false) => return no("status.refused"),
            What::Disclaimed(true) => Status::Disclaimed,
            What::Disclaimed(false) => return no("status.disclaimed"),
            What::Runs(true) => Status::Runs,
            What::Runs(false) => return no("status.runs"),
            What::Ended(ending) => Status::Ended(
                ending
                    .try_into()
                    .map_err(|invalid: Invalid| invalid.within("status"))?,
            ),
        };
        let asked = Asked {
            shard: status.shard,
            epoch: status.epoch,
            id: field::id("status.id", &status.id)?,
            attempt: numbered("status.attempt", status.attempt)?,
        };
        Ok((asked, what))
    }
}

/// An outcome as it is sent to the owner.
#[must_use]
pub fn outcome(shard: u32, id: &MessageId, attempt: u32, ending: proto::Ending) -> proto::Outcome {
    proto::Outcome {
        shard,
        id: id.as_str().to_owned(),
        attempt,
        ending: Some(ending),
    }
}

/// The request that the owner is asked with when `worker` sent an outcome. `waits` are those between the attempts of the message.
///
/// # Errors
/// [`Invalid`] with the field.
pub fn settle(
    worker: Instance,
    outcome: proto::Outcome,
    waits: Vec<Duration>,
) -> Result<Request, Invalid> {
    let ending = required("outcome.ending", outcome.ending)?;
    let how = Outcome::try_from(ending).map_err(|invalid| invalid.within("outcome"))?;
    Ok(Request::Outcome {
        worker,
        id: field::id("outcome.id", &outcome.id)?,
        attempt: numbered("outcome.attempt", outcome.attempt)?,
        outcome: how,
        waits,
    })
}

/// Attempts are counted from 1.
fn numbered(field: &str, attempt: u32) -> Result<u32, Invalid> {
    if attempt == 0 {
        return Err(Invalid::new(
            field,
            "it is 0, and attempts are counted from 1",
        ));
    }
    Ok(attempt)
}
