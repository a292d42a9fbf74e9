//! Processes that outlive this program, and how to find and stop exactly those again.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::deadline::Deadline;

/// A process, told apart from a later one with the same number by the time it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Clock ticks since boot, as the kernel gives it.
    started: u64,
}

impl Process {
    /// This program.
    pub(crate) fn current() -> anyhow::Result<Self> {
        Self::with_id(std::process::id())
            .context("cannot find this process in /proc; services are managed on Linux only")
    }

    pub(crate) fn with_id(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let started = start_time(&stat)?;
        Some(Self { pid, started })
    }

    pub(crate) fn is_alive(self) -> bool {
        Self::with_id(self.pid) == Some(self)
    }

    /// Starts a server in a process group of its own, so that Ctrl-C in the terminal does not reach
    /// it, with its output in `log`.
    pub(crate) fn spawn(command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let output =
            File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let process = Self::with_id(child.id());
        // Collects the exit code, so that a server that dies does not linger as a zombie for as
        // long as we live.
        thread::spawn(move || child.wait());
        process.context("the process ended at once")
    }

    /// Asks it to end.
    pub(crate) fn terminate(self) {
        self.signal(Signal::TERM);
    }

    /// Waits for its end; false if it did not come.
    pub(crate) fn ends_within(self, patience: Duration) -> bool {
        Deadline::after(patience)
            .poll(|| (!self.is_alive()).then_some(()))
            .is_some()
    }

    fn signal(self, signal: Signal) {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid.filter(|_| self.is_alive()) {
            // It may have ended in between, which is what we want.
            let _ = kill_process(pid, signal);
        }
    }
}

/// Stops processes: politely, and after a while with force.
pub(crate) fn stop(processes: &[Process]) -> anyhow::Result<()> {
    stop_within(processes, Duration::from_secs(5))
}

fn stop_within(processes: &[Process], polite: Duration) -> anyhow::Result<()> {
    const FORCED: Duration = Duration::from_secs(5);

    let all_gone = || {
        processes
            .iter()
            .all(|process| !process.is_alive())
            .then_some(())
    };
    for (signal, patience) in [(Signal::TERM, polite), (Signal::KILL, FORCED)] {
        for process in processes {
            process.signal(signal);
        }
        if Deadline::after(patience).poll(all_gone).is_some() {
            wait_for_burial(processes);
            return Ok(());
        }
    }
    let left: Vec<String> = processes
        .iter()
        .filter(|process| process.is_alive())
        .map(|process| process.pid.to_string())
        .collect();
    bail!("still running after SIGKILL: process {}", left.join(", "))
}

/// Gives their parent, usually init, a moment to collect the exit codes, so that whoever looks next
/// does not find them as zombies. In some containers nobody ever does.
fn wait_for_burial(processes: &[Process]) {
    const PATIENCE: Duration = Duration::from_secs(2);
    let vanished = |process: &Process| !Path::new(&format!("/proc/{}", process.pid)).exists();
    Deadline::after(PATIENCE).poll(|| processes.iter().all(vanished).then_some(()));
}

/// The start time in a line of `/proc/PID/stat`; none for a zombie, which runs no more.
fn start_time(stat: &str) -> Option<u64> {
    // The second field is the program's name in parentheses and may itself contain both.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    // Field 22 of the line, and the state was field 3.
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "42 (odd ) name) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2";

    #[test]
    fn the_start_time_is_found_behind_an_odd_name() {
        assert_eq!(start_time(STAT), Some(98_765));
    }

    #[test]
    fn a_zombie_does_not_count_as_running() {
        assert_eq!(start_time(&STAT.replace(") S ", ") Z ")), None);
    }

    #[test]
    fn another_process_with_the_same_number_is_not_taken_for_ours() {
        let me = Process::current().unwrap();
        assert!(me.is_alive());
        let earlier = Process {
            started: me.started - 1,
            ..me
        };
        assert!(!earlier.is_alive());
        // Neither is it stopped: this test would not survive it.
        stop(&[earlier]).unwrap();
    }

    #[test]
    fn a_server_is_started_logged_and_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "echo hello; exec sleep 600"]);
        let process = Process::spawn(&mut command, &log).unwrap();
        let logged = Deadline::after(Duration::from_mins(1)).poll(|| {
            fs::read_to_string(&log)
                .ok()
                .filter(|text| text == "hello\n")
        });
        assert!(logged.is_some());
        assert!(process.is_alive());
        stop(&[process]).unwrap();
        assert!(!process.is_alive());
    }

    #[test]
    fn a_stubborn_server_is_stopped_with_force() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "trap '' TERM; echo ready; while :; do sleep 0.1; done",
        ]);
        let process = Process::spawn(&mut command, &log).unwrap();
        Deadline::after(Duration::from_mins(1))
            .poll(|| {
                fs::read_to_string(&log)
                    .ok()
                    .filter(|text| !text.is_empty())
            })
            .unwrap();
        stop_within(&[process], Duration::from_millis(200)).unwrap();
        assert!(!process.is_alive());
    }
}
