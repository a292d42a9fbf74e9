//! The disk of a bus fills up, and fails.
//!
//! - **Full**: a neighbour takes all room, again and again, while events are published. They are
//!   refused; when there is room again publishing goes on by itself, in the same process. Everything
//!   that was acknowledged is there.
//! - **Failing**: the disk below stops taking writes. After the first failed publish not one more is
//!   acknowledged, and the health says so. When the disk is repaired, everything that was
//!   acknowledged is there.
//!
//! Needs root, loop devices and ext4. Where they are not to be had it is skipped, and says so.

use std::ffi::OsStr;
use std::fmt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use laneway::testing::history::History;
use rand::{Rng, RngExt};

use super::child::{self, Task};
use super::mount::{Disk, Namespace};
use super::power::skipped;
use super::stage::Stage;
use super::{judge, read};
use crate::frame::Run;
use crate::verdict::Verdict;

/// Its name on the command line.
pub const NAME: &str = "disk";
/// What it breaks.
pub const ABOUT: &str = "a full disk and a failing disk below a bus: told, survived, nothing lost";

const OPEN_LIMIT: Duration = Duration::from_mins(1);
/// Until a full disk is told, or found to have room again.
const LIMIT: Duration = Duration::from_mins(1);
const DRAIN_LIMIT: Duration = Duration::from_mins(5);

/// Takes all room of a file system for a file: most of it at once, then byte by byte what others
/// leave, until there is none.
const TAKE_ALL: &str = r#"
free=$(df --output=avail -B1 "$(dirname "$0")" | tail -1)
fallocate -l "$free" "$0" 2>/dev/null
head -c 4G /dev/zero >> "$0" 2>/dev/null
true"#;

/// When a neighbour takes all room, and for how long.
struct Step {
    after: Duration,
    held: Duration,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "fill the disk after {:?} for {:?}",
            self.after, self.held
        )
    }
}

fn plan(dice: &mut impl Rng, steps: usize) -> Vec<Step> {
    (0..steps)
        .map(|_| Step {
            after: Duration::from_millis(dice.random_range(100..1500)),
            held: Duration::from_millis(dice.random_range(500..3000)),
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
    let times = if run.is_full() { 12 } else { 1 };
    let plan = plan(run.dice(), times);
    run.announce(&plan);
    let verdict = match Disk::new(&namespace, folder.path(), 2048) {
        Ok(disk) => full(run, &namespace, &disk, folder.path(), &plan)?,
        Err(error) => return Ok(skipped(run, &error)),
    };
    failing(run, &namespace, folder.path(), verdict)
}

fn full(
    run: &mut Run,
    namespace: &Namespace,
    disk: &Disk<'_>,
    folder: &Path,
    plan: &[Step],
) -> Result<Verdict> {
    disk.mount()?;
    let (directory, file) = (disk.path().join("bus"), folder.join("history-full"));
    let history = History::append_to(&file)?;
    let stage = Stage {
        directory: &directory,
        history: &file,
        namespace: Some(namespace),
    };
    let ballast = disk.path().join("ballast");
    let mut life = stage.begin(Task::Fill, 1, 0)?;
    life.hear(child::READY, OPEN_LIMIT)?;
    let mut recovered = 0;
    for step in plan {
        thread::sleep(step.after);
        let mut take_all = namespace.command("sh");
        take_all.args(["-c", TAKE_ALL]).arg(&ballast);
        crate::shell::run(&mut take_all, LIMIT)?;
        let refused = life.hear(child::REFUSED, LIMIT)?;
        run.note(format_args!("the disk is full; refused at event {refused}"));
        thread::sleep(step.held);
        namespace.run("rm", &[OsStr::new("-f"), ballast.as_os_str()])?;
        let again = life.hear(child::AGAIN, LIMIT)?;
        run.note(format_args!("there is room; event {again} is taken"));
        recovered += 1;
    }
    life.kill(&history)?;
    stage.drain(2, DRAIN_LIMIT)?;
    let verdict =
        judge(read(&file)?).must_be("recovered from a full disk", recovered, plan.len() as u64);
    Ok(verdict)
}

fn failing(
    run: &mut Run,
    namespace: &Namespace,
    folder: &Path,
    verdict: Verdict,
) -> Result<Verdict> {
    // The disk's image lies on a file system that runs full: writes to the disk fail.
    let small = folder.join("small");
    namespace.run("mkdir", &[small.as_os_str()])?;
    let options = ["-t", "tmpfs", "-o", "size=96M", "tmpfs"].map(OsStr::new);
    namespace.run("mount", &[&options[..], &[small.as_os_str()]].concat())?;
    let disk = Disk::new(namespace, &small, 1024)?;
    disk.mount()?;
    let (directory, file) = (disk.path().join("bus"), folder.join("history-failing"));
    let history = History::append_to(&file)?;
    let stage = Stage {
        directory: &directory,
        history: &file,
        namespace: Some(namespace),
    };
    let mut life = stage.begin(Task::Break, 1, 0)?;
    life.hear(child::READY, OPEN_LIMIT)?;
    let refused = life.hear(child::REFUSED, LIMIT)?;
    run.note(format_args!("the disk failed: {refused}"));
    let acked: u64 = life.hear(child::DONE, LIMIT)?.parse()?;
    life.kill(&history)?;
    disk.unmount()?;

    // As if the disk had been replaced.
    let options = ["-o", "remount,size=1500M"].map(OsStr::new);
    namespace.run("mount", &[&options[..], &[small.as_os_str()]].concat())?;
    disk.repair()?;
    disk.mount()?;
    stage.drain(2, DRAIN_LIMIT)?;
    let verdict = verdict.and("failing disk", judge(read(&file)?));
    Ok(verdict.must_be("acknowledged after a failed sync", acked, 0))
}
