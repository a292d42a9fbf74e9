//! What is published in every scenario: 10,000 keys, 128 bytes of payload.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use laneway::envelope::{ContentType, Payload};
use laneway::{Bus, Envelope};
use tokio::task::JoinSet;

/// Keys that events belong to.
pub(super) const KEYS: u32 = 10_000;

/// The topic of all scenarios.
pub(crate) const TOPIC: &str = "orders";

/// Bytes of payload.
const PAYLOAD: usize = 128;

/// One key's events, published by one publisher, so that their order is known.
pub(super) fn key(number: u32) -> String {
    format!("order-{number:06}")
}

/// The number of a key, from its text.
pub(crate) fn key_number(key: &str) -> Option<usize> {
    key.strip_prefix("order-")?.parse().ok()
}

/// Makes events as a publisher would. The version of an event is its place among those of its key.
#[derive(Clone)]
pub(crate) struct Events {
    keys: Arc<Vec<String>>,
    payload: Payload,
}

impl Events {
    pub(crate) fn new() -> Result<Self> {
        let text = format!("\"{}\"", "x".repeat(PAYLOAD - 2));
        Ok(Self {
            keys: Arc::new((0..KEYS).map(key).collect()),
            payload: Payload::bytes(ContentType::JSON, Bytes::from(text))?,
        })
    }

    pub(crate) fn event(&self, key: u32, sequence: u32) -> Result<Envelope> {
        let key = &self.keys[key as usize];
        Ok(Envelope::builder(key, "OrderPlaced")
            .event_version(u64::from(sequence) + 1)
            .payload(self.payload.clone())?)
    }
}

/// How events are handed to the bus.
#[derive(Clone, Copy, Debug)]
pub(super) enum By {
    /// One call for each event.
    One,
    /// One call for so many events.
    Batch(usize),
}

/// Publishes `per_key` events of every key from `publishers` tasks, each of which has keys of its
/// own and goes round them.
pub(super) async fn publish_all(
    bus: &Bus,
    events: &Events,
    publishers: u32,
    per_key: u32,
    by: By,
) -> Result<()> {
    let mut tasks = JoinSet::new();
    for publisher in 0..publishers {
        let (bus, events) = (bus.clone(), events.clone());
        let own = (publisher..KEYS).step_by(publishers as usize);
        tasks.spawn(async move {
            let places =
                (0..per_key).flat_map(|sequence| own.clone().map(move |key| (key, sequence)));
            match by {
                By::One => {
                    for (key, sequence) in places {
                        let event = events.event(key, sequence)?;
                        bus.publish_envelope(TOPIC, &event).await?;
                    }
                }
                By::Batch(size) => {
                    let mut batch = Vec::with_capacity(size);
                    for (key, sequence) in places {
                        batch.push(events.event(key, sequence)?);
                        if batch.len() == size {
                            bus.publish_envelope_batch(TOPIC, &batch).await?;
                            batch.clear();
                        }
                    }
                    bus.publish_envelope_batch(TOPIC, &batch).await?;
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.context("a publisher failed")??;
    }
    Ok(())
}

/// Resolves when the group has settled everything.
pub(super) async fn settled(bus: &Bus) -> Result<()> {
    while bus
        .backlog(TOPIC, "default")
        .await?
        .iter()
        .any(|lag| lag.records > 0)
    {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}
