//! Runs a program, reads what it prints line by line, and gives up on it after a deadline.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// One line that the program printed, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Line {
    Out(String),
    Err(String),
}

/// How a program ended.
#[derive(Debug)]
pub(crate) enum End {
    Exit(ExitStatus),
    /// It was still running at the deadline, and was killed.
    Deadline(Duration),
}

impl End {
    pub(crate) fn is_success(&self) -> bool {
        matches!(self, End::Exit(status) if status.success())
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Exit(status) => status.fmt(f),
            End::Deadline(limit) => write!(f, "killed after {} s", limit.as_secs()),
        }
    }
}

/// Runs `command` with no input, and hands over every line that it prints.
pub(crate) fn run(
    command: &mut Command,
    limit: Duration,
    mut on_line: impl FnMut(Line),
) -> Result<End> {
    let deadline = Instant::now() + limit;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;

    let (lines, printed) = mpsc::channel();
    read_lines(child.stdout.take(), Line::Out, lines.clone());
    read_lines(child.stderr.take(), Line::Err, lines);

    loop {
        match printed.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => on_line(line),
            // Both streams are closed: it has ended, or is about to.
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                child
                    .kill()
                    .context("cannot kill a program past its deadline")?;
                child.wait()?;
                return Ok(End::Deadline(limit));
            }
        }
    }
    Ok(End::Exit(child.wait()?))
}

/// Reads one stream to its end on a thread of its own. Bytes that are not UTF-8 are replaced: what a
/// test prints is for people.
fn read_lines(
    stream: Option<impl Read + Send + 'static>,
    wrap: fn(String) -> Line,
    lines: Sender<Line>,
) {
    let stream = stream.expect("the stream was set to be piped");
    thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n') {
            let Ok(line) = line else { break };
            let line = String::from_utf8_lossy(&line).into_owned();
            if lines.send(wrap(line)).is_err() {
                break;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::{End, Line, run};

    fn shell(script: &str, limit: Duration) -> (End, Vec<Line>) {
        let mut lines = Vec::new();
        let end = run(Command::new("sh").args(["-c", script]), limit, |line| {
            lines.push(line);
        });
        (end.expect("sh can be started"), lines)
    }

    #[test]
    fn both_streams_are_read_and_the_exit_code_is_kept() {
        let (end, mut lines) = shell("echo a; echo b >&2; exit 3", Duration::from_mins(2));
        lines.sort_by_key(|line| matches!(line, Line::Err(_)));
        assert_eq!(lines, [Line::Out("a".into()), Line::Err("b".into())]);
        assert!(matches!(end, End::Exit(status) if status.code() == Some(3)));
    }

    #[test]
    fn a_program_past_its_deadline_is_killed() {
        let started = Instant::now();
        // A busy machine takes its time to start a program.
        for limit in [300, 3_000, 30_000].map(Duration::from_millis) {
            let (end, lines) = shell("echo a; exec sleep 600", limit);
            assert!(matches!(end, End::Deadline(_)));
            assert!(started.elapsed() < Duration::from_mins(5));
            if !lines.is_empty() {
                assert_eq!(lines, [Line::Out("a".into())]);
                return;
            }
        }
        panic!("what it said before is lost");
    }
}
