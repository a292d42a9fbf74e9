//! Servers of Kafka for the fault runs of [`group`](crate::group).

mod raw;
mod server;
mod stranger;

use std::path::Path;

use anyhow::Result;

use crate::group::life::Behind;
use crate::group::{Broker, Server, Way};

/// Apache Kafka. Members of a group agree among themselves.
#[derive(Debug)]
pub struct Kafka;

impl Broker for Kafka {
    const SCHEME: &str = "kafka";
    const REPLICATED: &str = "replicas=3&min_in_sync=2";
    // What brokers are told to take.
    const LEAST_SILENCE: u64 = 1_000;
    const LOSES_LEADERS: bool = true;
    const FORGETS: bool = true;

    fn alone(folder: &Path) -> Result<Server> {
        let mut servers = server::start(folder, 1, "")?;
        Ok(servers.remove(0))
    }

    fn reached_by(folder: &Path, ways: usize) -> Result<(Vec<Server>, Vec<Way>)> {
        server::pair(folder, ways, "")
    }

    fn cluster(folder: &Path) -> Result<Vec<Server>> {
        server::start(folder, 3, "")
    }

    fn strange(servers: &[Server], topic: &str, partitions: u32, seed: u64) -> Result<u64> {
        stranger::publish(servers, topic, partitions, seed)
    }

    fn forget(server: &Server, topic: &str) -> Result<()> {
        stranger::forget(&server.address(), topic)
    }

    fn silence(millis: u64) -> String {
        format!("session_ms={millis}")
    }
}

/// A server by itself that is to be started, and so many entrances that lead to it.
pub(crate) fn behind(folder: &Path, entrances: usize) -> Result<(Server, Vec<Behind>)> {
    server::behind(folder, entrances)
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
    const REPLICATED: &str = "replicas=3&min_in_sync=2&protocol=consumer";
    const LEAST_SILENCE: u64 = 3_000;
    const LOSES_LEADERS: bool = true;
    const FORGETS: bool = true;

    fn alone(folder: &Path) -> Result<Server> {
        let mut servers = server::start(folder, 1, DECIDING)?;
        Ok(servers.remove(0))
    }

    fn reached_by(folder: &Path, ways: usize) -> Result<(Vec<Server>, Vec<Way>)> {
        server::pair(folder, ways, DECIDING)
    }

    fn cluster(folder: &Path) -> Result<Vec<Server>> {
        server::start(folder, 3, DECIDING)
    }

    fn strange(servers: &[Server], topic: &str, partitions: u32, seed: u64) -> Result<u64> {
        stranger::publish(servers, topic, partitions, seed)
    }

    fn forget(server: &Server, topic: &str) -> Result<()> {
        stranger::forget(&server.address(), topic)
    }

    fn silence(_: u64) -> String {
        "protocol=consumer".to_owned()
    }
}
