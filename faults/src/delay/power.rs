//! The power of delayed messages on disk is cut, again and again.
//!
//! What must hold is what must hold after [`kill`](super::kill). Needs root, loop devices, ext4 and Python.
//! Where they are not to be had it is skipped, and says so.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use laneway::testing::history::History;
use rand::RngExt;

use super::child::{self, Task};
use super::kill::Stage;
use super::story;
use crate::file::mount::{Disk, Namespace};
use crate::file::power::skipped;
use crate::frame::Run;
use crate::life::{now, program};
use crate::verdict::Verdict;

/// Its name on the command line.
pub const NAME: &str = "delay-power";
/// What it breaks.
pub const ABOUT: &str =
    "power cuts under delayed messages on disk: none lost, none early, none after a withdraw";

const OPEN_LIMIT: Duration = Duration::from_mins(1);

/// How many messages there are to begin with.
const STOCK: usize = 20_000;

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
    let directory = disk.path().join("delays");
    let file = folder.path().join("story");
    let history = History::append_to(folder.path().join("history"))?;
    let stage = Stage {
        directory: &directory,
        story: &file,
        stock: STOCK,
    };
    let times = if run.is_full() { 60 } else { 4 };
    let mut cuts = Vec::new();
    for owner in 1..=times {
        let after = Duration::from_millis(run.dice().random_range(100..2500));
        let seed = run.dice().random();
        disk.mount()?;
        let task = if owner == 1 { Task::Stock } else { Task::Live };
        let mut life = stage.begin(namespace.command(program()?), task, owner, seed)?;
        let opened: u64 = life.hear(child::READY, OPEN_LIMIT)?.parse()?;
        if owner == 1 {
            life.hear(child::STOCKED, OPEN_LIMIT)?;
        }
        thread::sleep(after);
        let cut = disk.cut_power()?;
        life.kill(&history)?;
        cuts.push((cut, now()));
        disk.unmount()?;
        run.note(format_args!(
            "life {owner} opened in {opened} ms, and lost its power {after:?} later"
        ));
    }
    disk.mount()?;
    stage.drain(namespace.command(program()?), times + 1)?;
    story::judge(&file, &cuts)
}
