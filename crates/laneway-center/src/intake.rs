//! Takes submits from the intake.
//!
//! A record of the intake is settled when the owner of its shard has read its decision back, and never lost: what cannot
//! be decided here comes again. What cannot be read, and what waited for too long, becomes a dead letter.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use laneway::lanes::Failure;
use laneway::retry::RetryPolicy;
use laneway::{Bus, DELAY_TOPIC, Envelope, Event as Delivery, Subscription};
use laneway_cluster::owner::Submit;
use laneway_cluster::record::RequestDigest;
use laneway_cluster::shard_of;
use laneway_delay::{BusTarget, MessageId, Target, Timestamp};
use laneway_rpc::convert::{self, Parts};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::shard::{Event, IntakeError, Mailbox};

/// The content type of a record of the intake that is a `laneway.v1.Intake`.
pub const INTAKE_TYPE: &str = "application/vnd.laneway.intake+protobuf";

/// What the payload of a delayed event is: the whole envelope.
const ENVELOPE: &str = "application/vnd.laneway.envelope+json";

/// The group of the centers that take the intake.
pub const INTAKE_GROUP: &str = "centers";

/// The waits between tries, which never end: centers come and go.
const WAITS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// How long a record waits for its decision before it is tried again.
const WITHIN: Duration = Duration::from_secs(30);

/// What a record of the log has to have room for beside the content of a message: its history, and what was answered.
const ROOM: usize = 64 << 10;

/// Takes the intake of all shards that the group gives to this center. `largest` is the largest record of the log.
pub(crate) async fn subscribe(
    bus: &Bus,
    mailboxes: Arc<Vec<Mailbox>>,
    largest: usize,
) -> Result<Subscription, laneway::Error> {
    let retry = RetryPolicy::exponential(u32::MAX, WAITS.0, WAITS.1).unwrap_or_default();
    bus.subscription(DELAY_TOPIC)
        .group(INTAKE_GROUP)
        .retry(retry)
        .time_limit(None)
        .envelope(move |event: Delivery| {
            let mailboxes = mailboxes.clone();
            async move { take(&mailboxes, largest, &event).await }
        })
        .await
}

async fn take(mailboxes: &[Mailbox], largest: usize, event: &Delivery) -> Result<(), Failure> {
    let submit = decode(event.envelope()).map_err(Failure::fatal)?;
    check_size(&submit, largest).map_err(Failure::fatal)?;
    let partition = event.context().partition();
    deliver(mailboxes, partition, submit).await
}

/// That the log can take it, and carry it later. A fact that it does not take would hold up its shard for ever.
fn check_size(submit: &Submit, largest: usize) -> Result<(), Undecodable> {
    let (size, most) = (submit.body.len(), largest.saturating_sub(ROOM));
    if size > most {
        return Err(Undecodable::TooLarge { size, most });
    }
    Ok(())
}

/// Hands a submit to its shard, and waits for the decision.
pub(crate) async fn deliver(
    mailboxes: &[Mailbox],
    partition: u32,
    submit: Submit,
) -> Result<(), Failure> {
    let shards = u32::try_from(mailboxes.len()).unwrap_or(u32::MAX);
    let shard = shard_of(&submit.id, shards);
    if shard != partition {
        return Err(Failure::fatal(format!(
            "message {} belongs to shard {shard} and came in partition {partition} of the intake: the aggregate id of the \
             record has to be the id of the message",
            submit.id
        )));
    }
    let mailbox = usize::try_from(shard)
        .ok()
        .and_then(|shard| mailboxes.get(shard));
    let mailbox = mailbox.ok_or_else(|| Failure::new("there is no such shard"))?;
    let (done, decided) = oneshot::channel();
    let event = Event::Intake { submit, done };
    let waiting = async {
        mailbox
            .send(event)
            .await
            .map_err(|_| IntakeError::NotOwner)?;
        decided.await.unwrap_or(Err(IntakeError::NotOwner))
    };
    match tokio::time::timeout(WITHIN, waiting).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error @ IntakeError::TooOld)) => Err(Failure::fatal(error)),
        Ok(Err(error @ IntakeError::NotOwner)) => Err(Failure::new(error)),
        Err(_) => Err(Failure::new("the owner has not decided in time")),
    }
}

