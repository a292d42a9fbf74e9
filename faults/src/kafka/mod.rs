//! Servers of Kafka for the fault runs of [`group`](crate::group).

mod server;

use std::path::Path;

use anyhow::Result;

use crate::group::{Broker, Server};

/// Apache Kafka. Members of a group agree among themselves.
#[derive(Debug)]
pub struct Kafka;

impl Broker for Kafka {
    const SCHEME: &str = "kafka";
    const REPLICATED: &str = "replication=3&min_in_sync=2";
    // What brokers are told to take.
    const LEAST_SILENCE: u64 = 1_000;

    fn alone(folder: &Path) -> Result<Server> {
        let mut servers = server::start(folder, 1, "")?;
        Ok(servers.remove(0))
    }

    fn cluster(folder: &Path) -> Result<Vec<Server>> {
        server::start(folder, 3, "")
    }

    fn silence(millis: u64) -> String {
        format!("session_ms={millis}")
    }
}

/// Apache Kafka whose brokers decide who has what (KIP-848). They also say how long a member may be
/// silent, and how often it has to be heard of.
#[derive(Debug)]
pub struct Deciding;

const DECIDING: &str = "group.consumer.min.session.timeout.ms=1000\n\
     group.consumer.session.timeout.ms=3000\n\
     group.consumer.min.heartbeat.interval.ms=100\n\
     group.consumer.heartbeat.interval.ms=500\n";

impl Broker for Deciding {
    const SCHEME: &str = "kafka";
    const REPLICATED: &str = "replication=3&min_in_sync=2&protocol=consumer";
    const LEAST_SILENCE: u64 = 3_000;

    fn alone(folder: &Path) -> Result<Server> {
        let mut servers = server::start(folder, 1, DECIDING)?;
        Ok(servers.remove(0))
    }

    fn cluster(folder: &Path) -> Result<Vec<Server>> {
        server::start(folder, 3, DECIDING)
    }

    fn silence(_: u64) -> String {
        "protocol=consumer".to_owned()
    }
}
