//! What can be typed. Arguments become checked values in `config`; nothing is interpreted here.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::build_info::LONG_VERSION;
use crate::bus::BusCommand;
use crate::client::{ClusterCommand, DeadCommand, DelayCommand, Listen, TopicCommand};
use crate::config::Overrides;
use crate::moving::Move;

/// Laneway: an event bus that keeps every key in order, and delayed messages on top of it.
///
/// `serve` runs a server for delayed messages; `delay` and `dead` talk to one; `listen` receives its callbacks.
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
    /// has within `--shutdown-timeout`, and exits with 0. What takes longer is cut off, a bus that is away too, and
    /// comes again at the next start; the exit code is 1 then. A second signal stops it at once.
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

    /// Show the processes and shards of a cluster, drain and remove processes. It talks to a server with the role admin.
    #[command(subcommand)]
    Cluster(ClusterCommand),

    /// Say which workers of a cluster deliver the messages of a topic, and how they share them.
    #[command(subcommand)]
    Topic(TopicCommand),

    /// Move delayed messages from the data directory of a server to a cluster: each of them once, with its id, history and schedule.
    ///
    /// Stop the server of the directory first. Whatever happens, run it again: it goes on where it was, and `serve` refuses the
    /// directory from the first message on. The cluster may run, and owns nothing while messages come in.
    #[command(
        after_help = "Examples:\n  laneway move --from laneway-data --to nats://localhost:4222 --dry-run\n  laneway move --from laneway-data --to nats://localhost:4222\n  laneway move --from laneway-data --to kafka://localhost:9092 --shards 64 --cluster shop\n\nExit codes: 0 done, 1 failed, 2 wrong command line, 4 refused (an id is taken, or another move is not finished),\n5 the broker cannot be reached or does not answer: run it again."
    )]
    Move(Move),

    /// List, replay, release and discard events that handlers of a bus could not handle.
    ///
    /// It reads and writes the topics of the bus itself and needs no server. A bus on disk belongs to one
    /// process at a time: stop that one first.
    #[command(
        subcommand,
        after_help = "Examples:\n  laneway bus dead list orders --bus nats://localhost:4222\n  laneway bus dead replay orders --all --bus kafka://localhost:9092\n  laneway bus parked release orders order-17 --bus file:data"
    )]
    Bus(BusCommand),

    /// Print the callbacks that come to a port of this machine, to try things out.
    ///
    /// It answers 200, or what `--status` says, and checks signatures with `--secrets-file`. It listens on 127.0.0.1
    /// only, and keeps nothing.
    #[command(
        after_help = "Examples:\n  laneway listen 8000\n  laneway listen 8000 --status 500\n  laneway listen 8000 --secrets-file secrets"
    )]
    Listen(Listen),

    /// Examine a bus, a data directory or a server, and say what to change.
    ///
    /// Of a bus it looks at the version, the limits, replicas and storage of topics, the round trip and the clock.
    /// A NATS server tells only its monitoring address whether it syncs before it acknowledges: give
    /// it with `--monitor`. Exits with 1 if something is bad.
    #[command(
        after_help = "Examples:\n  laneway doctor nats://localhost:4222 --monitor http://localhost:8222\n  laneway doctor redis://localhost:6379\n  laneway doctor file:laneway-data\n  laneway doctor http://127.0.0.1:7070"
    )]
    Doctor {
        /// The address of a bus (`nats://localhost:4222`, `kafka://localhost:9092`), a data directory
        /// (`file:laneway-data`), or a laneway server (`http://127.0.0.1:7070`).
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
  laneway listen 8000                      print the callbacks that come
  laneway delay list                       what waits
  laneway dead list                        what was given up
  laneway bus dead list orders --bus URL   events of a bus that handlers gave up
  laneway serve --listen 127.0.0.1:0       listen on any free port and print it
  laneway config show > new.toml           start a configuration file from what is in force
  laneway config check laneway.toml        find mistakes before the server does
  LANEWAY_LOG__FORMAT=json laneway serve   set one key by the environment

Exit codes of `delay`, `dead`, `cluster` and `topic`: 0 done, 1 refused or failed, 2 wrong command line, 3 no such message,
4 the state of the message does not allow it or the id is taken, 5 the server cannot be reached,
6 the server cannot take it now. With --json errors are JSON, on standard error.

Configuration, from weak to strong:
  1. defaults
  2. one TOML file: --config FILE, or LANEWAY_CONFIG, or ./laneway.toml if it is there
  3. the environment: serve.listen is LANEWAY_SERVE__LISTEN, and so on
  4. flags
  An unknown key is refused, wherever it is written.
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
