//! Commands with a deadline.

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

const GLANCE: Duration = Duration::from_millis(20);

/// How often it is looked whether something moves.
const LOOK: Duration = Duration::from_secs(1);

/// How a command ended and what it printed.
#[derive(Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output. The standard error is left where it is, for people to follow.
    pub text: String,
}

/// Runs a command to its end, or kills it at the deadline.
///
/// # Errors
///
/// If it cannot be started, or is not done in time.
pub fn run(command: &mut Command, limit: Duration) -> Result<Output> {
    run_while_moving(command, limit, limit, || ())
}

/// Runs a command to its end, or kills it when nothing has `moved` for `quiet`, or at the deadline: a machine that is busy
/// takes long, and is not stuck.
///
/// # Errors
///
/// If it cannot be started, or is not done in time.
pub fn run_while_moving<T: PartialEq>(
    command: &mut Command,
    quiet: Duration,
    limit: Duration,
    mut moved: impl FnMut() -> T,
) -> Result<Output> {
    let name = command.get_program().display().to_string();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    let mut stdout = child.stdout.take().context("the output was piped")?;
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes).map(|_| bytes)
    });
    let deadline = Instant::now() + limit;
    let (mut last, mut since) = (moved(), Instant::now());
    let status = loop {
        let until = deadline.min(since + quiet);
        let left = until.saturating_duration_since(Instant::now());
        if let Some(status) = wait_until(left.min(LOOK), || child.try_wait().transpose())? {
            break status;
        }
        let now = moved();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        if Instant::now() >= deadline.min(since + quiet) {
            child.kill()?;
            child.wait()?;
            let still = since.elapsed();
            bail!("{name} was not done after {limit:?}: nothing has moved for {still:?}");
        }
    };
    let bytes = reader
        .join()
        .map_err(|_| anyhow::anyhow!("reading {name} failed"))??;
    Ok(Output {
        status,
        text: String::from_utf8_lossy(&bytes).into_owned(),
    })
}

/// Looks again and again until there is an answer, or the time is up.
///
/// # Errors
///
/// The error that looking gave, if it did.
pub fn wait_until<T, E>(
    limit: Duration,
    mut look: impl FnMut() -> Option<Result<T, E>>,
) -> Result<Option<T>, E> {
    let deadline = Instant::now() + limit;
    loop {
        match look() {
            Some(answer) => return answer.map(Some),
            None if Instant::now() >= deadline => return Ok(None),
            None => thread::sleep(GLANCE),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::{run, run_while_moving};

    #[test]
    fn the_output_and_the_status_come_back() {
        let mut command = Command::new("sh");
        let output = run(
            command.args(["-c", "echo hello; exit 3"]),
            Duration::from_secs(20),
        );
        let output = output.unwrap();
        assert_eq!(output.text, "hello\n");
        assert_eq!(output.status.code(), Some(3));
    }

    #[test]
    fn a_command_is_given_time_while_something_moves() {
        let quiet = Duration::from_millis(400);
        let mut count = 0;
        let moved = || {
            count += 1;
            count
        };
        let mut command = Command::new("sleep");
        let done = run_while_moving(command.arg("2"), quiet, Duration::from_mins(1), moved);
        assert!(done.unwrap().status.success());
        let mut command = Command::new("sleep");
        let stuck = run_while_moving(command.arg("60"), quiet, Duration::from_mins(1), || ());
        let error = stuck.unwrap_err().to_string();
        assert!(error.contains("nothing has moved"), "{error}");
    }

    #[test]
    fn a_command_past_its_deadline_is_an_error() {
        let mut command = Command::new("sleep");
        let error = run(command.arg("60"), Duration::from_millis(100)).unwrap_err();
        assert!(error.to_string().contains("sleep was not done"), "{error}");
    }
}
