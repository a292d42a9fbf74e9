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
//! - `server`: a server that can be killed
//! - `story`: the history, as it is to be judged
//! - [`servers`], [`clients`], [`freeze`], [`members`], [`cluster`], [`poison`]: the fault runs

pub mod child;
pub mod clients;
pub mod cluster;
pub mod freeze;
pub mod members;
pub mod poison;
pub mod servers;

pub(crate) mod server;
mod stage;
mod story;

use std::path::Path;

use anyhow::Result;

pub use self::server::Server;

/// A broker that has servers.
pub trait Broker {
    /// What its addresses begin with.
    const SCHEME: &str;
    /// The setting that keeps everything on three servers.
    const REPLICATED: &str;
    /// Members may not be silent for less, in milliseconds.
    const LEAST_SILENCE: u64;

    /// A server by itself.
    ///
    /// # Errors
    /// If it cannot be had, or does not start.
    fn alone(folder: &Path) -> Result<Server>;

    /// Three servers that replicate.
    ///
    /// # Errors
    /// If they cannot be had, or do not start.
    fn cluster(folder: &Path) -> Result<Vec<Server>>;

    /// The setting for how long a member may be silent, in milliseconds, [`Self::LEAST_SILENCE`] or more.
    fn silence(millis: u64) -> String;
}
