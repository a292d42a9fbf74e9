//! From publish to handled, at a steady rate.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use laneway::Event;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval_at};

use super::{Backend, clear, ours};
use crate::bus::check::Checker;
use crate::bus::load::{Events, TOPIC, key_number};
use crate::bus::memory::sequence;
use crate::frame::Sample;

/// Events a second.
pub(crate) const RATE: u32 = 5_000;

/// Tasks that publish one event after the other, each on a key of its own.
const PUBLISHERS: u32 = 50;

/// This much is left out at the beginning: connections, files and caches are new.
const WARM_UP: u32 = 20;

const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// The latency that so many percent of the events have at most.
pub(crate) async fn percentile<P: Backend>(time: Duration, percent: usize) -> Result<Sample> {
    let every = Duration::from_secs(1) * PUBLISHERS / RATE;
    let per_key = u32::try_from(time.as_nanos() / every.as_nanos())? + WARM_UP;
    let bus = P::bus().await?;
    ours::declare::<P>(&bus).await?;
    let checker = Checker::new(u64::from(PUBLISHERS) * u64::from(per_key));
    let began = tokio::time::Instant::now() + Duration::from_millis(500);
    let latencies = Arc::new(Mutex::new(Vec::new()));

    // An event is due at a time that follows from its key and its place: what waits because others
    // are late is late, too.
    let due = move |key: u32, sequence: u32| began + every * sequence + every * key / PUBLISHERS;
    let (seen, noted) = (checker.clone(), latencies.clone());
    let handler = move |event: Event| {
        let key = event.aggregate_id().as_str();
        let sequence = sequence(&event);
        let number = key_number(key).and_then(|key| u32::try_from(key).ok());
        if let Some(number) = number.filter(|_| sequence >= WARM_UP) {
            let latency = Instant::now().saturating_duration_since(due(number, sequence).into());
            let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
            noted.push(latency);
        }
        seen.handled(key, sequence);
        std::future::ready(Ok(()))
    };
    let subscription = bus.subscribe_envelope(TOPIC, handler).await?;

    let events = Events::new()?;
    let mut tasks = JoinSet::new();
    for key in 0..PUBLISHERS {
        let (bus, events) = (bus.clone(), events.clone());
        tasks.spawn(async move {
            let mut ticks = interval_at(due(key, 0), every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            for sequence in 0..per_key {
                ticks.tick().await;
                let event = events.event(key, sequence)?;
                bus.publish_envelope(TOPIC, &event).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.context("a publisher failed")??;
    }
    checker.all_handled().await;

    subscription.close(CLOSE_WITHIN).await;
    clear(&bus).await?;
    let mut latencies = latencies.lock().unwrap_or_else(PoisonError::into_inner);
    latencies.sort_unstable();
    let place = latencies.len() * percent / 100;
    let latency = latencies.get(place).context("nothing was handled")?;
    let sample = Sample::time(*latency);
    Ok(ours::checked(&checker, sample, PUBLISHERS, per_key))
}