/// Why a record of the intake is none.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Undecodable {
    #[error(transparent)]
    Envelope(#[from] laneway::envelope::Error),
    #[error(transparent)]
    Id(#[from] laneway_delay::Error),
    #[error("{0}")]
    Invalid(#[from] convert::Invalid),
    #[error("the id of the message is {id}, and the aggregate id of its record is {aggregate}")]
    OtherId { id: MessageId, aggregate: String },
    #[error("the message has {size} bytes, and {most} are the most that the log can keep")]
    TooLarge { size: usize, most: usize },
}

/// What `Bus::publish_after` writes on a broker that others share.
#[derive(Deserialize)]
struct Command<'a> {
    #[serde(borrow)]
    topic: std::borrow::Cow<'a, str>,
    due_ms: u64,
    #[serde(borrow)]
    envelope: &'a RawValue,
}

/// The submit in a record of the intake.
pub(crate) fn decode(record: &Envelope) -> Result<Submit, Undecodable> {
    let aggregate = record.aggregate_id().as_str();
    let payload = record.payload();
    if payload.content_type().as_str() != INTAKE_TYPE {
        return decode_command(record);
    }
    let submit = convert::decode_intake(payload.data().clone())?;
    if submit.id.as_str() != aggregate {
        return Err(Undecodable::OtherId {
            id: submit.id,
            aggregate: aggregate.to_owned(),
        });
    }
    Ok(submit)
}

fn decode_command(record: &Envelope) -> Result<Submit, Undecodable> {
    let command: Command<'_> = record.json()?;
    let id = MessageId::new(record.aggregate_id().as_str())?;
    let written = Bytes::copy_from_slice(command.envelope.get().as_bytes());
    let event = Envelope::decode(written.clone())?;
    let digest = digest(&command.topic, &written);
    let parts = Parts {
        target: Target::Bus(BusTarget {
            topic: command.topic.clone().into_owned(),
            aggregate_id: event.aggregate_id().as_str().to_owned(),
            event_type: event.event_type().to_owned(),
        }),
        payload: event.encode(),
        content_type: Some(ENVELOPE.to_owned()),
        metadata: std::collections::BTreeMap::new(),
        retry: None,
    };
    let at = u64::try_from(record.timestamp().as_millisecond()).unwrap_or(0);
    Ok(Submit {
        id,
        digest,
        due: Timestamp::from_millis(command.due_ms).min(Timestamp::LAST_DUE),
        at: Timestamp::from_millis(at),
        topic: command.topic.into_owned(),
        body: convert::body(&parts),
    })
}

/// The request as it was written, without the due time that was computed.
fn digest(topic: &str, written: &[u8]) -> RequestDigest {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    context.update(&(topic.len() as u64).to_le_bytes());
    context.update(topic.as_bytes());
    context.update(written);
    let mut digest = [0; 32];
    digest.copy_from_slice(context.finish().as_ref());
    RequestDigest(digest)
}

#[cfg(test)]
mod tests {
    use laneway_delay::{Submission, When};
    use prost::Message;

    use super::*;

    fn submit() -> Submit {
        let target = Target::callback("https://example.com/");
        let submission = Submission::new("reminders", When::After(Duration::ZERO), target);
        Submit {
            id: MessageId::new("order-1").unwrap(),
            digest: RequestDigest([7; 32]),
            due: Timestamp::from_millis(2_000),
            at: Timestamp::from_millis(1_000),
            topic: "reminders".to_owned(),
            body: convert::body(&Parts::from(submission.payload("{}"))),
        }
    }

    fn record(aggregate: &str, payload: Vec<u8>) -> Envelope {
        let builder = Envelope::builder(aggregate, "Submitted");
        builder.bytes(INTAKE_TYPE, payload).unwrap()
    }

    #[test]
    fn a_submit_comes_through_as_it_was() {
        let payload = convert::intake(&submit()).encode_to_vec();
        let decoded = decode(&record("order-1", payload.clone())).unwrap();
        assert_eq!(decoded, submit());
        let error = decode(&record("order-2", payload)).unwrap_err().to_string();
        assert!(
            error.contains("order-1") && error.contains("order-2"),
            "{error}"
        );
        assert!(decode(&record("order-1", b"\xff".to_vec())).is_err());
    }

    #[test]
    fn what_the_log_cannot_take_is_refused() {
        let mut submit = submit();
        submit.body = Bytes::from(vec![7; 100_000]);
        assert!(check_size(&submit, 100_000 + ROOM).is_ok());
        let error = check_size(&submit, 100_000).unwrap_err().to_string();
        assert!(error.contains("34464"), "{error}");
    }

    #[test]
    fn an_event_that_was_published_for_later_is_a_submit() {
        let event = Envelope::builder("order-1", "PaymentMissing")
            .json(&1)
            .unwrap();
        let text = String::from_utf8(event.encode().to_vec()).unwrap();
        let text = format!(r#"{{"topic":"orders","due_ms":5000,"envelope":{text}}}"#);
        let record = Envelope::builder("m-1", "DelaySubmitted")
            .bytes("application/json", text)
            .unwrap();
        let submit = decode(&record).unwrap();
        assert_eq!((submit.id.as_str(), &*submit.topic), ("m-1", "orders"));
        assert_eq!(submit.due.as_millis(), 5_000);
        let parts = convert::parts(submit.body.clone()).unwrap();
        assert_eq!(parts.payload, event.encode());
        let Target::Bus(target) = parts.target else {
            panic!("{:?}", parts.target);
        };
        assert_eq!(target.aggregate_id, "order-1");
        // The same again is the same request.
        assert_eq!(decode(&record).unwrap().digest, submit.digest);
    }
}
