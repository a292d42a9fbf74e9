//! The short versions of the fault runs on Kafka.

use std::env;
use std::process::Command;
use std::time::Duration;

use laneway_faults::shell;

/// Each takes about half a minute; a machine that is busy may take longer.
const LIMIT: Duration = Duration::from_mins(4);

/// Runs one as `cargo xtask faults NAME` does.
fn passes(name: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laneway-faults"));
    let folder = tempfile::tempdir().expect("a folder for its journal");
    let output = shell::run(command.current_dir(&folder).arg(name), LIMIT);
    let output = output.expect("it comes to an end");
    assert!(output.status.success(), "{}", output.text);
}

#[test]
fn a_server_is_killed() {
    needs::slow!();
    needs::service!("kafka");
    passes("kafka-server");
}

#[test]
fn publishers_and_members_are_killed() {
    needs::slow!();
    needs::service!("kafka");
    passes("kafka-client");
}

#[test]
fn a_member_is_frozen() {
    needs::slow!();
    needs::service!("kafka");
    passes("kafka-freeze");
}
