//! As a program does it that has no bus: the client of NATS, and nothing around it.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use async_nats::HeaderMap;
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, StorageType, Stream};
use futures_util::StreamExt;
use laneway::Envelope;

use super::place;
use crate::bus::load::Events;
use crate::frame::Sample;
use crate::served::UNANSWERED;

const STREAM: &str = "bare";
const SUBJECT: &str = "bare.orders";

/// Messages that the server sends ahead.
const AHEAD: usize = 1000;

/// What is sent of an event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    /// All that the bus sends, too: the id by which the server knows it again, and what others may
    /// want to know without looking inside.
    Whole,
    /// The envelope alone.
    Payload,
}

impl Message {
    fn of(self, event: &Envelope) -> PublishMessage {
        let message = PublishMessage::build().payload(event.encode());
        match self {
            Self::Payload => message,
            Self::Whole => {
                let mut headers = HeaderMap::new();
                headers.insert("X-Event-ID", event.event_id());
                headers.insert("X-Aggregate-ID", event.aggregate_id().as_str());
                headers.insert("X-Event-Type", event.event_type());
                headers.insert("X-Event-Version", event.event_version().to_string());
                message.headers(headers).message_id(event.event_id())
            }
        }
    }
}

/// Pulls, decodes and acknowledges each message.
pub(super) async fn consume(keys: u32, per_key: u32) -> Result<Sample> {
    let context = place::context().await?;
    let stream = stream(&context).await?;
    publish_all(&context, keys, per_key, Message::Whole).await?;
    let count = (keys * per_key) as usize;

    let started = Instant::now();
    let consumer = stream
        .create_consumer(pull::Config {
            durable_name: Some("bare".to_owned()),
            ack_policy: AckPolicy::Explicit,
            max_ack_pending: i64::try_from(UNANSWERED)?,
            ..Default::default()
        })
        .await?;
    let messages = consumer.stream().max_messages_per_batch(AHEAD);
    let mut messages = messages.messages().await?.take(count);
    while let Some(message) = messages.next().await {
        let message = message?;
        Envelope::decode(message.payload.clone())?;
        message.ack().await.map_err(|error| anyhow!(error))?;
    }
    let elapsed = started.elapsed();

    context.delete_stream(STREAM).await?;
    Ok(Sample::rate(count, elapsed))
}

/// Publishes one after the other, and waits for the acknowledgement of an earlier one.
pub(super) async fn publish(keys: u32, per_key: u32, message: Message) -> Result<Sample> {
    let context = place::context().await?;
    stream(&context).await?;

    let started = Instant::now();
    publish_all(&context, keys, per_key, message).await?;
    let elapsed = started.elapsed();

    context.delete_stream(STREAM).await?;
    Ok(Sample::rate((keys * per_key) as usize, elapsed))
}

async fn stream(context: &Context) -> Result<Stream> {
    // What an earlier run may have left.
    let _ = context.delete_stream(STREAM).await;
    let config = Config {
        name: STREAM.to_owned(),
        subjects: vec![SUBJECT.to_owned()],
        storage: StorageType::File,
        ..Default::default()
    };
    let stream = context.create_stream(config).await;
    stream.context("cannot make the stream")
}

async fn publish_all(context: &Context, keys: u32, per_key: u32, message: Message) -> Result<()> {
    let events = Events::new()?;
    let mut unanswered = VecDeque::with_capacity(UNANSWERED);
    for sequence in 0..per_key {
        for key in 0..keys {
            let event = events.event(key, sequence)?;
            if unanswered.len() == UNANSWERED
                && let Some(answer) = unanswered.pop_front()
            {
                answer.await?;
            }
            unanswered.push_back(context.send_publish(SUBJECT, message.of(&event)).await?);
        }
    }
    for answer in unanswered {
        answer.await?;
    }
    Ok(())
}
