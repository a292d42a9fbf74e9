//! Faults of a bus that processes share: servers are killed, processes are killed and frozen, members
//! come and go. The same for every broker that has servers.
//!
//! Every run has servers of its own. One process publishes, others are members of a group and handle;
//! all of them write down what they do in one history, which is judged in the end.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `child` | what the processes do |
//! | `stage` | the servers, the processes and their history, all together |
//! | `server` | a server that can be killed |
//! | `story` | the history, as it is to be judged |
//! | [`servers`], [`clients`], [`freeze`], [`members`], [`cluster`], [`poison`], [`life`] | the fault runs |

pub mod child;
pub mod clients;
pub mod cluster;
pub mod freeze;
pub mod life;
pub mod members;
pub mod poison;
pub mod servers;

pub(crate) mod server;
mod stage;
mod story;

use std::path::Path;

use anyhow::Result;

pub use self::life::Way;
pub use self::server::Server;

/// A broker that has servers.
pub trait Broker {
    /// What its addresses begin with.
    const SCHEME: &str;
    /// The setting that keeps everything on three servers.
    const REPLICATED: &str;
    /// Members may not be silent for less, in milliseconds.
    const LEAST_SILENCE: u64;
    /// Whether partitions can be without a leader while others have one.
    const LOSES_LEADERS: bool;
    /// Whether it forgets groups that are idle for long.
    const FORGETS: bool;

    /// A server by itself.
    ///
    /// # Errors
    /// If it cannot be had, or does not start.
    fn alone(folder: &Path) -> Result<Server>;

    /// Servers that are not started yet, and so many ways to reach them that can be cut: one server; or two, if
    /// partitions can [lose their leaders](Self::LOSES_LEADERS), that keep one copy of everything. The first one has to be
    /// started alone.
    ///
    /// # Errors
    /// If they cannot be had.
    fn reached_by(folder: &Path, ways: usize) -> Result<(Vec<Server>, Vec<Way>)>;

    /// Three servers that replicate.
    ///
    /// # Errors
    /// If they cannot be had, or do not start.
    fn cluster(folder: &Path) -> Result<Vec<Server>>;

    /// Publishes to a topic what is no event, as a stranger with tools of his own does: how many of them.
    ///
    /// # Errors
    /// If the server does not take them.
    fn strange(servers: &[Server], topic: &str, partitions: u32, seed: u64) -> Result<u64>;

    /// Forgets what the group has settled, as brokers that [`FORGET`](Self::FORGETS) do; nobody is a member now.
    ///
    /// # Errors
    /// If it does not.
    fn forget(server: &Server, topic: &str) -> Result<()>;

    /// The setting for how long a member may be silent, in milliseconds, [`Self::LEAST_SILENCE`] or more.
    fn silence(millis: u64) -> String;
}
