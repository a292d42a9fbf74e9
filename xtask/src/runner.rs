//! `cargo xtask bench` and `cargo xtask faults`: builds the program in release and hands over.
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

/// Builds `package` in release and runs it with `arguments`.
pub(crate) fn run(package: &str, arguments: &Arguments) -> Result<ExitCode> {
    let built = cargo()
        .args(["build", "--release", "--package", package])
        .status()
        .context("cannot run cargo")?;
    if !built.success() {
        bail!("{package} does not compile");
    }
    let status = Command::new(target_dir().join("release").join(package))
        .current_dir(root())
        .args(&arguments.arguments)
        .status()
        .with_context(|| format!("cannot run {package}"))?;
    // A program that was killed has no code.
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
