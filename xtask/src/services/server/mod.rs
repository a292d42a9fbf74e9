//! How each server is found or fetched, configured and started.

pub(crate) mod chromium;
mod kafka;
mod nats;
mod nginx;
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
        Service::Chromium => chromium::build(site),
    }
}
