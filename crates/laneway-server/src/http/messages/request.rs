//! What a client sends, and how it becomes a submission.

use std::borrow::Cow;
use std::collections::BTreeMap;

use axum::body::Bytes;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use laneway::Envelope;
use laneway::envelope::ContentType;
use laneway::topic::TopicName;
use laneway_delay::{
    BusTarget, Callback, Extend, MessageId, Method, Schedule, Submission, Target, Timestamp, When,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::http::Problem;
use crate::http::body::Object;
use crate::http::time::{LAST, Moment, Span};

const JSON: &str = "application/json";
const BYTES: &str = "application/octet-stream";

/// The body of `POST /v1/messages`, and one entry of a batch.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SubmitRequest<'a> {
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    idempotency_key: Option<Cow<'a, str>>,
    #[serde(borrow)]
    topic: Cow<'a, str>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    #[serde(borrow)]
    payload_base64: Option<Cow<'a, str>>,
    content_type: Option<String>,
    delay: Option<Span>,
    deliver_at: Option<Moment>,
    target: Object<TargetRequest>,
    retry: Option<Vec<Span>>,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    #[serde(default)]
    replace: bool,
}

/// One of them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetRequest {
    callback: Option<Object<CallbackRequest>>,
    bus: Option<Object<BusRequest>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallbackRequest {
    url: String,
    method: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    timeout: Option<Span>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BusRequest {
    topic: String,
    aggregate_id: String,
    event_type: String,
}

/// The body of `POST /v1/messages/{id}/extend`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExtendRequest {
    pub(super) by: Option<Span>,
    pub(super) to: Option<Moment>,
}

impl SubmitRequest<'_> {
    /// Checks what the HTTP API promises beyond [`Delays::submit`](laneway_delay::Delays::submit), which checks the rest.
    pub(super) fn into_submission(self, now: Timestamp) -> Result<Submission, Problem> {
        let when = self.when(now)?;
        let (payload, kind) = self.content()?;
        let retry = self
            .retry
            .map(|waits| Schedule::new(waits.into_iter().map(|wait| wait.0)));
        let submission = Submission {
            id: self.id.map(MessageId::new).transpose()?,
            idempotency_key: self.idempotency_key.map(Cow::into_owned),
            topic: self.topic.into_owned(),
            payload,
            content_type: self.content_type.or_else(|| kind.map(str::to_owned)),
            when,
            target: self.target.0.into_target()?,
            retry,
            metadata: self.metadata,
            replace: self.replace,
        };
        check_content_type(&submission)?;
        if let Target::Bus(target) = &submission.target {
            check_bus(target, &submission)?;
        }
        Ok(submission)
    }

    fn when(&self, now: Timestamp) -> Result<When, Problem> {
        let when = match (self.delay, self.deliver_at) {
            (Some(Span(delay)), None) => When::After(delay),
            (None, Some(Moment(moment))) => When::At(moment),
            (None, None) => {
                return Err(Problem::invalid(
                    "delay",
                    "there is neither delay nor deliver_at: say when it is due",
                ));
            }
            (Some(_), Some(_)) => {
                return Err(Problem::invalid(
                    "delay",
                    "there are both delay and deliver_at: send one of them",
                ));
            }
        };
        let (field, due) = match when {
            When::After(delay) => ("delay", now + delay),
            When::At(due) => ("deliver_at", due),
        };
        if due > LAST {
            return Err(Problem::invalid(
                field,
                "it is due after the year 9998: choose an earlier moment",
            ));
        }
        Ok(when)
    }

    /// The bytes to deliver, and what they are if the request does not say.
    fn content(&self) -> Result<(Bytes, Option<&'static str>), Problem> {
        match (self.payload, &self.payload_base64) {
            (None, None) => Ok((Bytes::new(), None)),
            (Some(json), None) => Ok((Bytes::copy_from_slice(json.get().as_bytes()), Some(JSON))),
            (None, Some(encoded)) => match STANDARD.decode(encoded.as_bytes()) {
                Ok(bytes) => Ok((bytes.into(), Some(BYTES))),
                Err(error) => Err(Problem::invalid(
                    "payload_base64",
                    format!("it is not base64: {error}"),
                )),
            },
            (Some(_), Some(_)) => Err(Problem::invalid(
                "payload_base64",
                "there are both payload and payload_base64: send one of them",
            )),
        }
    }
}

impl TargetRequest {
    fn into_target(self) -> Result<Target, Problem> {
        match (self.callback, self.bus) {
            (Some(Object(callback)), None) => callback.into_target(),
            (None, Some(Object(bus))) => Ok(Target::Bus(BusTarget {
                topic: bus.topic,
                aggregate_id: bus.aggregate_id,
                event_type: bus.event_type,
            })),
            (None, None) => Err(Problem::invalid(
                "target",
                "there is neither callback nor bus: say where it goes",
            )),
            (Some(_), Some(_)) => Err(Problem::invalid(
                "target",
                "there are both callback and bus: send one of them",
            )),
        }
    }
}

impl CallbackRequest {
    fn into_target(self) -> Result<Target, Problem> {
        let method = match self.method {
            Some(method) => method.parse()?,
            None => Method::Post,
        };
        Ok(Target::Callback(Callback {
            url: self.url,
            method,
            headers: self.headers.into_iter().collect(),
            timeout: self.timeout.map(|Span(timeout)| timeout),
        }))
    }
}

fn check_content_type(submission: &Submission) -> Result<(), Problem> {
    let Some(kind) = &submission.content_type else {
        return Ok(());
    };
    match ContentType::new(kind) {
        Ok(_) => Ok(()),
        Err(error) => Err(Problem::invalid("content_type", error.to_string())),
    }
}

/// What the bus would refuse when the message is due is refused now, while the client listens.
fn check_bus(target: &BusTarget, submission: &Submission) -> Result<(), Problem> {
    if let Err(error) = TopicName::new(&target.topic) {
        return Err(Problem::invalid("target.bus.topic", error.to_string()));
    }
    let builder = Envelope::builder(&target.aggregate_id, &target.event_type);
    let event = match &submission.content_type {
        Some(kind) => builder.bytes(kind, submission.payload.clone()),
        None => builder.json(&()),
    };
    match event {
        Ok(_) => Ok(()),
        Err(error) => Err(Problem::invalid("target.bus", error.to_string())),
    }
}

impl ExtendRequest {
    pub(super) fn into_extend(self) -> Result<Extend, Problem> {
        match (self.by, self.to) {
            (Some(Span(by)), None) if by.is_zero() => Err(Problem::invalid(
                "by",
                "it is zero, which changes nothing: give a time",
            )),
            (Some(Span(by)), None) => Ok(Extend::By(by)),
            (None, Some(Moment(to))) if to > LAST => Err(Problem::invalid(
                "to",
                "it is after the year 9998: choose an earlier moment",
            )),
            (None, Some(Moment(to))) => Ok(Extend::To(to)),
            (None, None) => Err(Problem::invalid(
                "by",
                "there is neither by nor to: say how much later",
            )),
            (Some(_), Some(_)) => Err(Problem::invalid(
                "by",
                "there are both by and to: send one of them",
            )),
        }
    }
}
