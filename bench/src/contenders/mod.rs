//! Floors and peers that several benchmarks share.
//!
//! Each of them is an async function from a workload to a sample, to be handed to
//! [`Scenario::contender`](crate::frame::Scenario::contender).

pub mod bound;
pub mod floor;
pub mod parallel_consumer;
pub mod ractor;

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::frame::Sample;
use crate::workload::Work;

/// A contender that loses events has not won anything.
fn all_handled(handled: usize, published: usize) -> Result<()> {
    ensure!(
        handled == published,
        "{handled} of {published} events were handled"
    );
    Ok(())
}

/// A rate where only the transport counts, a time where handlers wait.
fn sample(work: Work, events: usize, elapsed: Duration) -> Sample {
    match work {
        Work::Nothing => Sample::rate(events, elapsed),
        Work::Wait(_) => Sample::time(elapsed),
    }
}
