//! The peer on disk: NATS `JetStream` that syncs every write before it acknowledges it.

use std::env;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use async_nats::jetstream::{self, stream};
use tokio::task::JoinSet;

use super::load::{Events, KEYS, TOPIC};
use crate::frame::Sample;
use crate::services::Service;

/// It writes to the disk of this workspace, as all others here do.
pub(super) const SERVICE: Service = Service {
    variable: "LANEWAY_TEST_NATS",
    arguments: &["--only", "nats", "--nats-sync", "always"],
};

/// Publishes for so long, each publisher waiting for every acknowledgement.
pub(super) async fn publish(publishers: u32, time: Duration) -> Result<Sample> {
    let variable = SERVICE.variable;
    let address = env::var(variable).with_context(|| format!("{variable} is not set"))?;
    let client = async_nats::connect(&address)
        .await
        .with_context(|| format!("no answer from {address}"))?;
    let context = jetstream::new(client);
    // What an earlier run may have left.
    let _ = context.delete_stream(TOPIC).await;
    context
        .create_stream(stream::Config {
            name: TOPIC.to_owned(),
            subjects: vec![format!("{TOPIC}.*")],
            storage: stream::StorageType::File,
            ..Default::default()
        })
        .await?;
    let events = Events::new()?;

    let mut tasks = JoinSet::new();
    let started = Instant::now();
    for publisher in 0..publishers {
        let (context, events) = (context.clone(), events.clone());
        tasks.spawn(async move {
            let mut count = 0_usize;
            for key in (publisher..KEYS).step_by(publishers as usize).cycle() {
                if started.elapsed() >= time {
                    break;
                }
                let event = events.event(key, 0)?;
                let subject = format!("{TOPIC}.{}", event.aggregate_id());
                context.publish(subject, event.encode()).await?.await?;
                count += 1;
            }
            anyhow::Ok(count)
        });
    }
    let mut count = 0;
    while let Some(done) = tasks.join_next().await {
        count += done.context("a publisher failed")??;
    }
    let sample = Sample::rate(count, started.elapsed());
    context.delete_stream(TOPIC).await?;
    Ok(sample)
}
