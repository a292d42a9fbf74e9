//! Through the bus.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use laneway::topic::Topic;
use laneway::{Bus, Event, Subscription};
use tokio::task::JoinSet;

use super::{Backend, UNANSWERED, clear};
use crate::bus::check::Checker;
use crate::bus::load::{Events, TOPIC};
use crate::bus::memory::sequence;
use crate::frame::Sample;
use crate::workload::Work;

/// Tasks that publish, each with keys of its own.
const PUBLISHERS: usize = 4;

const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// Handles what is there already: from the call that subscribes until all is handled.
pub(crate) async fn consume<P: Backend>(keys: u32, per_key: u32, work: Work) -> Result<Sample> {
    let bus = P::bus().await?;
    declare::<P>(&bus).await?;
    publish_all(&bus, keys, per_key).await?;
    let checker = Checker::new(u64::from(keys) * u64::from(per_key));

    let started = Instant::now();
    let subscription = subscribe(&bus, &checker, work).await?;
    checker.all_handled().await;
    let elapsed = started.elapsed();

    subscription.close(CLOSE_WITHIN).await;
    clear(&bus).await?;
    let sample = match work {
        Work::Nothing => Sample::rate((keys * per_key) as usize, elapsed),
        Work::Wait(_) => Sample::time(elapsed),
    };
    Ok(checked(&checker, sample, keys, per_key))
}

/// Publishes, until all is acknowledged.
pub(crate) async fn publish<P: Backend>(keys: u32, per_key: u32) -> Result<Sample> {
    let bus = P::bus().await?;
    declare::<P>(&bus).await?;

    let started = Instant::now();
    publish_all(&bus, keys, per_key).await?;
    let elapsed = started.elapsed();

    clear(&bus).await?;
    Ok(Sample::rate((keys * per_key) as usize, elapsed))
}

/// Publishes and handles, until all is handled.
pub(crate) async fn both<P: Backend>(keys: u32, per_key: u32) -> Result<Sample> {
    let bus = P::bus().await?;
    declare::<P>(&bus).await?;
    let checker = Checker::new(u64::from(keys) * u64::from(per_key));
    let subscription = subscribe(&bus, &checker, Work::Nothing).await?;

    let started = Instant::now();
    publish_all(&bus, keys, per_key).await?;
    checker.all_handled().await;
    let elapsed = started.elapsed();

    subscription.close(CLOSE_WITHIN).await;
    clear(&bus).await?;
    let sample = Sample::rate((keys * per_key) as usize, elapsed);
    Ok(checked(&checker, sample, keys, per_key))
}

pub(super) async fn declare<P: Backend>(bus: &Bus) -> Result<()> {
    let topic = Topic::domain(TOPIC).partitions(P::PARTITIONS);
    bus.declare(&topic.build()?).await?;
    Ok(())
}

pub(super) async fn subscribe(bus: &Bus, checker: &Checker, work: Work) -> Result<Subscription> {
    let seen = checker.clone();
    let handler = move |event: Event| {
        let seen = seen.clone();
        async move {
            work.run().await;
            seen.handled(event.aggregate_id().as_str(), sequence(&event));
            Ok(())
        }
    };
    Ok(bus.subscribe_envelope(TOPIC, handler).await?)
}

pub(super) fn checked(checker: &Checker, sample: Sample, keys: u32, per_key: u32) -> Sample {
    let published = |key| if key < keys as usize { per_key } else { 0 };
    checker.sample(sample, published)
}

/// The first event of every key, then the second of every key, and so on.
async fn publish_all(bus: &Bus, keys: u32, per_key: u32) -> Result<()> {
    let events = Events::new()?;
    let mut tasks = JoinSet::new();
    for publisher in 0..PUBLISHERS {
        let (bus, events) = (bus.clone(), events.clone());
        tasks.spawn(async move {
            let size = UNANSWERED / PUBLISHERS;
            let mut batch = Vec::with_capacity(size);
            for sequence in 0..per_key {
                for key in (0..keys).skip(publisher).step_by(PUBLISHERS) {
                    batch.push(events.event(key, sequence)?);
                    if batch.len() == size {
                        bus.publish_envelope_batch(TOPIC, &batch).await?;
                        batch.clear();
                    }
                }
            }
            bus.publish_envelope_batch(TOPIC, &batch).await?;
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.context("a publisher failed")??;
    }
    Ok(())
}
