//! One process of a cluster.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::clock::WallClock;
use crate::shell::wait_until;

const READY_LIMIT: Duration = Duration::from_mins(2);
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// `--shutdown-timeout` is 10 s, and a machine may be busy.
const STOP_LIMIT: Duration = Duration::from_mins(1);

/// A process, or one that is to be started again. Dropped, it is killed.
#[derive(Debug)]
pub struct Member {
    /// What people call it.
    pub name: String,
    /// Where it answers over HTTP.
    pub port: u16,
    folder: PathBuf,
    program: PathBuf,
    arguments: Vec<String>,
    process: Option<Child>,
    clock: Option<WallClock>,
}

impl Member {
    /// One that is to be started, with this program, in a folder of its own, on this port. Arguments are those of `laneway serve`
    /// but for its name and where it listens.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn new(
        program: PathBuf,
        folder: PathBuf,
        name: String,
        port: u16,
        arguments: Vec<String>,
    ) -> Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self {
            name,
            port,
            folder,
            program,
            arguments,
            process: None,
            clock: None,
        })
    }

    /// Gives it a clock that can be set, from its next start on.
    ///
    /// # Errors
    /// If there is no C compiler.
    pub(super) fn have_a_clock(&mut self) -> Result<()> {
        self.clock = Some(WallClock::new(&self.folder)?);
        Ok(())
    }

    /// Sets its clock ahead by so many seconds, or back. One without a clock that can be set keeps its own.
    pub(super) fn set_clock(&self, seconds: i64) -> Result<()> {
        self.clock
            .as_ref()
            .map_or(Ok(()), |clock| clock.set(seconds))
    }

    /// The id of the process that runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Starts it, and does not wait.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(&mut self) -> Result<()> {
        let mut log = File::options()
            .create(true)
            .append(true)
            .open(self.folder.join("log"))?;
        writeln!(log, "--- started at {}", super::ledger::now())?;
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LANEWAY_") {
                command.env_remove(name);
            }
        }
        if let Some(clock) = &self.clock {
            clock.give_to(&mut command);
        }
        let listen = format!("127.0.0.1:{}", self.port);
        let process = command
            .current_dir(&self.folder)
            .args(["serve", "--name", &self.name, "--listen", &listen])
            .args(["--data-dir", "data"])
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", self.name))?;
        self.process = Some(process);
        Ok(())
    }

    /// Waits until it is ready for work.
    ///
    /// # Errors
    /// If it ends, or takes minutes.
    pub fn wait_ready(&mut self) -> Result<()> {
        let ready = wait_until(READY_LIMIT, || {
            if self.has_ended() {
                return Some(Err(anyhow::anyhow!("it has ended")));
            }
            is_ready(self.port).then_some(Ok(()))
        });
        let ready = ready.and_then(|ready| ready.context("it is not ready in time"));
        ready.with_context(|| format!("{}; its log ends with:\n{}", self.name, self.last_words()))
    }

    /// Whether it has ended although it was not told to.
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        let process = self.process.as_mut();
        process.is_some_and(|process| !matches!(process.try_wait(), Ok(None)))
    }

    /// Kills it with signal 9.
    ///
    /// # Errors
    /// If it cannot be killed.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.kill()?;
            process.wait()?;
        }
        Ok(())
    }

    /// Tells it to stop, and waits until it has. Whether it said that all is well.
    ///
    /// # Errors
    /// If it does not run.
    pub fn stop(&mut self) -> Result<bool> {
        self.signal(Signal::TERM)?;
        let mut process = self.process.take().context("it runs")?;
        let ended = wait_until(STOP_LIMIT, || process.try_wait().transpose())?;
        if ended.is_none() {
            process.kill()?;
            process.wait()?;
        }
        Ok(ended.is_some_and(|status| status.success()))
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        let process = self.process.as_ref().context("it does not run")?;
        let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.context("a process id")?, signal)?)
    }

    /// Removes what a center keeps on disk. It must not run.
    ///
    /// # Errors
    /// If it runs, or its views cannot be removed.
    pub fn lose_views(&self) -> Result<()> {
        ensure!(self.process.is_none(), "{} runs", self.name);
        let views = self.folder.join("data").join("views");
        match fs::remove_dir_all(&views) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            other => other.with_context(|| format!("cannot remove {}", views.display())),
        }
    }

    /// The end of its log.
    #[must_use]
    pub fn last_words(&self) -> String {
        let log = fs::read(self.folder.join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).into_owned();
        let from = log.len().saturating_sub(2_000);
        let from = (from..log.len()).find(|at| log.is_char_boundary(*at));
        log[from.unwrap_or(log.len())..].to_owned()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

fn is_ready(port: u16) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream
            .write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 "))
}
