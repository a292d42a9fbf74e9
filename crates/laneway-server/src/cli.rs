//! What can be typed. Arguments become checked values in `config`; nothing is interpreted here.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::build_info::LONG_VERSION;
use crate::client::{DeadCommand, DelayCommand};
use crate::config::Overrides;

/// Laneway: an event bus that keeps every key in order, and delayed messages on top of it.
///
/// `serve` runs a server for delayed messages; `delay` and `dead` talk to one.
#[derive(Debug, Parser)]
#[command(
    name = "laneway",
    version,
    long_version = LONG_VERSION,
    arg_required_else_help = true,
    after_long_help = EXAMPLES,
    after_help = "Try `laneway --help` for examples and for where the configuration comes from."
)]
pub(crate) struct Cli {
    /// The configuration file. Without it, `laneway.toml` in the working directory is read if it
    /// is there.
    #[arg(long, global = true, value_name = "FILE", env = "LANEWAY_CONFIG")]
    pub(crate) config: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a server for delayed messages, on this machine alone unless told otherwise.
    ///
    /// Messages are kept in the data directory, and a message that was accepted is on disk. The server
    /// stops on SIGTERM or Ctrl-C: it takes no new connections, finishes the requests and callbacks it
    /// has within `--shutdown-timeout`, and exits with 0. A second signal stops it at once.
    Serve {
        #[command(flatten)]
        settings: Overrides,
    },

    /// Submit delayed messages to a running server, extend, withdraw and find them.
    #[command(subcommand)]
    Delay(DelayCommand),

    /// List, replay and purge messages that were given up.
    #[command(subcommand)]
    Dead(DeadCommand),

    /// Examine what a bus would run on, and say what to change.
    ///
    /// Looks at the version, the limits, replicas and storage of topics, the round trip and the clock.
    /// A NATS server tells only its monitoring address whether it syncs before it acknowledges: give
    /// it with `--monitor`. Exits with 1 if something is bad.
    #[command(
        after_help = "Example: laneway doctor nats://localhost:4222 --monitor http://localhost:8222"
    )]
    Doctor {
        /// The address of the bus, such as `nats://localhost:4222` or `kafka://localhost:9092`.
        address: String,

        /// The monitoring address of a NATS server, such as `http://localhost:8222`.
        #[arg(long, value_name = "URL")]
        monitor: Option<String>,

        /// One line of JSON for each finding.
        #[arg(long)]
        json: bool,
    },

    /// Check or show the configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check what `serve` would read, and report everything that is wrong with it.
    ///
    /// Exits with 0 if there is nothing wrong, and with 1 otherwise.
    Check {
        /// The file to check instead of the one that `serve` would read.
        file: Option<PathBuf>,

        #[command(flatten)]
        settings: Overrides,
    },

    /// Show the value of every key and where it comes from.
    ///
    /// The output is a complete configuration file.
    Show {
        #[command(flatten)]
        settings: Overrides,
    },
}

const EXAMPLES: &str = "\
Examples:
  laneway serve                            take delayed messages on 127.0.0.1:7070
  laneway delay submit --topic reminders --in 15m --callback http://127.0.0.1:8000/hook
  laneway delay list                       what waits
  laneway dead list                        what was given up
  laneway serve --listen 127.0.0.1:0       listen on any free port and print it
  laneway config show > new.toml           start a configuration file from what is in force
  laneway config check laneway.toml        find mistakes before the server does
  LANEWAY_LOG__FORMAT=json laneway serve   set one key by the environment

Configuration, from weak to strong:
  1. defaults
  2. one TOML file: --config FILE, or LANEWAY_CONFIG, or ./laneway.toml if it is there
  3. the environment: serve.listen is LANEWAY_SERVE__LISTEN, and so on
  4. flags
  A key that nobody knows is refused, wherever it is written.
";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
