//! Developer commands: `cargo xtask services`, `test`, `bench` and `faults`.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`services`] | real servers for tests, installed if missing and started on loopback ports |
//! | [`mod@test`] | checks, services, all tests, one table |
//! | [`runner`] | builds and runs the benchmark and the fault programs |
//! | [`process`], [`progress`], [`workspace`] | what they share |

mod process;
mod progress;
mod runner;
mod services;
mod test;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

/// Developer commands of this workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Start, stop and show the real servers that tests use.
    Services(services::ServicesArgs),
    /// Run checks, services and all tests, and show a summary.
    Test(test::TestArgs),
    /// Run a benchmark, or `--list` them.
    Bench(runner::Arguments),
    /// Run a fault run, or `--list` them.
    Faults(runner::Arguments),
}

fn main() -> ExitCode {
    runs::exit(run(Command::parse()))
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Services(args) => services::run(args),
        Command::Test(args) => test::run(&args),
        Command::Bench(args) => runner::run("laneway-bench", &args),
        Command::Faults(args) => runner::run("laneway-faults", &args),
    }
}
