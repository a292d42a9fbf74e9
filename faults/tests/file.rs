//! The fault runs of the bus on disk, in their short form.

use std::process::Command;
use std::time::Duration;

use laneway_faults::shell;

const LIMIT: Duration = Duration::from_mins(3);

/// What a run printed, if it passed.
fn passes(name: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_laneway-faults"));
    command.arg(name).current_dir(folder.path());
    let output = shell::run(&mut command, LIMIT).unwrap();
    assert!(output.status.success(), "{}", output.text);
    output.text
}

/// Passes on with the reason if the machine does not allow what a run needs.
macro_rules! passes_or_skips {
    ($name:expr) => {
        let text = passes($name);
        if let Some(reason) = text.lines().find(|line| line.starts_with("SKIPPED")) {
            needs::skip!(reason);
        }
    };
}

#[test]
fn a_killed_bus_loses_nothing() {
    needs::slow!();
    passes("kill");
}

#[test]
fn a_bus_without_power_loses_nothing() {
    needs::slow!();
    passes_or_skips!("power");
}

#[test]
fn a_bus_on_a_full_or_failing_disk_loses_nothing() {
    needs::slow!();
    passes_or_skips!("disk");
}
