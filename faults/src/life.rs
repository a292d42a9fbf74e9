//! One life of a process that is broken: this program once more, as a child.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use anyhow::{Context, Result, bail, ensure};
use laneway::testing::history::History;
use rustix::process::{Pid, Signal, kill_process};

use crate::shell::wait_until;

const STOP_LIMIT: Duration = Duration::from_secs(20);

/// What a life tells when there is less to do than ever before.
pub(crate) const MOVES: &str = "moves";

/// This program, to be started as a child.
pub(crate) fn program() -> Result<std::path::PathBuf> {
    env::current_exe().context("cannot find this program")
}

/// The clock of histories: nanoseconds since 1970, whatever the clock of this process was [set to](crate::file::life).
pub(crate) fn now() -> u64 {
    // IMPORTANT: asked of the kernel, past the library that moves the clock.
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let seconds = Duration::from_secs(time.tv_sec.unsigned_abs());
    let since = seconds + Duration::from_nanos(time.tv_nsec.unsigned_abs());
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// A process that lives. Dropped, it is killed.
pub(crate) struct Life {
    owner: u64,
    process: Child,
    lines: Receiver<String>,
}

impl Life {
    /// Starts a life, which the history knows by its number.
    pub(crate) fn begin(command: &mut Command, owner: u64) -> Result<Self> {
        let mut process = command
            .stdin(Stdio::piped())
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
        Ok(Self {
            owner,
            process,
            lines,
        })
    }

    /// Its number in the history.
    pub(crate) fn owner(&self) -> u64 {
        self.owner
    }

    /// Tells it something on its standard input.
    pub(crate) fn tell(&mut self, line: &str) -> Result<()> {
        let input = self.process.stdin.as_mut().context("the input was piped")?;
        writeln!(input, "{line}")?;
        Ok(input.flush()?)
    }

    /// The next line that it tells; `None` if it has ended, or tells nothing in time.
    pub(crate) fn next_line(&mut self, limit: Duration) -> Option<String> {
        self.lines.recv_timeout(limit).ok()
    }

    /// Waits for a line that begins with a word, and answers the rest of it. What else is told
    /// meanwhile is passed over.
    pub(crate) fn hear(&mut self, word: &str, limit: Duration) -> Result<String> {
        self.hear_unless(word, limit, None)
    }

    /// The same, with a limit that begins anew whenever it tells that something [moves](MOVES): on a machine that is busy
    /// all may take long, and nothing is stuck.
    pub(crate) fn hear_while_moving(&mut self, word: &str, limit: Duration) -> Result<String> {
        self.hear_unless(word, limit, Some(MOVES))
    }

    fn hear_unless(&mut self, word: &str, limit: Duration, moves: Option<&str>) -> Result<String> {
        let mut deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    if let Some(rest) = line.strip_prefix(word) {
                        return Ok(rest.trim().to_owned());
                    }
                    if moves == Some(line.trim()) {
                        deadline = Instant::now() + limit;
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
    pub(crate) fn heard(&mut self, word: &str) -> Option<String> {
        self.hear(word, Duration::ZERO).ok()
    }

    /// Stops it in the middle of whatever it does. One that has ended already stays so.
    pub(crate) fn stop(&mut self) -> Result<()> {
        if self.process.try_wait()?.is_some() {
            return Ok(());
        }
        kill_process(self.pid()?, Signal::STOP)?;
        let stopped = || is_stopped(self.process.id()).then_some(anyhow::Ok(()));
        ensure!(
            wait_until(STOP_LIMIT, stopped)?.is_some(),
            "it cannot be stopped"
        );
        Ok(())
    }

    /// Lets it go on after a stop.
    pub(crate) fn wake(&mut self) -> Result<()> {
        ensure!(
            self.process.try_wait()?.is_none(),
            "it ended while it was stopped"
        );
        Ok(kill_process(self.pid()?, Signal::CONT)?)
    }

    /// Stops it in the middle of whatever it does, notes that, and kills it.
    pub(crate) fn kill(&mut self, history: &History) -> Result<()> {
        self.stop()?;
        // Only now: it can do nothing more.
        history.crashed(self.owner);
        if self.process.try_wait()?.is_none() {
            self.process.kill()?;
        }
        self.process.wait()?;
        Ok(())
    }

    /// Kills it, for those who write no history.
    pub(crate) fn finish(&mut self) -> Result<()> {
        if self.process.try_wait()?.is_none() {
            self.process.kill()?;
        }
        self.process.wait()?;
        Ok(())
    }

    /// Closes its standard input, which tells it to come to an end, if it listens.
    pub(crate) fn dismiss(&mut self) {
        drop(self.process.stdin.take());
    }

    /// Waits for its own end.
    pub(crate) fn end(&mut self, limit: Duration) -> Result<ExitStatus> {
        let ended = wait_until(limit, || self.process.try_wait().transpose())?;
        ended.with_context(|| format!("it did not end within {limit:?}"))
    }

    /// The most memory that it had so far, in bytes.
    pub(crate) fn peak_memory(&self) -> Result<u64> {
        let file = format!("/proc/{}/status", self.process.id());
        let status = fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        Ok(kib.with_context(|| format!("{file} tells of no memory"))? << 10)
    }

    fn pid(&self) -> Result<Pid> {
        let pid = i32::try_from(self.process.id())
            .ok()
            .and_then(Pid::from_raw);
        pid.context("a process id is above zero")
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
