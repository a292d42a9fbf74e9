//! The first stage: formatting, lints, documentation, dependencies.

use std::process::Command;
use std::time::Duration;

use super::selection::{BROKERS, Checks, Workspace};
use super::summary::{Row, Summary};
use super::{deny, features, layout};
use crate::process::{self, Line};
use crate::progress::{self, Step};
use crate::workspace::{cargo, without_progress};

/// Two cores compile the whole workspace from nothing in a few minutes.
pub(super) const COMPILE_LIMIT: Duration = Duration::from_mins(30);

/// Runs the checks that are wanted. Each of them runs, whatever the others say.
pub(super) fn run(workspace: &Workspace, wanted: Checks, summary: &mut Summary) {
    if wanted != Checks::None {
        summary.add(layout::check(workspace));
    }
    match wanted {
        Checks::None => {}
        Checks::Quick => {
            summary.add(check("fmt", &mut fmt()));
            summary.add(check("clippy", &mut clippy(&[])));
        }
        Checks::All => {
            summary.add(check("fmt", &mut fmt()));
            summary.add(check("clippy", &mut clippy(&["--workspace", BROKERS])));
            summary.add(features::check(workspace));
            summary.add(check("doc", &mut doc()));
            summary.add(deny::installed().map_or_else(
                |row| *row,
                |program| check("deny", &mut deny::command(&program)),
            ));
        }
    }
}

fn fmt() -> Command {
    let mut command = cargo();
    command.args(["fmt", "--all", "--check"]);
    command
}

fn clippy(packages: &[&str]) -> Command {
    let mut command = cargo();
    command
        .arg("clippy")
        .args(packages)
        .args(["--all-targets", "--", "-D", "warnings"]);
    command
}

fn doc() -> Command {
    let mut command = cargo();
    command
        .args(["doc", "--no-deps", "--workspace", BROKERS])
        .env("RUSTDOCFLAGS", "-D warnings");
    command
}

/// Runs a command that must succeed. What it prints is shown only if it does not.
pub(super) fn check(name: &str, command: &mut Command) -> Row {
    let step = Step::start(name);
    let mut printed = Vec::new();
    let end = process::run(command, COMPILE_LIMIT, |line| {
        let (Line::Out(text) | Line::Err(text)) = line;
        step.note(text.trim());
        printed.push(text);
    });
    match end {
        Ok(end) if end.is_success() => Row::check(name, Ok(()), step.ok("")),
        Ok(end) => {
            let took = step.failed(&end.to_string());
            progress::print(&without_progress(printed));
            Row::check(name, Err(format!("{} ({end})", shown(command))), took)
        }
        Err(error) => {
            let took = step.failed("");
            Row::check(name, Err(format!("{error:#}")), took)
        }
    }
}

/// The command as one would type it.
fn shown(command: &Command) -> String {
    let mut shown = match command.get_program().to_str() {
        Some(program) if program.ends_with("cargo") => "cargo".to_owned(),
        _ => command.get_program().display().to_string(),
    };
    for argument in command.get_args() {
        shown.push(' ');
        shown.push_str(&argument.to_string_lossy());
    }
    shown
}
