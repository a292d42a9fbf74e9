//! One key of many that is slow: how long until the others are done.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use laneway::Event;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::{Place, clear, ours};
use crate::bus::load::{Events, TOPIC, key_number};
use crate::frame::Sample;
use crate::workload::Work;

const OTHERS: u32 = 100;
const PER_KEY: u32 = 100;
const SLOW: Work = Work::Wait(Duration::from_millis(100));
const QUICK: Work = Work::Wait(Duration::from_millis(1));

const WITHIN: Duration = Duration::from_mins(1);
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// A hundred keys with a handler of 1 ms, and one with a handler of 100 ms, in turn: from the call that
/// subscribes until all events of the others are handled.
pub(crate) async fn others<P: Place>() -> Result<Sample> {
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

    let left = Arc::new(AtomicU64::new(u64::from(OTHERS * PER_KEY)));
    let done = Arc::new(Notify::new());
    let (counted, told) = (left.clone(), done.clone());
    let started = Instant::now();
    let subscription = bus
        .subscribe_envelope(TOPIC, move |event: Event| {
            let (left, done) = (counted.clone(), told.clone());
            async move {
                if key_number(event.aggregate_id().as_str()) == Some(0) {
                    SLOW.run().await;
                    return Ok(());
                }
                QUICK.run().await;
                if left.fetch_sub(1, Ordering::SeqCst) == 1 {
                    done.notify_one();
                }
                Ok(())
            }
        })
        .await?;
    timeout(WITHIN, done.notified())
        .await
        .context("the others wait for the slow one")?;
    let elapsed = started.elapsed();

    subscription.close(CLOSE_WITHIN).await;
    clear(&bus).await?;
    Ok(Sample::time(elapsed))
}
