//! The `laneway` binary: command line, configuration, HTTP.
//!
//! # Layout
//!
//! `main` → [`run`] → the work of one command: [`serve`], [`client`], [`moving`], [`bus`], [`config`] or [`doctor`].
//!
//! | module | what it is |
//! |---|---|
//! | `cli` | what can be typed, and what `--help` says about it |
//! | `config` | file, environment and flags become one checked [`config::Config`] |
//! | `serve` | what `laneway serve` starts, how it stops |
//! | `http` | the accept loop and its limits, the routes, problem details, metrics |
//! | `messages` | delayed messages as the routes ask for them, wherever they are kept |
//! | `delay` | what delivers messages that are due: callbacks, and the bus |
//! | `cluster` | the roles of a cluster: receive, center, worker, admin (feature `cluster`) |
//! | `client` | the commands that talk to a running server |
//! | `moving` | messages from one machine to a cluster: `laneway move` |
//! | `bus` | dead letters and parked events of a bus |
//! | `doctor` | what a broker, a directory or a server lacks |
//! | `logging`, `open_files`, `build_info` | log lines, the limit on descriptors, how it was built |

mod build_info;
mod bus;
mod cli;
mod client;
#[cfg(feature = "cluster")]
mod cluster;
mod config;
mod delay;
mod doctor;
mod http;
mod logging;
mod messages;
mod moving;
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
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // `--help` and `--version` are no errors, and go to standard output.
        Err(error) if error.use_stderr() && asks_for_json() => {
            return client::Failed::usage(&error.to_string()).tell();
        }
        Err(error) => error.exit(),
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<client::Failed>() => match error.downcast::<client::Failed>() {
            Ok(failed) => failed.tell(),
            Err(_) => ExitCode::FAILURE,
        },
        Err(error) if asks_for_json() => client::Failed::from_any(error, true).tell(),
        Err(error) => {
            // Where standard error is gone too there is nowhere left to write.
            let _ = writeln!(io::stderr(), "laneway: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether errors are to be JSON: also those of commands that could not be understood.
fn asks_for_json() -> bool {
    let mut arguments = std::env::args_os().take_while(|argument| argument != "--");
    arguments.any(|argument| argument == "--json")
}

/// Reads the configuration as the command asks for, and does the work.
fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Serve { settings } => {
            let effective = Inputs::gather(cli.config, settings)?.resolve()?;
            serve::serve(&effective)
        }
        Command::Delay(command) => client::delay(command, cli.config.as_deref()),
        Command::Dead(command) => client::dead(command, cli.config.as_deref()),
        Command::Cluster(command) => client::cluster(command, cli.config.as_deref()),
        Command::Topic(command) => client::topic(command, cli.config.as_deref()),
        Command::Move(options) => moving::run(&options),
        Command::Bus(command) => bus::run(&command),
        Command::Listen(options) => client::listen(&options),
        Command::Doctor {
            address,
            monitor,
            json,
        } => doctor::run(&address, monitor, json),
        Command::Config(ConfigCommand::Check { file, settings }) => {
            let inputs = Inputs::gather(file.or(cli.config), settings)?;
            let file = inputs.file_name();
            let effective = inputs.resolve()?;
            delay::all_secrets(&effective.config)?;
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
