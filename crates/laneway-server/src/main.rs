//! The `laneway` binary: command line, configuration, HTTP.
//!
//! # Layout
//!
//! - `main` → [`run`] → the work of one command: [`serve`], [`client`], [`config`] or [`doctor`].
//! - `cli`: what can be typed, and what `--help` says about it.
//! - `config/`: file, environment and flags become one checked [`config::Config`].
//! - `http/`: the accept loop and its limits, the routes, problem details, metrics.
//! - `delay/`: what delivers messages that are due: callbacks, and the bus.
//! - `serve`: what `laneway serve` starts, how it stops.
//! - `client/`: the commands that talk to a running server.

mod build_info;
mod cli;
mod client;
mod config;
mod delay;
mod doctor;
mod http;
mod logging;
mod open_files;
mod serve;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

use cli::{Cli, Command, ConfigCommand};
use config::Inputs;

/// Dropping it is deleting these two lines and the dependency.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Where standard error is gone too there is nobody left to tell.
            let _ = writeln!(io::stderr(), "laneway: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Reads the configuration as the command asks for, and does the work.
fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Serve { settings } => {
            let effective = Inputs::gather(cli.config, settings)?.resolve()?;
            serve::serve(&effective)
        }
        Command::Delay(command) => client::delay(command),
        Command::Dead(command) => client::dead(command),
        Command::Doctor {
            address,
            monitor,
            json,
        } => doctor::run(&address, monitor, json),
        Command::Config(ConfigCommand::Check { file, settings }) => {
            let inputs = Inputs::gather(file.or(cli.config), settings)?;
            let file = inputs.file_name();
            let effective = inputs.resolve()?;
            print(&effective.verdict(file.as_deref()))
        }
        Command::Config(ConfigCommand::Show { settings }) => {
            let effective = Inputs::gather(cli.config, settings)?.resolve()?;
            print(&effective.show())
        }
    }
}

/// Writes to standard output. A reader that has seen enough (`| head -1`) is not an error.
fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}
