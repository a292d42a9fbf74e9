//! The floor: a bare loop that hashes keys onto tokio channels, and a bare task behind each of them.
//!
//! Order per key, bounded, and nothing else: no supervision, no retry, no figures. What a real
//! engine does on top is measured against this.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::{all_handled, sample};
use crate::frame::Sample;
use crate::workload::{Event, Work, Workload, lane_of};

/// Events that wait in one channel before the loop has to.
const BOUND: usize = 1000;
/// Events that a task takes at once.
const BATCH: usize = 64;

/// How long it takes to bring all events through `lanes` channels.
///
/// # Errors
///
/// If a task fails or an event is not handled.
pub async fn run(workload: Arc<Workload>, lanes: usize, work: Work) -> Result<Sample> {
    let mut senders = Vec::with_capacity(lanes);
    let mut tasks = Vec::with_capacity(lanes);
    for _ in 0..lanes {
        let (sender, receiver) = mpsc::channel(BOUND);
        senders.push(sender);
        tasks.push(tokio::spawn(lane(receiver, work)));
    }

    let started = Instant::now();
    for &event in &workload.events {
        let sender = &senders[lane_of(workload.key(event), lanes)];
        // First without awaiting: tokio makes a task that awaits yield now and then, and each time
        // the lanes would wake up for the few events that there are.
        match sender.try_send(event) {
            Ok(()) => {}
            Err(TrySendError::Full(event)) => sender.send(event).await?,
            Err(error) => return Err(error.into()),
        }
    }
    drop(senders);
    let mut handled = 0;
    for task in tasks {
        handled += task.await?;
    }
    let elapsed = started.elapsed();

    all_handled(handled, workload.events.len())?;
    Ok(sample(work, handled, elapsed))
}

/// Handles events one after the other until there are no more; says how many there were.
async fn lane(mut events: mpsc::Receiver<Event>, work: Work) -> usize {
    let mut handled = 0;
    let mut batch = Vec::with_capacity(BATCH);
    while events.recv_many(&mut batch, BATCH).await > 0 {
        for event in batch.drain(..) {
            std::hint::black_box(event);
            work.run().await;
            handled += 1;
        }
    }
    handled
}
