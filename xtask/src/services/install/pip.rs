use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::apt::Unpacked;
use super::{on_path, output, run};
use crate::services::files;
use crate::services::progress::Line;

/// Puts one Python package into `folder`, unless that was done before.
pub(crate) fn fetch(line: &Line, requirement: &str, folder: &Path) -> anyhow::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let partial = folder.with_added_extension("partial");
    files::remove_folder(&partial)?;
    let mut pip = pip(line)?;
    pip.args([
        "install",
        "--no-deps",
        "--no-cache-dir",
        "--disable-pip-version-check",
    ])
    .args([
        "--only-binary=:all:",
        "--root-user-action=ignore",
        "--target",
    ])
    .arg(&partial)
    .arg(requirement);
    run(
        line,
        &format!("fetching {requirement} with pip"),
        "pip",
        &mut pip,
    )?;
    files::rename(&partial, folder)
}

fn pip(line: &Line) -> anyhow::Result<Command> {
    let mut system = Command::new("python3");
    system.args(["-m", "pip"]);
    if output(Command::new("python3").args(["-m", "pip", "--version"])).is_ok() {
        return Ok(system);
    }
    // Python comes with it where it is missing, and then looks for its modules next to itself.
    let modules = "usr/lib/python3/dist-packages";
    let package = Unpacked::with(line, "pip", &["python3-pip"], modules)?;
    let fetched = package
        .file
        .ancestors()
        .nth(3)
        .map(|usr| usr.join("bin/python3"));
    let python = match fetched.filter(|python| python.is_file()) {
        Some(python) => package.wrapper("python3", &python)?,
        None => on_path("python3").context("python3 is not on the search path")?,
    };
    let mut command = Command::new(python);
    command.env("PYTHONPATH", &package.file).args(["-m", "pip"]);
    Ok(command)
}
