//! The short versions of fault runs, as tests.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use laneway_faults::shell;

/// Each takes a minute or less where nothing else runs. On a machine that is busy it may take longer, for as long as
/// its journal tells of something.
const LIMIT: Duration = Duration::from_mins(8);
const QUIET: Duration = Duration::from_mins(4);

/// Runs one as `cargo xtask faults NAME` does; answers what it printed.
pub(crate) fn passes(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laneway-faults"));
    let folder = tempfile::tempdir().expect("a folder for its journal");
    command.current_dir(&folder).args(arguments);
    let told = || told(folder.path());
    let output = shell::run_while_moving(&mut command, QUIET, LIMIT, told);
    let output = output.expect("it comes to an end");
    assert!(output.status.success(), "{}", output.text);
    output.text
}

/// How much is in its journal.
fn told(folder: &Path) -> u64 {
    let journals = fs::read_dir(folder.join("target/faults"));
    let journals = journals.into_iter().flatten().flatten();
    journals
        .filter_map(|journal| Some(journal.metadata().ok()?.len()))
        .sum()
}

/// A test for each fault run on a service.
#[allow(unused_macros, reason = "those of the stores need no service")]
macro_rules! short_runs {
    ($service:literal: $($test:ident $($argument:literal)+)+) => {
        $(#[test]
        fn $test() {
            needs::slow!();
            needs::service!($service);
            crate::short::passes(&[$($argument),+]);
        })+
    };
}
#[allow(unused_imports, reason = "those of the stores need no service")]
pub(crate) use short_runs;
