//! Processes are killed with signal 9, again and again: one that publishes and two that handle.
//! Whoever is killed is started anew, and members take over from each other meanwhile.
//!
//! What must hold: everything that was acknowledged is handled in the end, in order per key.

use std::fmt;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rand::{Rng, RngExt};

use super::Broker;
use super::child::Task;
use super::servers::millis;
use super::stage::Stage;
use crate::frame::Run;
use crate::life::now;
use crate::verdict::Verdict;

/// Who is killed, and when.
struct Step {
    after: Duration,
    victim: usize,
    seed: u64,
}

/// What each of the processes does.
const CAST: [Task; 3] = [Task::Publish, Task::Handle, Task::Handle];
const NAMES: [&str; 3] = ["the publisher", "a member", "the other member"];

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kill -9 {} after {:?}", NAMES[self.victim], self.after)
    }
}

fn plan(dice: &mut impl Rng, steps: usize, latest: u64) -> Vec<Step> {
    (0..steps)
        .map(|_| {
            // Some of them while it is still joining.
            let latest = if dice.random_bool(0.2) { 150 } else { latest };
            Step {
                after: Duration::from_millis(dice.random_range(0..latest)),
                victim: dice.random_range(0..CAST.len()),
                seed: dice.random(),
            }
        })
        .collect()
}

/// Runs it.
///
/// # Errors
///
/// If servers or processes cannot be handled as planned.
pub fn run<B: Broker>(run: &mut Run) -> Result<Verdict> {
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    // The members have to be silent for a lease each time.
    let (kills, latest, lease) = if run.is_full() {
        (60, 6_000, 3_000)
    } else {
        (6, 1_500, 500)
    };
    let lease = B::LEAST_SILENCE.max(lease);
    let plan = plan(run.dice(), kills, latest);
    run.announce(&plan);
    let servers = [B::alone(folder.path())?];
    let mut stage = Stage::new::<B>(folder.path(), &servers, &B::silence(lease))?;
    let mut lives = Vec::new();
    for task in CAST {
        lives.push(stage.begin_ready(task, run.dice().random())?);
    }

    let mut killed = Vec::new();
    for step in &plan {
        thread::sleep(step.after);
        let life = &mut lives[step.victim];
        life.kill(stage.history())?;
        if CAST[step.victim] == Task::Handle {
            killed.push((life.owner(), now()));
        }
        *life = stage.begin(CAST[step.victim], step.seed)?;
        run.note(format_args!("killed {}", NAMES[step.victim]));
    }
    let publisher = lives.remove(0);
    let story = stage.end(publisher, lives)?;

    let taken: Vec<_> = killed
        .iter()
        .filter_map(|(owner, at)| story.taken_over(*owner, *at, u64::MAX))
        .collect();
    let slowest = taken.iter().max().copied().unwrap_or_default();
    Ok(story
        .judge()
        .count("kills", plan.len() as u64)
        .count("kills of members that had keys", taken.len() as u64)
        .count("slowest takeover of all keys, in ms", millis(slowest)))
}
