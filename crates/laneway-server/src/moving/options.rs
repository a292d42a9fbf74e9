//! What can be typed after `laneway move`.

use clap::Args;

use crate::client::Failed;

/// Where messages come from, and where they go.
#[derive(Debug, Args)]
#[cfg_attr(
    not(feature = "cluster"),
    expect(dead_code, reason = "told what is missing, and nothing more")
)]
pub(crate) struct Move {
    /// The data directory of a server that is stopped.
    #[arg(long, value_name = "DIRECTORY")]
    pub(super) from: String,

    /// The broker of the cluster: `nats://HOST:PORT` or `kafka://HOST:PORT`, as `serve --log` has it.
    #[arg(long, value_name = "URL")]
    pub(super) to: String,

    /// The name of the cluster.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "laneway",
        env = "LANEWAY_SERVE__CLUSTER"
    )]
    pub(super) cluster: String,

    /// Into how many parts the messages of the cluster are split. Fixed when its topics are made.
    #[arg(long, value_name = "N", default_value_t = 16, env = "LANEWAY_SERVE__SHARDS",
        value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub(super) shards: u32,

    /// Count what would be moved, and change nothing. The broker is not asked.
    #[arg(long, conflicts_with = "abort")]
    pub(super) dry_run: bool,

    /// Take back a move that has begun and has handed nothing over: the directory can be served again.
    #[arg(long)]
    pub(super) abort: bool,

    /// One object of JSON at the end instead of progress and prose.
    #[arg(long)]
    pub(super) json: bool,

    /// How many messages are moved at a time; each time it is told how far it is.
    #[arg(long, value_name = "N", hide = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) page: Option<u32>,
}

impl Move {
    /// That both ends are what they have to be.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let is_broker = |address: &str| {
            ["nats://", "kafka://"]
                .iter()
                .any(|it| address.starts_with(it))
        };
        if is_broker(&self.from) {
            let detail = "--from: messages of a cluster cannot be moved to a directory yet; name the data directory of a server";
            return Err(Failed::usage(detail).into());
        }
        if !is_broker(&self.to) {
            let to = crate::config::secret::without_secrets(&self.to);
            let detail = format!(
                "--to: {to:?} is no broker of a cluster; give nats://HOST:PORT or kafka://HOST:PORT"
            );
            return Err(Failed::usage(&detail).into());
        }
        Ok(())
    }
}
