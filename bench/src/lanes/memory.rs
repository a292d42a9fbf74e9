//! What a live key costs, and whether it is given back.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use laneway::lanes::{Bound, Drain, Engine, Job, Options};
use tokio::sync::Semaphore;

use crate::frame::{Sample, Scale, Scenario, Unit};
use crate::machine::resident;

pub(super) const NAME: &str = "memory";
pub(super) const LIVE: &str = "laneway";
pub(super) const AFTERWARDS: &str = "bytes per key afterwards";

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
    .contender(LIVE, move || measure(keys))
    .rounds(1)
}

/// Bytes per key while all of them live, and how many of them are left when all are gone.
async fn measure(keys: u64) -> Result<Sample> {
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
    let mut after = resident()?.saturating_sub(before);
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        stir().await?;
        after = after.min(resident()?.saturating_sub(before));
    }
    Ok(Sample::bytes(live as f64 / keys as f64).count(AFTERWARDS, after / keys))
}

/// Has every thread ask for memory and free it. The allocator gives pages back a little later, and
/// only when it is called: an idle thread keeps what it has, and what others freed for it.
async fn stir() -> Result<()> {
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            tokio::spawn(async {
                for size in (4..22).map(|power| 1_usize << power) {
                    let blocks: Vec<Vec<u8>> = (0..8).map(|_| vec![1; size]).collect();
                    std::hint::black_box(blocks);
                }
                tokio::task::yield_now().await;
            })
        })
        .collect();
    for task in tasks {
        task.await?;
    }
    Ok(())
}
