//! Delayed messages on disk are killed with signal 9, again and again, with 100,000 of them waiting.
//!
//! What must hold: everything that was accepted is delivered in the end unless it was taken back,
//! nothing before its time, and nothing after a yes to its withdrawal.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use laneway::testing::history::History;
use rand::{Rng, RngExt};

use super::child::{self, Task};
use super::story;
use crate::frame::Run;
use crate::life::{Life, program};
use crate::verdict::Verdict;

/// Its name on the command line.
pub const NAME: &str = "delay-kill";
/// What it breaks.
pub const ABOUT: &str =
    "kill -9 of delayed messages on disk: none lost, none early, none after a withdraw";

const OPEN_LIMIT: Duration = Duration::from_mins(1);
const STOCK_LIMIT: Duration = Duration::from_mins(1);
const DRAIN_LIMIT: Duration = Duration::from_mins(3);

/// How many messages there are to begin with.
const STOCK: usize = 100_000;

/// When a life ends.
struct Step {
    /// Since it was open, or since it was started.
    is_open: bool,
    after: Duration,
    seed: u64,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = if self.is_open { "open" } else { "started" };
        write!(f, "kill -9 {:?} after it is {since}", self.after)
    }
}

fn plan(dice: &mut impl Rng, steps: usize) -> Vec<Step> {
    (0..steps)
        .map(|_| {
            // Some of them while it is still opening.
            let is_open = dice.random_bool(0.8);
            let latest = if is_open { 2500 } else { 150 };
            Step {
                is_open,
                after: Duration::from_millis(dice.random_range(0..latest)),
                seed: dice.random(),
            }
        })
        .collect()
}

/// Where lives take place.
pub(super) struct Stage<'a> {
    pub(super) directory: &'a Path,
    pub(super) story: &'a Path,
    pub(super) stock: usize,
}

impl Stage<'_> {
    pub(super) fn begin(
        &self,
        mut command: Command,
        task: Task,
        owner: u64,
        seed: u64,
    ) -> Result<Life> {
        let (directory, story) = (self.directory.to_owned(), self.story.to_owned());
        command.args(child::arguments(
            task, directory, story, owner, seed, self.stock,
        ));
        Life::begin(&mut command, owner)
    }

    /// Lets a life deliver all that is left, and come to its end.
    pub(super) fn drain(&self, command: Command, owner: u64) -> Result<()> {
        let mut life = self.begin(command, Task::Drain, owner, 0)?;
        life.hear(child::DONE, DRAIN_LIMIT)?;
        let status = life.end(DRAIN_LIMIT)?;
        ensure!(status.success(), "the last life ended with {status}");
        Ok(())
    }
}

/// Runs it.
///
/// # Errors
///
/// If processes cannot be started or killed, or the last life does not come to its end.
pub fn run(run: &mut Run) -> Result<Verdict> {
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    let (directory, file) = (folder.path().join("delays"), folder.path().join("story"));
    // Only to note the kills: what happened is in the story.
    let history = History::append_to(folder.path().join("history"))?;
    let stage = Stage {
        directory: &directory,
        story: &file,
        stock: STOCK,
    };
    let kills = if run.is_full() { 100 } else { 6 };
    let plan = plan(run.dice(), kills);
    run.announce(&plan);

    let mut slowest = 0;
    for (owner, step) in (1..).zip(&plan) {
        let task = if owner == 1 { Task::Stock } else { Task::Live };
        let mut life = stage.begin(Command::new(program()?), task, owner, step.seed)?;
        if step.is_open || owner == 1 {
            let took = life.hear(child::READY, OPEN_LIMIT)?;
            slowest = slowest.max(took.parse()?);
        }
        if owner == 1 {
            life.hear(child::STOCKED, STOCK_LIMIT)?;
        }
        thread::sleep(step.after);
        life.kill(&history)?;
        run.note(format_args!("life {owner}: {step}"));
    }
    let last = plan.len() as u64 + 1;
    let mut life = stage.begin(Command::new(program()?), Task::Live, last, 0)?;
    life.hear(child::READY, OPEN_LIMIT)?;
    life.kill(&history)?;
    stage.drain(Command::new(program()?), last + 1)?;
    Ok(story::judge(&file, &[])?.count("slowest open in ms", slowest))
}
