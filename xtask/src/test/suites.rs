//! The third stage: builds the test programs, runs them one after the other, reads their reports.
//!
//! The programs are started from here and not by `cargo test`: so each of them has a deadline, its
//! two streams stay apart, and what it prints is shown only when it fails.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;

use super::checks::COMPILE_LIMIT;
use super::libtest::Report;
use super::selection::Workspace;
use super::summary::Row;
use crate::process::{self, End, Line};
use crate::progress::{self, Step};
use crate::services::{self, Outcome, Service};
use crate::workspace::{cargo, without_progress};

/// No single test program may take longer.
const SUITE_LIMIT: Duration = Duration::from_mins(20);

/// A test program that was built.
#[derive(Debug)]
pub(super) struct Suite {
    name: String,
    program: PathBuf,
    folder: PathBuf,
}

/// What tests are told about the world.
#[derive(Debug)]
pub(super) struct Environment {
    variables: Vec<(String, String)>,
}

impl Environment {
    pub(super) fn new(outcomes: &[Outcome], quick: bool) -> Self {
        let mut variables = services::environment(outcomes);
        if quick {
            variables.push((needs::QUICK.to_owned(), "1".to_owned()));
        }
        Self { variables }
    }

    fn apply(&self, command: &mut Command) {
        // A server that somebody named but that does not answer, or that is not wanted in this run,
        // must not reach the tests.
        for service in Service::ALL {
            command.env_remove(service.env_var());
        }
        command.envs(self.variables.iter().cloned());
    }
}

/// One line of `cargo --message-format=json`.
#[derive(Debug, Deserialize)]
struct Message {
    reason: String,
    package_id: Option<String>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Profile {
    test: bool,
}

/// Builds the chosen tests, with variables for their build scripts. Without success there is a row of that name that
/// says so, and nothing to run.
pub(super) fn build(
    workspace: &Workspace,
    name: &str,
    chosen: &[String],
    variables: &[(&str, &str)],
) -> Result<Vec<Suite>, Box<Row>> {
    let step = Step::start(name);
    let mut suites = Vec::new();
    let mut printed = Vec::new();
    let mut command = cargo();
    command
        .args([
            "test",
            "--no-run",
            "--message-format=json-render-diagnostics",
        ])
        .args(chosen)
        .envs(variables.iter().copied());
    let end = process::run(&mut command, COMPILE_LIMIT, |line| match line {
        Line::Out(json) => suites.extend(
            serde_json::from_str(&json)
                .ok()
                .and_then(|message| suite(workspace, message)),
        ),
        Line::Err(text) => {
            step.note(text.trim());
            printed.push(text);
        }
    });
    match end {
        Ok(end) if end.is_success() => {
            step.ok(&format!("{} programs", suites.len()));
            suites.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(suites)
        }
        Ok(end) => {
            let took = step.failed(&end.to_string());
            progress::print(&without_progress(printed));
            Err(Box::new(Row::check(
                name,
                Err("does not compile".into()),
                took,
            )))
        }
        Err(error) => {
            let took = step.failed("");
            Err(Box::new(Row::check(name, Err(format!("{error:#}")), took)))
        }
    }
}

fn suite(workspace: &Workspace, message: Message) -> Option<Suite> {
    if message.reason != "compiler-artifact" || !message.profile?.test {
        return None;
    }
    let target = message.target?;
    let (package, folder) = workspace.package(&message.package_id?)?;
    let name = match target.kind.first().map(String::as_str) {
        Some("test") => format!("{package} {}", target.name),
        Some("bin") => format!("{package} (unit, {})", target.name),
        _ => format!("{package} (unit)"),
    };
    Some(Suite {
        name,
        program: message.executable?,
        folder,
    })
}

impl Suite {
    /// The same, told apart from the one that was built with other features.
    pub(super) fn labelled(mut self, label: &str) -> Self {
        self.name = format!("{} ({label})", self.name);
        self
    }

    pub(super) fn run(&self, environment: &Environment) -> Row {
        let mut command = Command::new(&self.program);
        // As cargo would start it.
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder);
        environment.apply(&mut command);
        run(&self.name, &mut command, SUITE_LIMIT)
    }
}

/// Runs the doc tests of the chosen packages.
pub(super) fn doc_tests(chosen: &[String], environment: &Environment) -> Row {
    let mut command = cargo();
    command
        .args(["test", "--doc", "--no-fail-fast"])
        .args(chosen);
    environment.apply(&mut command);
    run("doc tests", &mut command, COMPILE_LIMIT)
}

fn run(name: &str, command: &mut Command, limit: Duration) -> Row {
    let step = Step::start(name);
    let mut report = Report::default();
    let mut printed = Vec::new();
    let end = process::run(command, limit, |line| {
        let text = match line {
            Line::Out(text) => {
                report.out(&text);
                text
            }
            Line::Err(text) => {
                report.err(&text);
                text
            }
        };
        step.note(format!("{} done", report.ended()));
        printed.push(text);
    });

    let mut failures = report.failures().to_vec();
    let mut failed = report.failed();
    match end {
        Ok(end) => {
            // A failed program without a failed test died, hung, or never got that far.
            if failed == 0 && (!end.is_success() || !report.is_complete()) {
                failed = 1;
                failures.push(cut_short(&end, &report, command));
            }
        }
        Err(error) => {
            failed += 1;
            failures.push(format!("{error:#}"));
        }
    }

    let skipped = report.skipped();
    let outcome = match skipped.len() {
        0 => format!("{} passed", report.passed()),
        number => format!("{} passed, {number} skipped", report.passed()),
    };
    let took = if failed == 0 {
        step.ok(&outcome)
    } else {
        let took = step.failed(&format!("{failed} failed, {outcome}"));
        progress::print(&printed);
        took
    };
    Row {
        suite: name.to_owned(),
        passed: report.passed(),
        failed,
        skipped,
        failures,
        took,
        ..Row::default()
    }
}

/// Why a program ended without its totals, and which tests may be to blame.
fn cut_short(end: &End, report: &Report, command: &Command) -> String {
    // The program's own list; that of doc tests would have to be compiled again.
    let list = Command::new(command.get_program()).arg("--list").output();
    let list = list.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    match report.not_ended(&list.unwrap_or_default()).as_slice() {
        [] => format!("{end} after {} tests", report.ended()),
        tests => format!("{end} before these ended: {}", tests.join(", ")),
    }
}
