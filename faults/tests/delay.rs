//! The fault runs of delayed messages, in their short form.

use std::process::Command;
use std::time::Duration;

use laneway_faults::shell;

const LIMIT: Duration = Duration::from_mins(3);

fn passes(name: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_laneway-faults"));
    command.arg(name).current_dir(folder.path());
    let output = shell::run(&mut command, LIMIT).unwrap();
    assert!(output.status.success(), "{}", output.text);
    output.text
}

#[test]
fn killed_delayed_messages_lose_nothing() {
    needs::slow!();
    passes("delay-kill");
}

#[test]
fn delayed_messages_without_power_lose_nothing() {
    needs::slow!();
    let text = passes("delay-power");
    if let Some(reason) = text.lines().find(|line| line.starts_with("SKIPPED")) {
        needs::skip!(reason);
    }
}
