//! How long callbacks wait when a process is killed that has them.

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use super::client::millis;
use super::late::Steady;
use super::log::Reader;
use super::receiver::Receiver;
use super::rig::{Rig, Role};
use super::{DOUBLE, EARLY, LOST, P50_MILLIS, TOLERATED};
use crate::delay::now_micros;
use crate::frame::Sample;

const PATIENCE: Duration = Duration::from_mins(2);

/// From the submit to the first that is due, and from then to the kill.
const LEAD: Duration = Duration::from_secs(3);
const CALM: Duration = Duration::from_secs(1);

/// What is due while something is killed.
const LOAD: Steady = Steady {
    per_second: 300,
    seconds: 4,
};

/// A worker is killed, so many times.
pub(super) async fn workers(rig: &mut Rig, times: usize) -> Result<Sample> {
    kills(rig, Role::Worker, 3, times).await
}

/// A center is killed, so many times.
pub(super) async fn centers(rig: &mut Rig, times: usize) -> Result<Sample> {
    let session = millis(rig.stack().session());
    let sample = kills(rig, Role::Center, 2, times).await?;
    Ok(sample.count(TOLERATED, session))
}

async fn kills(rig: &mut Rig, role: Role, of: usize, times: usize) -> Result<Sample> {
    let reader = Reader::start(&rig.log()).await?;
    let (mut latest, mut arrivals) = (Vec::new(), Vec::new());
    let (mut early, mut lost) = (0, 0);
    for time in 0..times {
        rig.wait_whole(2, 3).await?;
        let receiver = Receiver::start(Duration::ZERO).await?;
        let start = now_micros() / 1_000 + millis(LEAD);
        LOAD.submit(rig, &receiver.url(), start).await?;
        let until = (start + millis(CALM)).saturating_sub(now_micros() / 1_000);
        sleep(Duration::from_millis(until)).await;
        rig.kill(role, time % of)?;
        let late = receiver.wait_for(LOAD.count(), PATIENCE).await;
        rig.resume(role, time % of)?;
        latest.push(late.latest());
        arrivals.extend(receiver.so_far());
        early += late.early;
        lost += late.lost;
    }
    rig.wait_whole(2, 3).await?;
    let double = reader.finish().await?.wrong(&arrivals);
    latest.sort_unstable();
    let percentile = |percent: usize| {
        let at = (latest.len() * percent).div_ceil(100).saturating_sub(1);
        latest.get(at).copied().unwrap_or_default()
    };
    Ok(Sample::time(percentile(99))
        .count(P50_MILLIS, millis(percentile(50)))
        .count(EARLY, early)
        .count(LOST, lost)
        .count(DOUBLE, double))
}
