//! How fast messages are accepted, durably.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;

use super::rig::{Rig, TOPIC, message, next_week};
use crate::frame::Sample;

const TASKS: u64 = 4;

pub(super) async fn batches(count: u64) -> Result<Sample> {
    let rig = Rig::new().await?;
    let due = next_week();
    let started = Instant::now();
    let ids = rig.submit_all(count, TASKS, move |_| due).await?;
    let elapsed = started.elapsed();
    ensure!(
        rig.delays.counts()[TOPIC].scheduled == count,
        "some are missing"
    );
    rig.close().await?;
    Ok(Sample::rate(ids.len(), elapsed))
}

pub(super) async fn singles(tasks: u64, time: Duration) -> Result<Sample> {
    let rig = std::sync::Arc::new(Rig::new().await?);
    let due = next_week();
    let mut submitting = JoinSet::new();
    let started = Instant::now();
    for task in 0..tasks {
        let rig = rig.clone();
        submitting.spawn(async move {
            let mut count = 0;
            while started.elapsed() < time {
                let submission = message(task + count * tasks, due);
                rig.delays.submit_one(submission).await?;
                count += 1;
            }
            anyhow::Ok(count)
        });
    }
    let mut count = 0;
    while let Some(done) = submitting.join_next().await {
        count += done.context("a publisher failed")??;
    }
    let elapsed = started.elapsed();
    ensure!(
        rig.delays.counts()[TOPIC].scheduled == count,
        "some are missing"
    );
    Ok(Sample::rate(usize::try_from(count)?, elapsed))
}
