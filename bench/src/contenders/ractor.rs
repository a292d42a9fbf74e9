//! The actor crate `ractor`: as many actors as there are lanes, a `cast` for every event.
//!
//! Its mailboxes have no bound, so the loop never waits: memory grows where a bounded engine would
//! push back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use ractor::{Actor, ActorProcessingErr, ActorRef};

use super::{all_handled, sample};
use crate::frame::Sample;
use crate::workload::{Event, Work, Workload, lane_of};

/// How long it takes to bring all events through `lanes` actors.
///
/// # Errors
///
/// If an actor fails or an event is not handled.
pub async fn run(workload: Arc<Workload>, lanes: usize, work: Work) -> Result<Sample> {
    let handled = Arc::new(AtomicUsize::new(0));
    let mut actors = Vec::with_capacity(lanes);
    let mut tasks = Vec::with_capacity(lanes);
    for _ in 0..lanes {
        let (actor, task) = Actor::spawn(None, Lane(work), Arc::clone(&handled)).await?;
        actors.push(actor);
        tasks.push(task);
    }

    let started = Instant::now();
    for &event in &workload.events {
        let lane = lane_of(workload.key(event), lanes);
        actors[lane].cast(event).context("an actor is gone")?;
    }
    for actor in &actors {
        actor.drain().context("an actor is gone")?;
    }
    for task in tasks {
        task.await?;
    }
    let elapsed = started.elapsed();

    let handled = handled.load(Ordering::Relaxed);
    all_handled(handled, workload.events.len())?;
    Ok(sample(work, handled, elapsed))
}

struct Lane(Work);

/// What one actor has handled, and where it says so in the end.
struct Count {
    own: usize,
    all: Arc<AtomicUsize>,
}

impl Actor for Lane {
    type Msg = Event;
    type State = Count;
    type Arguments = Arc<AtomicUsize>;

    async fn pre_start(
        &self,
        _myself: ActorRef<Event>,
        all: Arc<AtomicUsize>,
    ) -> Result<Count, ActorProcessingErr> {
        Ok(Count { own: 0, all })
    }

    async fn handle(
        &self,
        _myself: ActorRef<Event>,
        event: Event,
        count: &mut Count,
    ) -> Result<(), ActorProcessingErr> {
        std::hint::black_box(event);
        self.0.run().await;
        count.own += 1;
        Ok(())
    }

    async fn post_stop(
        &self,
        _myself: ActorRef<Event>,
        count: &mut Count,
    ) -> Result<(), ActorProcessingErr> {
        count.all.fetch_add(count.own, Ordering::Relaxed);
        Ok(())
    }
}
