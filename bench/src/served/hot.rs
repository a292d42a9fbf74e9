//! Keys that hold themselves up, in front of a thousand others, on one partition: how long until the others are
//! done, and how fast one of them catches up.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use laneway::topic::Topic;
use laneway::{Bus, Event, Subscription};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{Backend, clear};
use crate::bus::check::Checker;
use crate::bus::load::{Events, TOPIC, key_number};
use crate::bus::memory::sequence;
use crate::frame::{Sample, Scenario, Unit};
use crate::results::{Figures, Results};
use crate::workload::Work;

/// The scenarios.
const FIVE: &str = "hot key, 5 ms";
const MANY: &str = "hot key, 50,000 in front";
const CATCH_UP: &str = "hot key, catching up";
const PANICKING: &str = "panicking keys";
const BLOCKING: &str = "blocking key";
const ALL: [&str; 5] = [FIVE, MANY, CATCH_UP, PANICKING, BLOCKING];

const HOT_KEY: usize = 0;
const OTHERS: u32 = 1000;
const SOME: u32 = 3000;
const VERY_MANY: u32 = 50_000;
const HOT: Duration = Duration::from_millis(5);
const PANICKING_KEYS: u32 = 100;
const BLOCKS: Duration = Duration::from_secs(3);

/// The keys in front, and what their handlers do.
#[derive(Clone, Copy)]
enum Front {
    /// One key with so many events, each of which waits for [`HOT`].
    Hot(u32),
    /// Keys whose handlers always panic, with ten events each.
    Panicking,
    /// One key with an event whose handler blocks its thread for [`BLOCKS`].
    Blocking,
}

impl Front {
    /// Its events: keys that the others do not have, and sequences.
    fn events(self) -> impl Iterator<Item = (u32, u32)> {
        let (keys, each) = match self {
            Self::Hot(events) => (1, events),
            Self::Panicking => (PANICKING_KEYS, 10),
            Self::Blocking => (1, 1),
        };
        // The first is the hot key; what follows comes after the keys of the others.
        let keys = (0..keys).map(|key| if key == 0 { 0 } else { OTHERS + key });
        keys.flat_map(move |key| (0..each).map(move |sequence| (key, sequence)))
    }

    async fn handle(self) {
        match self {
            Self::Hot(_) => Work::Wait(HOT).run().await,
            Self::Panicking => panic!("as it always does"),
            Self::Blocking => std::thread::sleep(BLOCKS),
        }
    }
}

const BATCH: usize = 1000;
const WITHIN: Duration = Duration::from_mins(1);
/// Longer than a handler blocks its thread: while one runs, its group still reads the topic, which cannot be deleted.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// The scenarios without contenders.
pub(crate) fn scenarios() -> Vec<Scenario> {
    let until = |name, front: String| {
        let about = format!(
            "one partition: {front}, then one event of each of {OTHERS} other keys, there already: until the others are done"
        );
        Scenario::new(name, about, Unit::Seconds)
    };
    let hot = |count| format!("{count} events of one key that take {HOT:?} each");
    let about = format!(
        "one partition: a key of which {VERY_MANY} events wait behind one that is stuck; from when it is done until all are, by a handler that does nothing"
    );
    vec![
        until(FIVE, hot(SOME)),
        until(MANY, hot(VERY_MANY)),
        Scenario::new(CATCH_UP, about, Unit::PerSecond),
        until(
            PANICKING,
            format!("10 events of each of {PANICKING_KEYS} keys whose handlers always panic"),
        ),
        until(
            BLOCKING,
            format!("an event of one key whose handler blocks its thread for {BLOCKS:?}"),
        ),
    ]
}

/// Adds a broker to them.
pub(crate) fn contend<P: Backend + 'static>(
    scenarios: Vec<Scenario>,
    name: &'static str,
) -> Vec<Scenario> {
    let contend = |(scenario, which): (Scenario, &str)| match which {
        FIVE => scenario.contender(name, || others::<P>(Front::Hot(SOME))),
        MANY => scenario.contender(name, || others::<P>(Front::Hot(VERY_MANY))),
        PANICKING => scenario.contender(name, || quietly(others::<P>(Front::Panicking))),
        BLOCKING => scenario.contender(name, || others::<P>(Front::Blocking)),
        _ => scenario.contender(name, catch_up_from::<P>),
    };
    scenarios.into_iter().zip(ALL).map(contend).collect()
}

