//! How long it takes until all shards have owners again when no view is left.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::ingest::fill;
use super::rig::{Rig, Role};
use crate::frame::Sample;

const OWNED_WITHIN: Duration = Duration::from_mins(15);

/// With so many pending.
pub(super) async fn takeover(rig: &mut Rig, pending: u64) -> Result<Sample> {
    rig.wait_whole(2, 3).await?;
    fill(rig, pending).await?;
    for number in 0..2 {
        rig.kill(Role::Center, number)?;
        rig.lose_views(number)?;
    }
    let started = Instant::now();
    for number in 0..2 {
        rig.resume(Role::Center, number)?;
    }
    let owned = rig.wait_owned(OWNED_WITHIN).await?;
    rig.wait_whole(2, 3).await?;
    Ok(Sample::time(owned - started))
}
