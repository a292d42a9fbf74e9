//! The short versions of fault runs on a service, as tests.

use std::env;
use std::process::Command;
use std::time::Duration;

use laneway_faults::shell;

/// Each takes half a minute or less; a machine that is busy may take longer.
const LIMIT: Duration = Duration::from_mins(4);

/// Runs one as `cargo xtask faults NAME` does.
pub(crate) fn passes(name: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laneway-faults"));
    let folder = tempfile::tempdir().expect("a folder for its journal");
    let output = shell::run(command.current_dir(&folder).arg(name), LIMIT);
    let output = output.expect("it comes to an end");
    assert!(output.status.success(), "{}", output.text);
}

/// A test for each fault run.
macro_rules! short_runs {
    ($service:literal: $($test:ident $run:literal)+) => {
        $(#[test]
        fn $test() {
            needs::slow!();
            needs::service!($service);
            crate::short::passes($run);
        })+
    };
}
pub(crate) use short_runs;
