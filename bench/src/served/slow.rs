//! One key of many that is slow: how long until the others are done.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use laneway::Event;
use tokio::time::timeout;

use super::{Backend, clear, ours};
use crate::bus::check::Checker;
use crate::bus::load::{Events, TOPIC, key_number};
use crate::bus::memory::sequence;
use crate::frame::Sample;
use crate::workload::Work;

const SLOW_KEY: usize = 0;
const OTHERS: u32 = 100;
const PER_KEY: u32 = 100;
const SLOW: Work = Work::Wait(Duration::from_millis(100));
const QUICK: Work = Work::Wait(Duration::from_millis(1));

const WITHIN: Duration = Duration::from_mins(1);
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// A hundred keys with a handler of 1 ms, and one with a handler of 100 ms, in turn: from the call that
/// subscribes until all events of the others are handled.
pub(crate) async fn others<P: Backend>() -> Result<Sample> {
    let bus = P::bus().await?;
    ours::declare::<P>(&bus).await?;
    let events = Events::new()?;
    let mut batch = Vec::new();
    for sequence in 0..PER_KEY {
        for key in 0..=OTHERS {
            batch.push(events.event(key, sequence)?);
        }
    }
    bus.publish_envelope_batch(TOPIC, &batch).await?;

    let checker = Checker::new(u64::from(OTHERS * PER_KEY));
    let seen = checker.clone();
    let started = Instant::now();
    let subscription = bus
        .subscribe_envelope(TOPIC, move |event: Event| {
            let seen = seen.clone();
            async move {
                let key = event.aggregate_id().as_str();
                if key_number(key) == Some(SLOW_KEY) {
                    SLOW.run().await;
                    seen.seen(key, sequence(&event));
                } else {
                    QUICK.run().await;
                    seen.handled(key, sequence(&event));
                }
                Ok(())
            }
        })
        .await?;
    timeout(WITHIN, checker.all_handled())
        .await
        .context("the others wait for the slow one")?;
    let elapsed = started.elapsed();

    subscription.close(CLOSE_WITHIN).await;
    clear(&bus).await?;
    // The slow one is not done yet, and need not be.
    let published = |key| match key {
        SLOW_KEY => 0,
        key if key <= OTHERS as usize => PER_KEY,
        _ => 0,
    };
    Ok(checker.sample(Sample::time(elapsed), published))
}
