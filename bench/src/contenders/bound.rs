//! The bound: the shortest time in which strictly ordered work can be done on this machine.
//!
//! It is measured and not computed, because a wait takes longer than asked for: tokio's timer has a
//! grain of one millisecond and rounds up.

use std::time::Instant;

use anyhow::Result;

use crate::frame::Sample;
use crate::workload::Work;

/// The time one key takes alone, with nothing to wait for but its own `events`.
///
/// # Errors
///
/// Never; contenders can fail, so their functions say so.
pub async fn one_key(events: usize, work: Work) -> Result<Sample> {
    let started = Instant::now();
    for _ in 0..events {
        work.run().await;
    }
    Ok(Sample::time(started.elapsed()))
}
