//! Programs that are not here yet, fetched into the target folder through the ordinary package
//! managers. Nothing is installed on the system, so nothing needs root.

pub(crate) mod apt;
pub(crate) mod java;
pub(crate) mod maven;
pub(crate) mod pip;
mod truststore;
mod wrapper;

use std::env;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::deadline::Deadline;
use super::progress::Line;
use super::site::last_words;
use super::{Service, files, place};

/// How long one step of a download may take.
const PATIENCE: Duration = Duration::from_mins(10);

/// A program that is here already: named by the user, or on the search path.
pub(crate) fn find(service: Service, name: &str) -> Option<PathBuf> {
    let named = service
        .binary_env_var()
        .and_then(env::var_os)
        .filter(|path| !path.is_empty());
    named.map(PathBuf::from).or_else(|| on_path(name))
}

/// A program on the search path, or where daemons are, which is not on everyone's.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/local/sbin".into(), "/usr/sbin".into()])
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Runs one step of an installation with its output in a log of its own.
pub(crate) fn run(line: &Line, what: &str, log: &str, command: &mut Command) -> anyhow::Result<()> {
    let logs = place::tools().join("logs");
    files::make_folder(&logs)?;
    files::make_folder(&place::scratch())?;
    let log = logs.join(format!("{log}.log"));
    let output =
        File::create(&log).with_context(|| format!("cannot write {}", place::shown(&log)))?;
    line.say(what);
    let started = Instant::now();
    let mut beat = started;
    let child = command
        .env("TMPDIR", place::scratch())
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    let status = wait(child, PATIENCE, || {
        if beat.elapsed() >= line.pace() {
            beat = Instant::now();
            line.heartbeat(what, &last_line(&log), started.elapsed());
        }
    });
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => bail!("{what} failed: {}", last_words(&log)),
        Err(error) => bail!("{what}: {error:#} (log: {})", place::shown(&log)),
    }
}

/// What a program prints, for questions that are answered at once.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    const SOON: Duration = Duration::from_secs(30);
    let name = command.get_program().display().to_string();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {name}"))?;
    let pipes = (child.stdout.take(), child.stderr.take());
    let status = wait(child, SOON, || ()).with_context(|| name.clone())?;
    let mut text = String::new();
    // Both fit into the pipes' buffers, and java prints its version on the standard error.
    for pipe in [
        pipes.0.map(|it| Box::new(it) as Box<dyn Read>),
        pipes.1.map(|it| Box::new(it) as _),
    ] {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut bytes)?;
        }
        text.push_str(&String::from_utf8_lossy(&bytes));
    }
    if !status.success() {
        bail!("{name} failed: {}", text.trim());
    }
    Ok(text)
}

fn wait(
    mut child: Child,
    patience: Duration,
    mut meanwhile: impl FnMut(),
) -> anyhow::Result<ExitStatus> {
    let status = Deadline::after(patience).poll(|| {
        meanwhile();
        child.try_wait().transpose()
    });
    if let Some(status) = status {
        return Ok(status?);
    }
    // It may have ended in this very moment.
    let _ = child.kill();
    let _ = child.wait();
    bail!("not done after {} s", patience.as_secs())
}

fn last_line(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    String::from_utf8_lossy(&text)
        .trim_end()
        .rsplit(['\n', '\r'])
        .next()
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_what_both_streams_say() {
        let text = output(Command::new("sh").args(["-c", "echo out; echo err >&2"])).unwrap();
        assert_eq!(text, "out\nerr\n");
        let error = output(Command::new("sh").args(["-c", "echo why; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("why"), "{error}");
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let error = wait(child, Duration::from_millis(50), || ()).unwrap_err();
        assert!(error.to_string().contains("not done"), "{error}");
    }
}
