//! The program `laneway`, built with what a cluster needs.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::shell;

/// Names another program.
const PROGRAM: &str = "LANEWAY_TEST_SERVER_BIN";

const FEATURES: &str = "laneway-server/cluster,laneway-server/kafka,laneway-server/nats";
const BUILD_LIMIT: Duration = Duration::from_mins(20);
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// The program: the one that a variable names, or the one beside `this` program, built if it is not there or lacks what a
/// cluster needs.
///
/// # Errors
///
/// If it cannot be built.
pub fn program(this: &Path) -> Result<PathBuf> {
    if let Some(program) = env::var_os(PROGRAM) {
        return Ok(program.into());
    }
    let program = this.with_file_name("laneway");
    // What is tested is built together with the tests. A run by itself has what there is now.
    let is_test = this.parent().and_then(Path::file_name) == Some(OsStr::new("debug"));
    if is_test && joins_clusters(&program) {
        return Ok(program);
    }
    build(this)?;
    ensure!(
        joins_clusters(&program),
        "{} cannot join a cluster",
        program.display()
    );
    Ok(program)
}

/// Whether the program was built with the feature: without it, it says so before it looks for a broker that is not there.
fn joins_clusters(program: &Path) -> bool {
    let mut command = Command::new(program);
    command
        .args(["serve", "--roles", "worker", "--listen", "127.0.0.1:0"])
        .args(["--log", "nats://127.0.0.1:1", "--data-dir", "/nowhere"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        return false;
    };
    let ended = shell::wait_until(ANSWER_LIMIT, || child.try_wait().transpose());
    let _ = child.kill();
    let output = child.wait_with_output();
    let said = output.map_or_else(|_| Vec::new(), |output| output.stderr);
    matches!(ended, Ok(Some(_))) && !String::from_utf8_lossy(&said).contains("feature")
}

fn build(this: &Path) -> Result<()> {
    let folder = this.parent().and_then(Path::file_name);
    let profile = match folder.and_then(OsStr::to_str) {
        Some("debug") => "dev",
        Some(profile) => profile,
        None => bail!("{} is not in a folder of cargo", this.display()),
    };
    let package = this.file_stem().and_then(OsStr::to_str);
    let package = package.context("this program has no name")?;
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .args(["build", "--quiet", "--profile", profile])
        // Both, so that what they share has the same features as before.
        .args(["-p", package, "-p", "laneway-server"])
        .args(["--features", FEATURES]);
    let built = shell::run(&mut command, BUILD_LIMIT).context("cannot build laneway")?;
    ensure!(built.status.success(), "laneway does not compile");
    Ok(())
}
