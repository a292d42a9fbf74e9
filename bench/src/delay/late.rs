//! How late messages are.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use laneway_delay::Timestamp;

use super::rig::{Rig, TOPIC, after, now_micros};
use super::{EARLY, LOST, P50};
use crate::frame::Sample;

const PER_SECOND: u64 = 10_000;
const BURST: u64 = 200_000;

/// How long to wait for the last one.
const PATIENCE: Duration = Duration::from_mins(1);

/// When handlers started, in microseconds, by event id.
#[derive(Default)]
struct Arrivals {
    seen: Mutex<HashMap<String, u64>>,
    count: AtomicUsize,
}

impl Arrivals {
    async fn on(rig: &Rig) -> Result<Arc<Self>> {
        let arrivals = Arc::new(Self::default());
        let seen = arrivals.clone();
        rig.bus
            .subscribe_envelope(TOPIC, move |event| {
                let now = now_micros();
                let mut all = seen
                    .seen
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                if !all.contains_key(event.event_id()) {
                    all.insert(event.event_id().to_owned(), now);
                    seen.count.fetch_add(1, Ordering::Relaxed);
                }
                std::future::ready(Ok(()))
            })
            .await?;
        Ok(arrivals)
    }

    async fn wait_for(&self, count: u64) -> Result<()> {
        let arriving = async {
            while (self.count.load(Ordering::Relaxed) as u64) < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, arriving)
            .await
            .context("some did not come")
    }

    /// How late each one was, sorted; how many were early, and how many did not come.
    fn lateness(
        &self,
        ids: impl Iterator<Item = (String, Timestamp)>,
    ) -> (Vec<Duration>, u64, u64) {
        let seen = self
            .seen
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let (mut late, mut early, mut lost) = (Vec::new(), 0, 0);
        for (id, due) in ids {
            let due = due.as_millis() * 1000;
            match seen.get(&id) {
                Some(at) if *at < due => early += 1,
                Some(at) => late.push(Duration::from_micros(at - due)),
                None => lost += 1,
            }
        }
        late.sort_unstable();
        (late, early, lost)
    }
}

pub(super) async fn steady(seconds: u64) -> Result<Sample> {
    let rig = Rig::new().await?;
    let arrivals = Arrivals::on(&rig).await?;
    let count = PER_SECOND * seconds;
    // Time to take them all, before the first is due.
    let start = after(Duration::from_secs(3 + seconds / 4));
    let due = move |number: u64| start + Duration::from_micros(number * 1_000_000 / PER_SECOND);
    let ids = rig.submit_all(count, 1, due).await?;
    arrivals.wait_for(count).await?;
    let ids = ids.into_iter().zip(0..);
    let ids = ids.map(|(id, number)| (id.to_string(), due(number)));
    let (late, early, lost) = arrivals.lateness(ids);
    rig.close().await?;
    let percentile = |percent: usize| late.get(late.len() * percent / 100).copied();
    let median = percentile(50).unwrap_or_default();
    let worst = percentile(99).unwrap_or_default();
    Ok(Sample::time(worst)
        .count(P50, u64::try_from(median.as_micros())?)
        .count(EARLY, early)
        .count(LOST, lost))
}

pub(super) async fn burst() -> Result<Sample> {
    let rig = Rig::new().await?;
    let arrivals = Arrivals::on(&rig).await?;
    let due = after(Duration::from_secs(8));
    let ids = rig.submit_all(BURST, 4, move |_| due).await?;
    arrivals.wait_for(BURST).await?;
    let ids = ids.into_iter().map(|id| (id.to_string(), due));
    let (late, early, lost) = arrivals.lateness(ids);
    rig.close().await?;
    let until_all = late.last().copied().unwrap_or_default();
    Ok(Sample::rate(late.len(), until_all)
        .count(EARLY, early)
        .count(LOST, lost))
}
