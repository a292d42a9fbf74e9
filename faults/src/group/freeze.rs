//! A member is frozen for longer than its lease, another one takes over, and it wakes up.
//!
//! What must hold: it is taken over from while it is frozen; it starts nothing that is not its own any
//! more when it wakes up, and nothing that it commits counts: nothing acknowledged is lost, nothing
//! that is settled runs again, and order holds.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand::{Rng, RngExt};

use super::Broker;
use super::child::{OWNS, Task};
use super::servers::millis;
use super::stage::Stage;
use crate::frame::Run;
use crate::life::now;
use crate::verdict::Verdict;

/// A member that is there has its share by then.
const SHARE_WITHIN: Duration = Duration::from_mins(2);

/// What a frozen member has is taken over after a lease, or later on a machine that is busy. How much later is counted.
const TAKEN_WITHIN: Duration = Duration::from_mins(2);
const GLANCE: Duration = Duration::from_millis(250);

struct Step {
    after: Duration,
    victim: usize,
    frozen: Duration,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            after,
            victim,
            frozen,
        } = self;
        write!(
            f,
            "freeze member {} {after:?} after it has a share, for {frozen:?}",
            victim + 1
        )
    }
}

/// A member is taken for dead a lease and a tenth after the last sign of its life; the rest is for a
/// machine that is busy.
fn plan(dice: &mut impl Rng, steps: usize, lease: u64) -> Vec<Step> {
    (0..steps)
        .map(|_| Step {
            after: Duration::from_millis(dice.random_range(lease..2 * lease)),
            victim: dice.random_range(0..2),
            frozen: Duration::from_millis(dice.random_range(2 * lease..3 * lease)),
        })
        .collect()
}

/// Runs it.
///
/// Waits until others have taken over what a frozen member had. If they do not, the verdict says so.
fn wait_for_takeover(stage: &Stage, owner: u64, frozen: u64) {
    let until = Instant::now() + TAKEN_WITHIN;
    // A story in the middle of which something is being written cannot be read, and is read again.
    let is_taken = || {
        let story = stage.story();
        story.is_ok_and(|story| story.taken_over(owner, frozen, now()).is_some())
    };
    while !is_taken() && Instant::now() < until {
        thread::sleep(GLANCE);
    }
}

/// # Errors
///
/// If servers or processes cannot be handled as planned.
pub fn run<B: Broker>(run: &mut Run) -> Result<Verdict> {
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    let (freezes, lease) = if run.is_full() {
        (15, 3_000)
    } else {
        (2, 1_000)
    };
    let lease = B::LEAST_SILENCE.max(lease);
    let plan = plan(run.dice(), freezes, lease);
    run.announce(&plan);
    let servers = [B::alone(folder.path())?];
    let mut stage = Stage::new::<B>(folder.path(), &servers, &B::silence(lease))?;
    let mut members = vec![
        stage.begin_ready(Task::Handle, 0)?,
        stage.begin_ready(Task::Handle, 0)?,
    ];
    let publisher = stage.begin_ready(Task::Publish, run.dice().random())?;

    let mut freezes = Vec::new();
    for step in &plan {
        let member = &mut members[step.victim];
        // From one that has nothing, because it was frozen a moment ago, nothing can be taken over.
        member.hear(OWNS, SHARE_WITHIN)?;
        thread::sleep(step.after);
        member.stop()?;
        let frozen = now();
        thread::sleep(step.frozen);
        wait_for_takeover(&stage, member.owner(), frozen);
        // What it owned is over; what it says next is about what it gets back.
        while member.heard(OWNS).is_some() {}
        stage.history().crashed(member.owner());
        freezes.push((member.owner(), frozen, now()));
        member.wake()?;
        run.note(format_args!(
            "member {} slept for {:?}",
            step.victim + 1,
            step.frozen
        ));
    }
    thread::sleep(Duration::from_millis(lease));
    let story = stage.end(publisher, members)?;

    let taken: Vec<_> = freezes
        .iter()
        .filter_map(|(owner, from, until)| story.taken_over(*owner, *from, *until))
        .collect();
    let slowest = taken.iter().max().copied().unwrap_or_default();
    let limit = Duration::from_millis(lease) + Duration::from_secs(2);
    let in_time = taken.iter().filter(|took| **took <= limit).count();
    let all = plan.len() as u64;
    Ok(story
        .judge()
        .must_be("taken over while frozen", taken.len() as u64, all)
        .in_time(
            "taken over within the lease and 2 s",
            in_time as u64,
            all,
            run.is_full(),
        )
        .count("slowest takeover of all keys, in ms", millis(slowest)))
}
