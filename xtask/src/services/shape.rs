use serde::{Deserialize, Serialize};

/// How many nodes, and how careful they are with the disk.
///
/// A field that is not set is satisfied by whatever is running already, and means one node with
/// the server's own defaults where nothing runs yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Shape {
    /// Kafka brokers: 1 or 3 [default: what runs already, else 1].
    #[arg(long, value_name = "N", value_parser = nodes)]
    pub(crate) kafka_nodes: Option<u8>,

    /// NATS servers: 1 or 3 (a cluster) [default: what runs already, else 1].
    #[arg(long, value_name = "N", value_parser = nodes)]
    pub(crate) nats_nodes: Option<u8>,

    /// When `JetStream` fsyncs: on every write, or on its own schedule
    /// [default: what runs already, else default].
    #[arg(long, value_name = "WHEN")]
    pub(crate) nats_sync: Option<NatsSync>,
}

/// `sync_interval` of `JetStream`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NatsSync {
    /// Every acknowledged write is on the disk.
    Always,
    /// The server's own interval (two minutes): what most people run.
    #[default]
    Default,
}

fn nodes(text: &str) -> Result<u8, String> {
    match text {
        "1" => Ok(1),
        "3" => Ok(3),
        _ => Err("the number of nodes is 1 or 3".to_owned()),
    }
}
