//! The power of a bus on disk is cut, again and again, while it publishes and handles.
//!
//! What must hold: the store opens again each time, everything that was acknowledged is there and
//! is handled in the end, in order per key. A position may be lost with the power, so anything may
//! run again that was handled before.
//!
//! Needs root, loop devices, ext4 and Python. Where they are not to be had it is skipped, and says
//! so.

use std::fmt;
use std::ops::Range;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use laneway::testing::history::{Event, History, Record};
use rand::{Rng, RngExt};

use super::child::{self, Task};
use super::mount::{Disk, Namespace};
use super::stage::Stage;
use super::{judge, read};
use crate::frame::Run;
use crate::life::now;
use crate::verdict::Verdict;

/// Its name on the command line.
pub const NAME: &str = "power";
/// What it breaks.
pub const ABOUT: &str = "power cuts under a bus on disk: it opens again, nothing lost, order kept";

const OPEN_LIMIT: Duration = Duration::from_mins(1);
const DRAIN_LIMIT: Duration = Duration::from_mins(3);

struct Step {
    after: Duration,
    seed: u64,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cut the power after {:?}", self.after)
    }
}

fn plan(dice: &mut impl Rng, steps: usize) -> Vec<Step> {
    (0..steps)
        .map(|_| Step {
            after: Duration::from_millis(dice.random_range(100..2000)),
            seed: dice.random(),
        })
        .collect()
}

/// Runs it.
///
/// # Errors
///
/// If file systems or processes cannot be handled as planned.
pub fn run(run: &mut Run) -> Result<Verdict> {
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(error) => return Ok(skipped(run, &error)),
    };
    let disk = match Disk::new(&namespace, folder.path(), 1536) {
        Ok(disk) => disk,
        Err(error) => return Ok(skipped(run, &error)),
    };
    let directory = disk.path().join("bus");
    let file = folder.path().join("history");
    let history = History::append_to(&file)?;
    let stage = Stage {
        directory: &directory,
        history: &file,
        namespace: Some(&namespace),
    };
    let times = if run.is_full() { 120 } else { 5 };
    let plan = plan(run.dice(), times);
    run.announce(&plan);

    let mut slowest = 0;
    let mut cuts = Vec::new();
    for (owner, step) in (1..).zip(&plan) {
        disk.mount()?;
        let mut life = stage.begin(Task::Unsettled, owner, step.seed)?;
        let opened: u64 = life.hear(child::READY, OPEN_LIMIT)?.parse()?;
        slowest = slowest.max(opened);
        thread::sleep(step.after);
        let cut = disk.cut_power()?;
        life.kill(&history)?;
        cuts.push(cut.began..now());
        disk.unmount()?;
        run.note(format_args!(
            "life {owner} opened in {opened} ms, and lost its power {:?} later",
            step.after
        ));
    }
    disk.mount()?;
    stage.drain(plan.len() as u64 + 1, DRAIN_LIMIT)?;
    let mut records = read(&file)?;
    let before = records.len();
    records.retain(|record| !is_told_by_the_dead(record, &cuts));
    let dropped = before - records.len();
    Ok(judge(records)
        .count("told after the cut, not counted", dropped as u64)
        .count("slowest open in ms", slowest))
}

/// Whether something was acknowledged, or handled, between a cut and the end of the process, which a
/// machine without power cannot do. Such acknowledgements were seen for events that were gone later:
/// it seems that a sync which is on its way at that instant may still answer that all is well. What
/// was acknowledged before the cut began counts.
///
/// That this leaves enough to judge was tried with a store that does not sync: it fails.
fn is_told_by_the_dead(record: &Record, cuts: &[Range<u64>]) -> bool {
    let is_of_the_test = matches!(record.event, Event::Submitted(_) | Event::Crashed { .. });
    !is_of_the_test && cuts.iter().any(|cut| cut.contains(&record.at))
}

/// A verdict that says loudly that there is none.
pub(crate) fn skipped(run: &mut Run, error: &anyhow::Error) -> Verdict {
    let reason = format!("SKIPPED, nothing was broken: this machine does not allow it ({error:#})");
    run.note(&reason);
    Verdict::new().count("skipped", 1).detail(reason)
}
