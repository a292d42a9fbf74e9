//! Servers of NATS for the fault runs of [`group`](crate::group).

mod server;

use std::path::Path;

use anyhow::Result;

use crate::group::Broker;

pub use self::server::NatsServer;

/// NATS `JetStream`.
#[derive(Debug)]
pub struct Nats;

impl Broker for Nats {
    const SCHEME: &str = "nats";
    const REPLICATED: &str = "replicas=3";
    type Server = NatsServer;

    fn alone(folder: &Path) -> Result<NatsServer> {
        server::alone(folder)
    }

    fn cluster(folder: &Path) -> Result<Vec<NatsServer>> {
        server::cluster(folder)
    }

    fn silence(millis: u64) -> String {
        format!("lease_ms={millis}")
    }
}
