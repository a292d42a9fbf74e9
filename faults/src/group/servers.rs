//! A server is killed with signal 9 and started again, while events are published and handled.
//!
//! What must hold: everything that was acknowledged is handled in the end, in order per key, and
//! handling goes on within five seconds of the server being back.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand::{Rng, RngExt};

use super::Broker;
use super::child::Task;
use super::stage::Stage;
use crate::frame::Run;
use crate::life::now;
use crate::verdict::Verdict;

const RESUMED_WITHIN: Duration = Duration::from_secs(5);

/// When the server is killed, and for how long it is away.
struct Step {
    after: Duration,
    away: Duration,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { after, away } = self;
        write!(f, "kill -9 after {after:?}, start again {away:?} later")
    }
}

fn plan(dice: &mut impl Rng, is_full: bool) -> Vec<Step> {
    let (kills, every, away) = if is_full {
        (6, 8_000..10_000, 0..3_000)
    } else {
        (2, 1_500..2_500, 0..500)
    };
    (0..kills)
        .map(|_| Step {
            after: Duration::from_millis(dice.random_range(every.clone())),
            away: Duration::from_millis(dice.random_range(away.clone())),
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
    let mut servers = [B::alone(folder.path())?];
    let mut stage = Stage::new::<B>(folder.path(), &servers, "")?;
    let members = vec![
        stage.begin_ready(Task::Handle, 0)?,
        stage.begin_ready(Task::Handle, 0)?,
    ];
    let publisher = stage.begin_ready(Task::Publish, run.dice().random())?;

    let mut back = Vec::new();
    let [server] = &mut servers;
    for step in &plan {
        thread::sleep(step.after);
        server.kill()?;
        thread::sleep(step.away);
        let began = Instant::now();
        server.start()?;
        back.push(now());
        run.note(format_args!(
            "killed it; it was back {:?} after its start",
            began.elapsed()
        ));
    }
    thread::sleep(Duration::from_secs(2));
    let story = stage.end(publisher, members)?;

    let resumed: Vec<_> = back
        .iter()
        .filter_map(|at| story.resumed_after(*at))
        .collect();
    let slowest = resumed.iter().max().copied().unwrap_or_default();
    let in_time = resumed
        .iter()
        .filter(|took| **took <= RESUMED_WITHIN)
        .count();
    let all = plan.len() as u64;
    Ok(story
        .judge()
        .must_be("on again", resumed.len() as u64, all)
        .in_time("on again within 5 s", in_time as u64, all, is_full)
        .count("slowest to go on, in ms", millis(slowest)))
}

/// For the table.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
