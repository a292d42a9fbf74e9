//! Real servers for tests, benchmarks and fault runs.

mod outcome;
mod service;
mod shape;

use std::process::ExitCode;

pub(crate) use outcome::{Outcome, Source, State, environment};
pub(crate) use service::Service;
pub(crate) use shape::{NatsSync, Shape};

/// `cargo xtask services …`
#[derive(Debug, clap::Args)]
pub(crate) struct ServicesArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Start what is not running yet, and print how to reach it.
    Up {
        /// Chosen servers and their shape.
        #[command(flatten)]
        shape: Shape,
    },
    /// Stop everything that `up` started.
    Down,
}

/// Runs `cargo xtask services …`.
pub(crate) fn run(args: ServicesArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Up { shape } => {
            ensure(&Service::SERVERS, shape);
        }
        Command::Down => down()?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts (or reuses) the wanted services; one outcome each, in the order asked for.
pub(crate) fn ensure(wanted: &[Service], _shape: Shape) -> Vec<Outcome> {
    wanted
        .iter()
        .map(|&service| Outcome::unavailable(service, "not written yet"))
        .collect()
}

/// This process needs the services of its calls to [`ensure`] no longer. Those that nobody else uses
/// and that were not brought up to stay (`services up`) are stopped.
pub(crate) fn release() -> anyhow::Result<()> {
    Ok(())
}

/// Stops everything that this project's `services up` started.
pub(crate) fn down() -> anyhow::Result<()> {
    Ok(())
}
