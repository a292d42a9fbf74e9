//! How late messages are.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use laneway_delay::Timestamp;

use super::Steady;
use super::arrivals::Arrivals;
use super::rig::{Rig, TOPIC, after, number_of};
use crate::frame::Sample;

/// How long to wait for the last one.
const PATIENCE: Duration = Duration::from_mins(1);

async fn arrivals(rig: &Rig, count: u64) -> Result<Arc<Arrivals>> {
    let arrivals = Arrivals::of(count);
    let seen = arrivals.clone();
    rig.bus
        .subscribe_envelope(TOPIC, move |event| {
            seen.note(number_of(event.payload().data()));
            std::future::ready(Ok(()))
        })
        .await?;
    Ok(arrivals)
}

pub(super) async fn steady(steady: Steady) -> Result<Sample> {
    let rig = Rig::new().await?;
    let arrivals = arrivals(&rig, steady.count()).await?;
    // Time to take them all, before the first is due.
    let start = after(Duration::from_secs(3 + steady.seconds / 4));
    let due = move |number: u64| start + steady.after(number);
    rig.submit_all(steady.count(), 1, due).await?;
    arrivals.all(PATIENCE).await?;
    rig.close().await?;
    arrivals.late(|number| micros(due(number)))
}

pub(super) async fn burst(count: u64) -> Result<Sample> {
    let rig = Rig::new().await?;
    let arrivals = arrivals(&rig, count).await?;
    let due = after(Duration::from_secs(5));
    rig.submit_all(count, 4, move |_| due).await?;
    arrivals.all(PATIENCE).await?;
    rig.close().await?;
    Ok(arrivals.burst(micros(due)))
}

fn micros(at: Timestamp) -> u64 {
    at.as_millis() * 1000
}
