//! A bus on disk is killed with signal 9, again and again, while it publishes and handles.
//!
//! What must hold: everything that was acknowledged is handled in the end, in order per key; and
//! what ran again had not been settled.

use std::fmt;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use laneway::testing::history::History;
use rand::{Rng, RngExt};

use super::child::{self, Task};
use super::stage::Stage;
use super::{judge, read};
use crate::frame::Run;
use crate::verdict::Verdict;

/// Its name on the command line.
pub const NAME: &str = "kill";
/// What it breaks.
pub const ABOUT: &str = "kill -9 of a bus on disk: nothing lost, order kept, no needless repeats";

const OPEN_LIMIT: Duration = Duration::from_secs(30);
const DRAIN_LIMIT: Duration = Duration::from_mins(3);

/// When a life ends.
struct Step {
    after: Duration,
    seed: u64,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kill -9 after {:?}", self.after)
    }
}

fn plan(dice: &mut impl Rng, steps: usize) -> Vec<Step> {
    (0..steps)
        .map(|_| {
            // Some of them while it is still opening.
            let latest = if dice.random_bool(0.2) { 150 } else { 2000 };
            Step {
                after: Duration::from_millis(dice.random_range(0..latest)),
                seed: dice.random(),
            }
        })
        .collect()
}

/// Runs it.
///
/// # Errors
///
/// If processes cannot be started or killed, or the last life does not come to its end.
pub fn run(run: &mut Run) -> Result<Verdict> {
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    let (directory, file) = (folder.path().join("bus"), folder.path().join("history"));
    let history = History::append_to(&file)?;
    let stage = Stage {
        directory: &directory,
        history: &file,
        namespace: None,
    };
    let kills = if run.is_full() { 250 } else { 10 };
    let plan = plan(run.dice(), kills);
    run.announce(&plan);

    let mut slowest = 0;
    for (owner, step) in (1..).zip(&plan) {
        let mut life = stage.begin(Task::Live, owner, step.seed)?;
        thread::sleep(step.after);
        life.kill(&history)?;
        let opened = life.heard(child::READY);
        let took = opened.as_deref().map(str::parse::<u64>).transpose()?;
        slowest = slowest.max(took.unwrap_or(0));
        run.note(format_args!(
            "killed life {owner} after {:?}, which {}",
            step.after,
            match took {
                Some(took) => format!("had opened in {took} ms"),
                None => "was not open yet".to_owned(),
            }
        ));
    }
    let last = plan.len() as u64 + 1;
    let mut life = stage.begin(Task::Live, last, 0)?;
    life.hear(child::READY, OPEN_LIMIT)?;
    life.kill(&history)?;
    stage.drain(last + 1, DRAIN_LIMIT)?;
    Ok(judge(read(&file)?).count("slowest open in ms", slowest))
}
