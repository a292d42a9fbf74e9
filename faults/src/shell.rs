//! Commands with a deadline.

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

const GLANCE: Duration = Duration::from_millis(20);

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
    let Some(status) = wait_until(limit, || child.try_wait().transpose())? else {
        child.kill()?;
        child.wait()?;
        bail!("{name} was not done after {limit:?}");
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

    use super::run;

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
    fn a_command_past_its_deadline_is_an_error() {
        let mut command = Command::new("sleep");
        let error = run(command.arg("60"), Duration::from_millis(100)).unwrap_err();
        assert!(error.to_string().contains("sleep was not done"), "{error}");
    }
}
