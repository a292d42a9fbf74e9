//! `cargo xtask bench` and `cargo xtask faults`: builds the program in release and hands over.
//!
//! What it can do, the program itself knows best: its arguments pass through unread, `--help`
//! among them.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::workspace::cargo;

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
    let status = cargo()
        .args(["run", "--quiet", "--release", "--package", package, "--"])
        .args(&arguments.arguments)
        .status()
        .with_context(|| format!("cannot run {package}"))?;
    // A program that was killed has no code.
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
