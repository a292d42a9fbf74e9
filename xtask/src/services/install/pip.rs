use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::super::progress::Line;
use super::apt::Root;
use super::{on_path, output, run, wrapper};

/// Puts one Python package into `folder`, unless that was done before.
pub(crate) fn fetch(line: &Line, requirement: &str, folder: &Path) -> anyhow::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let partial = folder.with_added_extension("partial");
    if partial.is_dir() {
        fs::remove_dir_all(&partial)?;
    }
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
    fs::rename(&partial, folder)?;
    Ok(())
}

fn pip(line: &Line) -> anyhow::Result<Command> {
    let mut system = Command::new("python3");
    system.args(["-m", "pip"]);
    if output(Command::new("python3").args(["-m", "pip", "--version"])).is_ok() {
        return Ok(system);
    }
    let root = Root::with(line, "pip", &["python3-pip"])?;
    let mut command = match root.file("usr/bin/python3") {
        Ok(python) => Command::new(wrapper("python3", &python, &root.libraries())?),
        Err(_) => Command::new(on_path("python3").context("python3 is not on the search path")?),
    };
    command
        .env("PYTHONPATH", root.file("usr/lib/python3/dist-packages")?)
        .args(["-m", "pip"]);
    Ok(command)
}
