//! `memory:` from end to end, and the lanes alone under the same load.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use laneway::Bus;
use laneway::lanes::{Drain, Engine, Failure, Job, Options};
use tokio::task::JoinSet;

use super::check::Checker;
use super::load::{self, By, Events, KEYS, TOPIC};
use crate::frame::Sample;

/// Tasks that publish.
pub(super) const PUBLISHERS: u32 = 8;

/// From the first publish until everything is handled and settled.
pub(super) async fn bus(per_key: u32, by: By) -> Result<Sample> {
    let count = u64::from(KEYS) * u64::from(per_key);
    let checker = Checker::new(count);
    let bus = Bus::open("memory:").await?;
    let seen = checker.clone();
    bus.subscribe_envelope(TOPIC, move |event| {
        seen.handled(event.aggregate_id().as_str(), sequence(&event));
        std::future::ready(Ok(()))
    })
    .await?;
    let events = Events::new()?;

    let started = Instant::now();
    load::publish_all(&bus, &events, PUBLISHERS, per_key, by).await?;
    checker.all_handled().await;
    load::settled(&bus).await?;
    let elapsed = started.elapsed();

    bus.close(Duration::from_secs(10)).await?;
    let events = usize::try_from(count)?;
    Ok(checker.sample(Sample::rate(events, elapsed), |_| per_key))
}

pub(crate) fn sequence(event: &laneway::Event) -> u32 {
    u32::try_from(event.event_version() - 1).unwrap_or(u32::MAX)
}

struct Order {
    key: String,
    sequence: u32,
}

impl Job for Order {
    fn key(&self) -> Option<&str> {
        Some(&self.key)
    }

    fn bytes(&self) -> usize {
        128
    }
}

/// The same events through the lanes, without a bus around them.
pub(super) async fn lanes(per_key: u32) -> Result<Sample> {
    let count = u64::from(KEYS) * u64::from(per_key);
    let checker = Checker::new(count);
    let engine = Engine::start(Options::default())?;
    let seen = checker.clone();
    let intake = engine.topic(TOPIC, move |order: &Order| {
        seen.handled(&order.key, order.sequence);
        std::future::ready(Ok::<(), Failure>(()))
    })?;

    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for publisher in 0..PUBLISHERS {
        let intake = intake.clone();
        tasks.spawn(async move {
            for sequence in 0..per_key {
                for key in (publisher..KEYS).step_by(PUBLISHERS as usize) {
                    let key = load::key(key);
                    intake.submit(Order { key, sequence }).await?;
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.context("a submitter failed")??;
    }
    checker.all_handled().await;
    let elapsed = started.elapsed();

    engine.close(Drain::Queued, Duration::from_secs(10)).await;
    let events = usize::try_from(count)?;
    Ok(checker.sample(Sample::rate(events, elapsed), |_| per_key))
}
