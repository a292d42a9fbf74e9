//! `cargo xtask bench` and `cargo xtask faults`: builds the program with the profile `dist` and hands over.
//!
//! What it can do, the program itself knows best: its arguments pass through unread, `--help`
//! among them.

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::workspace::{cargo, root, target_dir};

/// Everything after `bench` or `faults`.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    /// Arguments of the program; `--help` shows them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// The profile with every optimisation: what is measured must be what is packaged.
const PROFILE: &str = "dist";

/// Builds `package` with [`PROFILE`] and runs it with `arguments`.
pub(crate) fn run(package: &str, arguments: &Arguments) -> Result<ExitCode> {
    let built = cargo()
        .args(["build", "--profile", PROFILE, "--package", package])
        .status()
        .context("cannot run cargo")?;
    if !built.success() {
        bail!("{package} does not compile");
    }
    let status = Command::new(target_dir().join(PROFILE).join(package))
        .current_dir(root())
        .args(&arguments.arguments)
        .status()
        .with_context(|| format!("cannot run {package}"))?;
    Ok(runs::exit_as(status))
}
