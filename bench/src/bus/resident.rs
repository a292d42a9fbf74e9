//! Memory while millions of events pass: it must not grow with them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use laneway::Bus;
use laneway::topic::{Retention, Topic};
use tokio::task::JoinSet;

use super::check::Checker;
use super::load::{self, Events, KEYS, TOPIC};
use super::{memory, place};
use crate::frame::Sample;
use crate::machine::resident;

/// Events published and not yet handled: publishers that outrun the handlers are no leak.
const WINDOW: u64 = 5_000;

/// What is kept in memory. Retention does not ask whether an event was handled, and divides what is
/// kept by the partitions: all that is not handled may be in one of the 16.
const KEPT_IN_MEMORY: u64 = 16 * WINDOW;

/// Events that are published in a second where retention removes them. It looks once a second, and what has been
/// published since its last look is there until then: if publishers went as fast as they can, the peaks of two halves
/// would differ as the speed of the machine does.
const PACE: u64 = 100_000;

/// Events to a call.
const BATCH: usize = 100;

/// More than this is not noise of the allocator.
const MOST_GROWTH: u64 = 64 << 20;

/// Where the bus keeps its events.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kept {
    Memory,
    File,
}

/// How long it took to open a store with all the events.
const REOPENED: &str = "reopened_in_ms";

/// How much higher the resident memory was in the second half of the events than in the first.
pub(super) async fn growth(per_key: u32, kept: Kept) -> Result<Sample> {
    let folder = place::folder()?;
    let url = match kept {
        Kept::Memory => "memory:".to_owned(),
        Kept::File => format!("file:{}", folder.path().display()),
    };
    let bus = Bus::open(&url).await?;
    let retention = match kept {
        Kept::Memory => Retention::FOREVER.count(KEPT_IN_MEMORY),
        Kept::File => Retention::FOREVER,
    };
    let topic = Topic::domain(TOPIC).retention(retention);
    bus.declare(&topic.build()?).await?;
    let count = u64::from(KEYS) * u64::from(per_key);
    let checker = Checker::new(count);
    let seen = checker.clone();
    bus.subscribe_envelope(TOPIC, move |event| {
        seen.handled(event.aggregate_id().as_str(), memory::sequence(&event));
        std::future::ready(Ok(()))
    })
    .await?;

    let watching = tokio::spawn(watch(checker.clone(), count));
    publish(&bus, per_key, &checker, kept).await?;
    checker.all_handled().await;
    load::settled(&bus).await?;
    let [first, second] = watching.await??;
    bus.close(Duration::from_secs(10)).await?;
    ensure!(
        second <= first + MOST_GROWTH,
        "{} MiB in the first half of the events, {} MiB in the second",
        first >> 20,
        second >> 20
    );
    let growth = second.saturating_sub(first);
    let sample = checker.sample(Sample::bytes(growth as f64), |_| per_key);
    match kept {
        Kept::Memory => Ok(sample),
        Kept::File => Ok(sample.count(REOPENED, reopen(&url, count).await?)),
    }
}

/// Opens the store again; answers how many milliseconds that takes.
async fn reopen(url: &str, events: u64) -> Result<u64> {
    let began = Instant::now();
    let bus = Bus::open(url).await?;
    let stored: u64 = bus
        .backlog(TOPIC, "nobody")
        .await?
        .iter()
        .map(|lag| lag.records)
        .sum();
    let took = began.elapsed();
    bus.close(Duration::from_secs(10)).await?;
    ensure!(stored == events, "{stored} of {events} events are there");
    Ok(u64::try_from(took.as_millis())?)
}

async fn publish(bus: &Bus, per_key: u32, checker: &Checker, kept: Kept) -> Result<()> {
    let published = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let due = move || match kept {
        Kept::Memory => began.elapsed().as_secs_f64() * PACE as f64,
        Kept::File => f64::INFINITY,
    };
    let events = Events::new()?;
    let publishers = memory::PUBLISHERS;
    let mut tasks = JoinSet::new();
    for publisher in 0..publishers {
        let (bus, checker, published) = (bus.clone(), checker.clone(), published.clone());
        let events = events.clone();
        tasks.spawn(async move {
            let own = (publisher..KEYS).step_by(publishers as usize);
            let mut batch = Vec::with_capacity(BATCH);
            for sequence in 0..per_key {
                for key in own.clone() {
                    batch.push(events.event(key, sequence)?);
                    if batch.len() == BATCH {
                        bus.publish_envelope_batch(TOPIC, &batch).await?;
                        published.fetch_add(BATCH as u64, Relaxed);
                        batch.clear();
                        while published.load(Relaxed) > checker.count() + WINDOW
                            || published.load(Relaxed) as f64 > due()
                        {
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
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

/// The highest resident memory in each half of the events.
async fn watch(checker: Checker, count: u64) -> Result<[u64; 2]> {
    let mut highest = [0; 2];
    loop {
        let handled = checker.count();
        let half = usize::from(handled > count / 2);
        highest[half] = highest[half].max(resident()?);
        if handled >= count {
            return Ok(highest);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
