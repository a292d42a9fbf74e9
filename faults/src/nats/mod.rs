//! Servers of NATS for the fault runs of [`group`](crate::group).

mod server;
mod stranger;

use std::path::Path;

use anyhow::Result;

use crate::group::life::{Behind, Entrance};
use crate::group::{Broker, Server, Way};

/// NATS `JetStream`.
#[derive(Debug)]
pub struct Nats;

impl Broker for Nats {
    const SCHEME: &str = "nats";
    const REPLICATED: &str = "replicas=3";
    const LEAST_SILENCE: u64 = 1;
    const LOSES_LEADERS: bool = false;
    const FORGETS: bool = false;

    fn alone(folder: &Path) -> Result<Server> {
        server::alone(folder)
    }

    fn reached_by(folder: &Path, ways: usize) -> Result<(Vec<Server>, Vec<Way>)> {
        let server = server::not_started(folder)?;
        let ways = (0..ways).map(|_| Way::open(vec![(Entrance::new()?, server.address())]));
        let ways = ways.collect::<Result<_>>()?;
        Ok((vec![server], ways))
    }

    fn cluster(folder: &Path) -> Result<Vec<Server>> {
        server::cluster(folder)
    }

    fn strange(servers: &[Server], topic: &str, partitions: u32, seed: u64) -> Result<u64> {
        stranger::publish(servers[0].port(), topic, partitions, seed)
    }

    fn forget(_: &Server, _: &str) -> Result<()> {
        Ok(())
    }

    fn silence(millis: u64) -> String {
        format!("session_ms={millis}")
    }
}

/// A server by itself that is to be started, and so many entrances that lead to it.
pub(crate) fn behind(folder: &Path, entrances: usize) -> Result<(Server, Vec<Behind>)> {
    let server = server::not_started(folder)?;
    let entrances = (0..entrances).map(|_| Ok((Entrance::new()?, server.address())));
    let entrances = entrances.collect::<Result<_>>()?;
    Ok((server, entrances))
}