/// Sets the figures, by the slowest of the contenders.
pub(crate) fn figures(results: &Results, figures: &mut Figures, contenders: &[&str]) {
    let all = |scenario: &str| -> Option<Vec<f64>> {
        let medians = contenders.iter().map(|name| results.median(scenario, name));
        medians.collect()
    };
    let longest = |scenario| Some(all(scenario)?.into_iter().fold(0.0, f64::max));
    let slowest = |scenario| Some(all(scenario)?.into_iter().fold(f64::INFINITY, f64::min));
    figures.set("hot_5ms_others_s", longest(FIVE));
    figures.set("hot_50000_others_s", longest(MANY));
    figures.set("catch_up_s", slowest(CATCH_UP));
    figures.set("panicking_others_s", longest(PANICKING));
    figures.set("blocking_others_s", longest(BLOCKING));
}

/// Where order and loss are counted.
pub(crate) fn checked(name: &str) -> [(&str, &str); 5] {
    ALL.map(|scenario| (scenario, name))
}

/// Without a word about each panic on the standard error: they are meant.
async fn quietly<T>(work: impl Future<Output = T>) -> T {
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = work.await;
    std::panic::set_hook(told);
    result
}

/// Until the others are done, from the call that subscribes.
async fn others<P: Backend>(front: Front) -> Result<Sample> {
    let bus = P::bus().await?;
    publish(&bus, front).await?;
    let checker = Checker::new(u64::from(OTHERS));
    let seen = checker.clone();
    let started = Instant::now();
    let subscription = bus
        .subscribe_envelope(TOPIC, move |event: Event| {
            let seen = seen.clone();
            async move {
                let key = event.aggregate_id().as_str();
                if key_number(key).is_some_and(is_other) {
                    seen.handled(key, sequence(&event));
                } else {
                    front.handle().await;
                    seen.seen(key, sequence(&event));
                }
                Ok(())
            }
        })
        .await?;
    timeout(WITHIN, checker.all_handled())
        .await
        .context("the others wait for those in front")?;
    let elapsed = started.elapsed();
    end(&bus, &subscription).await?;
    // Those in front are not done yet, and need not be.
    let sample = Sample::time(elapsed);
    Ok(checker.sample(sample, |key| u32::from(is_other(key))))
}

fn is_other(key: usize) -> bool {
    (1..=OTHERS as usize).contains(&key)
}

/// Events a second, once the key is not stuck any more.
async fn catch_up_from<P: Backend>() -> Result<Sample> {
    let bus = P::bus().await?;
    publish(&bus, Front::Hot(VERY_MANY)).await?;
    let others = Checker::new(u64::from(OTHERS));
    let hot = Checker::new(u64::from(VERY_MANY));
    let gate = Arc::new(Semaphore::new(0));
    let (seen_others, seen, stuck) = (others.clone(), hot.clone(), gate.clone());
    let subscription = bus
        .subscribe_envelope(TOPIC, move |event: Event| {
            let (others, hot, gate) = (seen_others.clone(), seen.clone(), stuck.clone());
            async move {
                let key = event.aggregate_id().as_str();
                if key_number(key) != Some(HOT_KEY) {
                    others.handled(key, sequence(&event));
                    return Ok(());
                }
                if sequence(&event) == 0 {
                    let _ = gate.acquire().await;
                }
                hot.handled(key, sequence(&event));
                Ok(())
            }
        })
        .await?;
    // They come last: when they are done, all of the hot one have been read, and wait.
    timeout(WITHIN, others.all_handled())
        .await
        .context("the others wait for the hot one")?;
    let started = Instant::now();
    gate.add_permits(1);
    timeout(WITHIN, hot.all_handled())
        .await
        .context("it does not catch up")?;
    let elapsed = started.elapsed();
    end(&bus, &subscription).await?;
    let sample = Sample::rate(VERY_MANY as usize, elapsed);
    Ok(hot.sample(sample, |key| if key == HOT_KEY { VERY_MANY } else { 0 }))
}

/// Those in front, and then the others.
async fn publish(bus: &Bus, front: Front) -> Result<()> {
    bus.declare(&Topic::domain(TOPIC).partitions(1).build()?)
        .await?;
    let events = Events::new()?;
    let others = (1..=OTHERS).map(|key| (key, 0));
    let mut batch = Vec::with_capacity(BATCH);
    for (key, sequence) in front.events().chain(others) {
        batch.push(events.event(key, sequence)?);
        if batch.len() == BATCH {
            bus.publish_envelope_batch(TOPIC, &batch).await?;
            batch.clear();
        }
    }
    bus.publish_envelope_batch(TOPIC, &batch).await?;
    Ok(())
}

async fn end(bus: &Bus, subscription: &Subscription) -> Result<()> {
    subscription.close(CLOSE_WITHIN).await;
    clear(bus).await
}
