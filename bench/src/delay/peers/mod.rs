//! Others who keep messages until they are due.
//!
//! Each server is started for one measurement, with its data on the same disk as ours. What is taken counts
//! when the server has said so. How much that is worth depends on when it syncs: the name of a contender
//! says it. How late they are, and how fast a burst is, is measured as most people run them, which is the
//! faster way.
//!
//! - `process`: a server in a process of its own
//! - `beanstalkd`: by its own protocol, pipelined
//! - `nats`: message schedules of `JetStream`
//! - `bullmq`: by the program in `bench/bullmq`

mod beanstalkd;
mod bullmq;
mod nats;
mod process;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::task::JoinSet;

use super::Steady;
use crate::frame::{Sample, Scenario};

/// Synced before they answer: comparable with ours.
pub(super) const SYNCED: [&str; 3] = [
    "beanstalkd, synced each",
    "NATS schedules, synced each",
    "BullMQ, Redis synced each",
];

/// As most people run them.
pub(super) const USUAL: [&str; 3] = [
    "beanstalkd, synced every 50 ms",
    "NATS schedules, synced every 2 min",
    "BullMQ, Redis synced every second",
];

/// When a server syncs what it has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sync {
    /// Before it answers.
    Each,
    /// By its own schedule.
    Usual,
}

/// How long a peer may take for something that takes us a second.
const PATIENCE: Duration = Duration::from_mins(1);

/// Messages that are sent before the first of them is answered, by each client.
const AT_ONCE: usize = 500;

/// Clients that submit at the same time.
const CLIENTS: usize = 4;

/// It takes minutes for what takes others seconds, and is as fast with a part of it.
pub(super) const BULLMQ_BURST: u64 = 50_000;

/// A delay that no benchmark lives to see.
const A_WEEK: Duration = Duration::from_hours(7 * 24);

/// What clients have submitted together since they started.
async fn taken(mut clients: JoinSet<Result<usize>>, started: Instant) -> Result<Sample> {
    let mut count = 0;
    while let Some(client) = clients.join_next().await {
        count += client.context("a client failed")??;
    }
    Ok(Sample::rate(count, started.elapsed()))
}

pub(super) fn ingest(mut scenario: Scenario, time: Duration) -> Scenario {
    for (sync, names) in [(Sync::Each, SYNCED), (Sync::Usual, USUAL)] {
        scenario = scenario
            .contender_once(names[0], move || beanstalkd::ingest(sync, time))
            .contender_once(names[1], move || nats::ingest(sync, time))
            .contender_once(names[2], move || bullmq::ingest(sync, time));
    }
    scenario
}

pub(super) fn late(scenario: Scenario, steady: Steady) -> Scenario {
    scenario
        .contender_once(USUAL[0], move || beanstalkd::late(steady))
        .contender_once(USUAL[1], move || nats::late(steady))
        .contender_once(USUAL[2], move || bullmq::late(steady))
}

pub(super) fn burst(scenario: Scenario, count: u64) -> Scenario {
    scenario
        .contender_once(USUAL[0], move || beanstalkd::burst(count))
        .contender_once(USUAL[1], move || nats::burst(count))
        .contender_once(USUAL[2], || bullmq::burst(BULLMQ_BURST))
}
