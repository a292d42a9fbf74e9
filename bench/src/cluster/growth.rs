//! How fast callbacks are made that are all due at once, with more or fewer processes of a role.

use std::time::Duration;

use anyhow::Result;

use super::client::{BATCH, at, batch, message, millis};
use super::receiver::Receiver;
use super::rig::{Rig, Role};
use super::{EARLY, LOST};
use crate::delay::now_micros;
use crate::frame::Sample;

const COUNT: u64 = 10_000;
const PATIENCE: Duration = Duration::from_mins(3);
const LEAD: Duration = Duration::from_secs(15);

/// How many there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    centers: usize,
    workers: usize,
    /// A callback takes so long.
    takes: Duration,
}

impl Size {
    pub(super) const fn new(centers: usize, workers: usize, takes: Duration) -> Self {
        Self {
            centers,
            workers,
            takes,
        }
    }
}

/// Those that are too many are stopped meanwhile.
pub(super) async fn burst(rig: &mut Rig, size: Size) -> Result<Sample> {
    let spare: Vec<(Role, usize)> = (size.centers..2)
        .map(|number| (Role::Center, number))
        .chain((size.workers..3).map(|number| (Role::Worker, number)))
        .collect();
    for (role, number) in &spare {
        rig.stop(*role, *number)?;
    }
    rig.wait_whole(size.centers, size.workers).await?;
    let sample = measure(rig, size.takes).await;
    for (role, number) in &spare {
        rig.resume(*role, *number)?;
    }
    rig.wait_whole(2, 3).await?;
    sample
}

async fn measure(rig: &Rig, takes: Duration) -> Result<Sample> {
    let receiver = Receiver::start(takes).await?;
    let before = rig.taken().await?;
    let due = now_micros() / 1_000 + millis(LEAD);
    let mut clients = [rig.client(0).await?, rig.client(1).await?];
    for turn in 0..COUNT / BATCH {
        let messages = (0..BATCH).map(|_| message(&at(due), &receiver.url()));
        let client = &mut clients[usize::try_from(turn % 2)?];
        client.submit_all(&batch(messages)).await?;
    }
    rig.wait_taken(before + COUNT, LEAD).await?;
    let late = receiver.wait_for(COUNT, LEAD + PATIENCE).await;
    Ok(
        Sample::rate(usize::try_from(COUNT - late.lost)?, late.latest())
            .count(EARLY, late.early)
            .count(LOST, late.lost),
    )
}
