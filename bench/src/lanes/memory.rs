//! What a live key costs, and whether it is given back.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use laneway::lanes::{Bound, Drain, Engine, Job, Options};
use tokio::sync::Semaphore;

use crate::frame::{Sample, Scale, Scenario, Unit};

pub(super) const NAME: &str = "memory";
pub(super) const LIVE: &str = "laneway, live";
pub(super) const AFTERWARDS: &str = "laneway, afterwards";

/// One job of one key.
struct Single(u64, String);

impl Job for Single {
    fn key(&self) -> Option<&str> {
        Some(&self.1)
    }

    fn bytes(&self) -> usize {
        self.1.len()
    }
}

pub(super) fn scenario(scale: Scale) -> Scenario {
    let keys = scale.pick(100_000, 1_000_000);
    Scenario::new(
        NAME,
        format!("256 workers, {keys} keys with one job each, per key, the job (32 bytes and its key) included"),
        Unit::Bytes,
    )
    .contender(LIVE, move || async move { Ok(measure(keys).await?.0) })
    .contender(AFTERWARDS, move || async move { Ok(measure(keys).await?.1) })
    .rounds(1)
}

/// Bytes per key while all of them live, and when all are gone.
async fn measure(keys: u64) -> Result<(Sample, Sample)> {
    let messages = usize::try_from(keys)? * 2;
    let options = Options::default()
        .workers(256)
        .total(Bound::new(messages, 1 << 30));
    let engine = Engine::start(options)?;
    let gate = Arc::new(Semaphore::new(0));
    let closed = Arc::clone(&gate);
    let intake = engine.topic("bench", move |job: &Single| {
        std::hint::black_box(job.0);
        let gate = Arc::clone(&closed);
        async move {
            gate.acquire().await?.forget();
            Ok(())
        }
    })?;
    let before = resident()?;
    for key in 0..keys {
        intake
            .submit(Single(key, format!("order-{key:08}")))
            .await?;
    }
    let live = resident()?.saturating_sub(before);
    gate.add_permits(usize::try_from(keys)?);
    intake.quiet().await;
    engine.close(Drain::Queued, Duration::from_secs(10)).await;
    // The allocator gives pages back a little later.
    let mut after = resident()?.saturating_sub(before);
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        after = after.min(resident()?.saturating_sub(before));
    }
    let per_key = |bytes: u64| Sample::bytes(bytes as f64 / keys as f64);
    Ok((per_key(live), per_key(after)))
}

/// Bytes of memory that the process holds.
fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let kib: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|value| value.trim().strip_suffix("kB"))
        .context("no VmRSS in /proc/self/status")?
        .trim()
        .parse()?;
    Ok(kib * 1024)
}
