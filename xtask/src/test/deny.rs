//! `cargo deny`: which crates, licenses and sources may come in. The rules are in `deny.toml`.
//!
//! Advisories are not checked here: their database is a git repository that cannot be reached from
//! every machine, and a check that passes or fails by network is none.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::checks::check;
use super::summary::Row;
use crate::workspace::{cargo, root, tools_dir};

/// Pinned, so that a new release cannot turn a run red.
const VERSION: &str = "0.20.2";

/// The program: the one that is installed if it is of that version, else compiled into the target folder once.
///
/// Compiling takes three minutes, and there is no way around that from nothing: no registry has the program of this
/// version. (The one on `PyPI` is 0.14.2, which knows neither this form of `deny.toml` nor the license `Unicode-3.0`.)
///
/// Returns the row that says why there is none.
pub(super) fn installed() -> Result<PathBuf, Box<Row>> {
    if let Some(program) = on_path() {
        return Ok(program);
    }
    let folder = tools_dir().join(format!("cargo-deny-{VERSION}"));
    let program = folder.join("bin").join("cargo-deny");
    if program.exists() {
        return Ok(program);
    }
    let build = folder.join("build");
    let row = check("deny (install)", &mut install(&folder, &build));
    if row.failed > 0 {
        return Err(Box::new(row));
    }
    // Half a gigabyte that nobody needs again; left there, it does no harm.
    let _ = fs::remove_dir_all(build);
    Ok(program)
}

/// The program that cargo itself would run, if it is of the pinned version.
fn on_path() -> Option<PathBuf> {
    let program = PathBuf::from("cargo-deny");
    let output = Command::new(&program).arg("--version").output().ok()?;
    let version = String::from_utf8(output.stdout).ok()?;
    (version.trim() == format!("cargo-deny {VERSION}")).then_some(program)
}

/// Without optimization, it compiles in a third of the time, and the check still takes seconds.
fn install(folder: &Path, build: &Path) -> Command {
    let mut command = cargo();
    command
        .args([
            "install",
            "cargo-deny",
            "--locked",
            "--debug",
            "--version",
            VERSION,
        ])
        .arg("--root")
        .arg(folder)
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        // It shares nothing with the workspace.
        .env("CARGO_TARGET_DIR", build);
    command
}

pub(super) fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .current_dir(root())
        .args(["--workspace", "check", "--hide-inclusion-graph"])
        .args(["bans", "licenses", "sources"]);
    command
}
