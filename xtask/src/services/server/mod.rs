//! How each server is found or fetched, configured and started.

mod kafka;
mod nats;
mod nginx;
pub(crate) mod program;
mod redis;
mod zookeeper;

use std::path::PathBuf;

use super::Service;
use super::site::Site;

/// A service whose processes run, though they may not answer yet.
#[derive(Debug)]
pub(crate) struct Built {
    /// What the tests are to connect to.
    pub(crate) address: String,
    /// Set where the server itself does not tell.
    pub(crate) version: Option<String>,
    /// The program, where tests start instances of their own.
    pub(crate) program: Option<PathBuf>,
}

/// Finds or fetches the program and starts it.
pub(crate) fn build(site: &Site<'_>) -> anyhow::Result<Built> {
    match site.service {
        Service::Kafka => kafka::build(site),
        Service::Nats => nats::build(site),
        Service::Redis => redis::build(site),
        Service::Zookeeper => zookeeper::build(site),
        Service::Nginx => nginx::build(site),
        Service::Chromium => program::CHROMIUM.build(site),
        Service::Kcat => program::KCAT.build(site),
    }
}
