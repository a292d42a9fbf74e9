//! Servers of Kafka for the fault runs of [`group`](crate::group).

mod server;

use std::path::Path;

use anyhow::Result;

use crate::group::Broker;

pub use self::server::KafkaServer;

/// Apache Kafka.
#[derive(Debug)]
pub struct Kafka;

impl Broker for Kafka {
    const SCHEME: &str = "kafka";
    const REPLICATED: &str = "replication=3&min_in_sync=2";
    type Server = KafkaServer;

    fn alone(folder: &Path) -> Result<KafkaServer> {
        let mut servers = server::start(folder, 1)?;
        Ok(servers.remove(0))
    }

    fn cluster(folder: &Path) -> Result<Vec<KafkaServer>> {
        server::start(folder, 3)
    }

    fn silence(millis: u64) -> String {
        // Shorter ones are not taken.
        format!("session_ms={}", millis.max(1_000))
    }
}
