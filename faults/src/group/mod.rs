//! Faults of a bus that processes share: servers are killed, processes are killed and frozen, members
//! come and go. The same for every broker that has servers.
//!
//! Every run has servers of its own. One process publishes, others are members of a group and handle;
//! all of them write down what they do in one history, which is judged in the end.
//!
//! # Layout
//!
//! - `child`: what the processes do
//! - `stage`: the servers, the processes and their history, all together
//! - `story`: the history, as it is to be judged
//! - [`servers`], [`clients`], [`freeze`], [`members`], [`cluster`]: the fault runs

pub mod child;
pub mod clients;
pub mod cluster;
pub mod freeze;
pub mod members;
pub mod servers;

mod stage;
mod story;

use std::net::TcpListener;
use std::path::Path;

use anyhow::{Context, Result};

/// A broker that has servers.
pub trait Broker {
    /// What its addresses begin with.
    const SCHEME: &str;
    /// The setting that keeps everything on three servers.
    const REPLICATED: &str;
    /// One of its servers.
    type Server: Server;

    /// A server by itself.
    ///
    /// # Errors
    /// If it cannot be had, or does not start.
    fn alone(folder: &Path) -> Result<Self::Server>;

    /// Three servers that replicate.
    ///
    /// # Errors
    /// If they cannot be had, or do not start.
    fn cluster(folder: &Path) -> Result<Vec<Self::Server>>;

    /// The setting for how long a member may be silent, in milliseconds.
    fn silence(millis: u64) -> String;
}

/// A server that can be killed and started again, with what it had stored. Dropped, it is killed.
pub trait Server {
    /// What people call it.
    fn name(&self) -> &str;

    /// `host:port`.
    fn address(&self) -> String;

    /// Starts it, and waits until it answers.
    ///
    /// # Errors
    /// If it does not.
    fn start(&mut self) -> Result<()>;

    /// Kills it with signal 9.
    ///
    /// # Errors
    /// If it does not run.
    fn kill(&mut self) -> Result<()>;
}

/// Ports that nobody has right now.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    // All at once: a port that is given back may be given out again.
    let mut listeners = Vec::new();
    for _ in 0..N {
        listeners.push(TcpListener::bind(("127.0.0.1", 0)).context("no free port")?);
    }
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}
