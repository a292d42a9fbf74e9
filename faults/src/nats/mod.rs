//! Servers of NATS for the fault runs of [`group`](crate::group).

mod server;

use std::path::Path;

use anyhow::Result;

use crate::group::{Broker, Server};

/// NATS `JetStream`.
#[derive(Debug)]
pub struct Nats;

impl Broker for Nats {
    const SCHEME: &str = "nats";
    const REPLICATED: &str = "replicas=3";
    const LEAST_SILENCE: u64 = 1;

    fn alone(folder: &Path) -> Result<Server> {
        server::alone(folder)
    }

    fn cluster(folder: &Path) -> Result<Vec<Server>> {
        server::cluster(folder)
    }

    fn silence(millis: u64) -> String {
        format!("lease_ms={millis}")
    }
}
