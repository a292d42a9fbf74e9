//! One life of the process that is broken.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use anyhow::{Context, Result, bail, ensure};
use laneway::testing::history::History;
use rustix::process::{Pid, Signal, kill_process};

use super::child::{self, Task};
use super::mount::Namespace;
use crate::shell::wait_until;

const STOP_LIMIT: Duration = Duration::from_secs(20);

/// Where the lives of a process take place.
pub(super) struct Stage<'a> {
    /// Of the bus.
    pub(super) directory: &'a Path,
    /// What happened in all lives.
    pub(super) history: &'a Path,
    /// Where the file system of the directory is mounted.
    pub(super) namespace: Option<&'a Namespace>,
}

/// A process that lives. Dropped, it is killed.
pub(super) struct Life {
    owner: u64,
    process: Child,
    lines: Receiver<String>,
}

impl Stage<'_> {
    /// Starts a life.
    pub(super) fn begin(&self, task: Task, owner: u64, seed: u64) -> Result<Life> {
        let program = env::current_exe().context("cannot find this program")?;
        let mut command = match self.namespace {
            Some(namespace) => namespace.command(program),
            None => Command::new(program),
        };
        let (directory, history) = (self.directory.to_owned(), self.history.to_owned());
        let mut process = command
            .args(child::arguments(task, directory, history, owner, seed))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the child")?;
        let stdout = process.stdout.take().context("the output was piped")?;
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Life {
            owner,
            process,
            lines,
        })
    }

    /// Lets a life handle all that is left, and come to its end.
    pub(super) fn drain(&self, owner: u64, limit: Duration) -> Result<()> {
        let mut life = self.begin(Task::Drain, owner, 0)?;
        life.hear(child::DONE, limit)?;
        let status = life.end(limit)?;
        ensure!(status.success(), "the last life ended with {status}");
        Ok(())
    }
}

impl Life {
    /// Waits for a line that begins with a word, and answers the rest of it. What else is told
    /// meanwhile is passed over.
    pub(super) fn hear(&mut self, word: &str, limit: Duration) -> Result<String> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    if let Some(rest) = line.strip_prefix(word) {
                        return Ok(rest.trim().to_owned());
                    }
                }
                Err(RecvTimeoutError::Timeout) => bail!("no {word:?} within {limit:?}"),
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("it ended before it said {word:?}; its last words are above")
                }
            }
        }
    }

    /// The rest of a line that begins with a word, if one was told already.
    pub(super) fn heard(&mut self, word: &str) -> Option<String> {
        self.hear(word, Duration::ZERO).ok()
    }

    /// Stops it in the middle of whatever it does, notes that, and kills it.
    pub(super) fn kill(&mut self, history: &History) -> Result<()> {
        let pid = i32::try_from(self.process.id())
            .ok()
            .and_then(Pid::from_raw);
        let pid = pid.context("a process id is above zero")?;
        if self.process.try_wait()?.is_none() {
            kill_process(pid, Signal::STOP)?;
            let stopped = || is_stopped(self.process.id()).then_some(anyhow::Ok(()));
            ensure!(
                wait_until(STOP_LIMIT, stopped)?.is_some(),
                "it cannot be stopped"
            );
            // Only now: it can do nothing more.
            history.crashed(self.owner);
            self.process.kill()?;
        } else {
            history.crashed(self.owner);
        }
        self.process.wait()?;
        Ok(())
    }

    /// Waits for its own end.
    pub(super) fn end(&mut self, limit: Duration) -> Result<ExitStatus> {
        let ended = wait_until(limit, || self.process.try_wait().transpose())?;
        ended.with_context(|| format!("it did not end within {limit:?}"))
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        // One that has ended already cannot be killed, and need not be.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether no thread of a process can go on by itself. One that waits for the disk stops when that
/// answers, before it does anything else.
fn is_stopped(process: u32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else {
        return true;
    };
    tasks.flatten().all(|task| {
        // The state follows the name, which is in parentheses and may contain some itself.
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_none_or(|(_, rest)| rest.starts_with(['T', 't', 'D', 'Z', 'X']))
    })
}
