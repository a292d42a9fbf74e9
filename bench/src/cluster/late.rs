//! How late callbacks are at a steady rate, and what each role costs.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::client::{BATCH, at, batch, message, millis};
use super::receiver::Receiver;
use super::rig::{Rig, Role};
use super::{COSTS, EARLY, LOST, P50};
use crate::delay::now_micros;
use crate::frame::Sample;

const PATIENCE: Duration = Duration::from_mins(2);

/// Messages that are due one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steady {
    pub(super) per_second: u64,
    pub(super) seconds: u64,
}

impl Steady {
    pub(super) fn count(self) -> u64 {
        self.per_second * self.seconds
    }

    /// Submits all of them; the first one is due at `start`, in milliseconds.
    pub(super) async fn submit(self, rig: &Rig, url: &str, start: u64) -> Result<()> {
        let mut clients = [rig.client(0).await?, rig.client(1).await?];
        let firsts = (0..self.count()).step_by(usize::try_from(BATCH)?);
        for (turn, first) in firsts.enumerate() {
            let numbers = first..(first + BATCH).min(self.count());
            let messages = numbers.map(|number| {
                let due = start + number * 1_000 / self.per_second;
                message(&at(due), url)
            });
            let client = &mut clients[turn % 2];
            client.submit_all(&batch(messages)).await?;
        }
        Ok(())
    }
}

/// How late they are.
pub(super) async fn steady(rig: &mut Rig, steady: Steady) -> Result<Sample> {
    let receiver = Receiver::start(Duration::ZERO).await?;
    let (taken, cpu) = (rig.taken().await?, cpu(rig)?);
    // Time to take them all, before the first is due.
    let lead = Duration::from_secs(10) + Duration::from_millis(steady.count() / 2);
    let start = now_micros() / 1_000 + millis(lead);
    steady.submit(rig, &receiver.url(), start).await?;
    rig.wait_taken(taken + steady.count(), lead).await?;
    ensure!(
        now_micros() / 1_000 < start,
        "they were not taken before the first was due"
    );
    let patience = lead + PATIENCE + Duration::from_secs(steady.seconds);
    let late = receiver.wait_for(steady.count(), patience).await;
    let median = u64::try_from(late.percentile(50).as_micros())?;
    let mut sample = Sample::time(late.percentile(99))
        .count(P50, median)
        .count(EARLY, late.early)
        .count(LOST, late.lost);
    for ((name, before), after) in COSTS.into_iter().zip(cpu).zip(self::cpu(rig)?) {
        let micros = after.saturating_sub(before).as_micros();
        let each = u64::try_from(micros)? / steady.count();
        sample = sample.count(name, each);
    }
    Ok(sample)
}

fn cpu(rig: &Rig) -> Result<Vec<Duration>> {
    Role::ALL.into_iter().map(|role| rig.cpu(role)).collect()
}
