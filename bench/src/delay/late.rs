//! How late messages are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use laneway_delay::Timestamp;

use super::rig::{Rig, TOPIC, after, now_micros, number_of};
use super::{EARLY, LOST, P50};
use crate::frame::Sample;

const PER_SECOND: u64 = 10_000;
const BURST: u64 = 200_000;

/// How long to wait for the last one.
const PATIENCE: Duration = Duration::from_mins(1);

/// When the handler of each message started, in microseconds; 0 if it has not.
struct Arrivals {
    seen: Vec<AtomicU64>,
    count: AtomicU64,
}

impl Arrivals {
    async fn on(rig: &Rig, count: u64) -> Result<Arc<Self>> {
        let arrivals = Arc::new(Self {
            seen: (0..count).map(|_| AtomicU64::new(0)).collect(),
            count: AtomicU64::new(0),
        });
        let seen = arrivals.clone();
        rig.bus
            .subscribe_envelope(TOPIC, move |event| {
                let now = now_micros();
                let number = number_of(event.payload().data());
                if let Some(at) = number.and_then(|number| seen.seen.get(number))
                    && at.swap(now, Ordering::Relaxed) == 0
                {
                    seen.count.fetch_add(1, Ordering::Relaxed);
                }
                std::future::ready(Ok(()))
            })
            .await?;
        Ok(arrivals)
    }

    /// Waits for all of them.
    async fn all(&self) -> Result<()> {
        let arriving = async {
            while self.count.load(Ordering::Relaxed) < self.seen.len() as u64 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, arriving)
            .await
            .context("some did not come")
    }

    /// How late each one was, sorted; how many were early, and how many did not come.
    fn lateness(&self, due: impl Fn(u64) -> Timestamp) -> (Vec<Duration>, u64, u64) {
        let (mut late, mut early, mut lost) = (Vec::new(), 0, 0);
        for (at, number) in self.seen.iter().zip(0..) {
            let due = due(number).as_millis() * 1000;
            match at.load(Ordering::Relaxed) {
                0 => lost += 1,
                at if at < due => early += 1,
                at => late.push(Duration::from_micros(at - due)),
            }
        }
        late.sort_unstable();
        (late, early, lost)
    }
}

pub(super) async fn steady(seconds: u64) -> Result<Sample> {
    let rig = Rig::new().await?;
    let count = PER_SECOND * seconds;
    let arrivals = Arrivals::on(&rig, count).await?;
    // Time to take them all, before the first is due.
    let start = after(Duration::from_secs(3 + seconds / 4));
    let due = move |number: u64| start + Duration::from_micros(number * 1_000_000 / PER_SECOND);
    rig.submit_all(count, 1, due).await?;
    arrivals.all().await?;
    let (late, early, lost) = arrivals.lateness(due);
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
    let arrivals = Arrivals::on(&rig, BURST).await?;
    let due = after(Duration::from_secs(8));
    rig.submit_all(BURST, 4, move |_| due).await?;
    arrivals.all().await?;
    let (late, early, lost) = arrivals.lateness(|_| due);
    rig.close().await?;
    let until_all = late.last().copied().unwrap_or_default();
    Ok(Sample::rate(late.len(), until_all)
        .count(EARLY, early)
        .count(LOST, lost))
}
