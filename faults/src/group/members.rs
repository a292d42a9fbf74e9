//! Members join and leave a group all the time, one in ten attempts fails, and one in a hundred
//! panics.
//!
//! What must hold: everything that was acknowledged is handled in the end, in order per key; and since
//! nobody crashes, nothing that was handled is handled again.

use std::fmt;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rand::{Rng, RngExt};

use super::Broker;
use super::child::Task;
use super::stage::Stage;
use super::story::RUN_AGAIN;
use crate::frame::Run;
use crate::verdict::Verdict;

const MOST: usize = 4;

#[derive(Clone, Copy)]
enum Step {
    Join,
    /// The one at this place leaves.
    Leave(usize),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Join => f.write_str("one joins"),
            Self::Leave(place) => write!(f, "number {} of those there leaves", place + 1),
        }
    }
}

/// Between one and [`MOST`] of them, beginning with two.
fn plan(dice: &mut impl Rng, steps: usize) -> Vec<Step> {
    let mut there = 2;
    (0..steps)
        .map(|_| {
            if there == 1 || there < MOST && dice.random() {
                there += 1;
                Step::Join
            } else {
                there -= 1;
                Step::Leave(dice.random_range(0..=there))
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
    let (steps, every) = if run.is_full() {
        (30, 2_000)
    } else {
        (5, 1_200)
    };
    let plan = plan(run.dice(), steps);
    run.announce(&plan);
    let servers = [B::alone(folder.path())?];
    let mut stage = Stage::new::<B>(folder.path(), &servers, "")?;
    let mut members = vec![
        stage.begin_ready(Task::Struggle, 0)?,
        stage.begin_ready(Task::Struggle, 0)?,
    ];
    let publisher = stage.begin_ready(Task::Publish, run.dice().random())?;

    let mut leaving = Vec::new();
    for step in &plan {
        thread::sleep(Duration::from_millis(every));
        match step {
            Step::Join => members.push(stage.begin(Task::Struggle, 0)?),
            Step::Leave(place) => {
                let mut member = members.remove(*place);
                member.dismiss();
                leaving.push(member);
            }
        }
        run.note(format_args!("{step}: {} are there", members.len()));
    }
    for member in leaving {
        Stage::leave(member)?;
    }
    let story = stage.end(publisher, members)?;
    Ok(story
        .judge()
        .require(RUN_AGAIN, 0)
        .count("joined or left", plan.len() as u64))
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn somebody_is_always_there() {
        let mut there = 2_usize;
        for step in plan(&mut StdRng::seed_from_u64(7), 1000) {
            match step {
                Step::Join => there += 1,
                Step::Leave(place) => {
                    assert!(place < there);
                    there -= 1;
                }
            }
            assert!((1..=MOST).contains(&there));
        }
    }
}
