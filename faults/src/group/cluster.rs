//! Of three servers that replicate, one at a time is killed with signal 9 and started again.
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

struct Step {
    after: Duration,
    victim: usize,
    away: Duration,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            after,
            victim,
            away,
        } = self;
        write!(
            f,
            "kill -9 node {} after {after:?}, start again {away:?} later",
            victim + 1
        )
    }
}

fn plan(dice: &mut impl Rng, is_full: bool) -> Vec<Step> {
    let (kills, after) = if is_full {
        (6, 8_000..12_000)
    } else {
        (1, 1_500..2_500)
    };
    (0..kills)
        .map(|_| Step {
            after: Duration::from_millis(dice.random_range(after.clone())),
            victim: dice.random_range(0..3),
            away: Duration::from_millis(dice.random_range(0..3_000)),
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
    let is_full = run.is_full();
    let plan = plan(run.dice(), is_full);
    run.announce(&plan);
    let mut servers = B::cluster(folder.path())?;
    let mut stage = Stage::new::<B>(folder.path(), &servers, B::REPLICATED)?;
    let members = vec![
        stage.begin_ready(Task::Handle, 0)?,
        stage.begin_ready(Task::Handle, 0)?,
    ];
    let publisher = stage.begin_ready(Task::Publish, run.dice().random())?;

    let mut killed = Vec::new();
    for step in &plan {
        thread::sleep(step.after);
        let server = &mut servers[step.victim];
        server.kill()?;
        killed.push(now());
        run.note(format_args!("killed {}", server.name()));
        thread::sleep(step.away);
        server.start()?;
        run.note(format_args!("{} answers again", server.name()));
    }
    thread::sleep(Duration::from_secs(2));
    let story = stage.end(publisher, members)?;
    let pauses = killed.iter().filter_map(|at| story.longest_pause(*at));
    let longest = pauses.max().unwrap_or_default();
    Ok(story
        .judge()
        .count("kills", plan.len() as u64)
        .count("longest pause after a kill, in ms", millis(longest)))
}
