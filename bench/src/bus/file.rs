//! `file:`: every publish is on the disk when it resolves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use laneway::Bus;
use tokio::task::JoinSet;

use super::check::Checker;
use super::load::{self, Events, KEYS, TOPIC};
use super::{memory, place};
use crate::frame::Sample;

/// Publishes for so long, one event at a time from each publisher; then all of them are handled, and
/// checked.
pub(super) async fn publish(publishers: u32, time: Duration) -> Result<Sample> {
    let folder = place::folder()?;
    let bus = Bus::open(&format!("file:{}", folder.path().display())).await?;
    let published: Arc<Vec<AtomicU32>> = Arc::new((0..KEYS).map(|_| AtomicU32::new(0)).collect());
    let events = Events::new()?;
    // Declares the topic, opens files: not what is measured.
    bus.publish_envelope(TOPIC, &events.event(0, 0)?).await?;
    published[0].store(1, Relaxed);

    let mut tasks = JoinSet::new();
    let started = Instant::now();
    for publisher in 0..publishers {
        let (bus, events, published) = (bus.clone(), events.clone(), published.clone());
        tasks.spawn(async move {
            let mut count = 0_usize;
            for key in (publisher..KEYS).step_by(publishers as usize).cycle() {
                if started.elapsed() >= time {
                    break;
                }
                let sequence = published[key as usize].load(Relaxed);
                let event = events.event(key, sequence)?;
                bus.publish_envelope(TOPIC, &event).await?;
                published[key as usize].store(sequence + 1, Relaxed);
                count += 1;
            }
            anyhow::Ok(count)
        });
    }
    let mut count = 0;
    while let Some(done) = tasks.join_next().await {
        count += done.context("a publisher failed")??;
    }
    let elapsed = started.elapsed();

    let checker = Checker::new(count as u64 + 1);
    let seen = checker.clone();
    bus.subscribe_envelope(TOPIC, move |event| {
        seen.handled(event.aggregate_id().as_str(), memory::sequence(&event));
        std::future::ready(Ok(()))
    })
    .await?;
    checker.all_handled().await;
    load::settled(&bus).await?;
    bus.close(Duration::from_secs(10)).await?;
    Ok(checker.sample(Sample::rate(count, elapsed), |key| {
        published[key].load(Relaxed)
    }))
}

/// The median time of one publish when nobody else publishes.
pub(super) async fn latency(publishes: u32) -> Result<Sample> {
    let folder = place::folder()?;
    let bus = Bus::open(&format!("file:{}", folder.path().display())).await?;
    let events = Events::new()?;
    bus.publish_envelope(TOPIC, &events.event(0, 0)?).await?;
    let mut times = Vec::with_capacity(publishes as usize);
    for number in 0..publishes {
        let event = events.event(number % KEYS, number / KEYS)?;
        let started = Instant::now();
        bus.publish_envelope(TOPIC, &event).await?;
        times.push(started.elapsed());
    }
    bus.close(Duration::from_secs(10)).await?;
    Ok(Sample::time(median(times)))
}

pub(super) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
