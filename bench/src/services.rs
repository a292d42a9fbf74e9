//! Real servers to be measured against: `cargo xtask services` starts and stops them.

use std::env;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

/// Set when this program runs with what services could be had.
const SERVED: &str = "LANEWAY_BENCH_SERVED";

/// A server that a benchmark compares with.
#[derive(Debug, Clone, Copy)]
pub struct Service {
    /// The environment variable that says where it is.
    pub variable: &'static str,
    /// How `cargo xtask services run` is asked for it.
    pub arguments: &'static [&'static str],
}

impl Service {
    /// Whether it is there, or cannot be had: whoever needs it finds out then.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        env::var_os(self.variable).is_some() || env::var_os(SERVED).is_some()
    }

    /// Runs this program once more, with the same arguments and with the service.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn run_with(&self) -> Result<ExitCode> {
        let program = env::current_exe().context("cannot find this program")?;
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo)
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
            .env(SERVED, "1")
            .args(["xtask", "services", "run"])
            .args(self.arguments)
            .arg("--")
            .arg(program)
            .args(env::args_os().skip(1))
            .status()
            .context("cannot run cargo xtask services")?;
        Ok(runs::exit_as(status))
    }
}
