//! Faults of the bus on NATS: servers are killed, processes are killed and frozen, members come and
//! go.
//!
//! Every run has servers of its own. One process publishes, others are members of a group and handle;
//! all of them write down what they do in one history, which is judged in the end.
//!
//! # Layout
//!
//! - `server`: servers that can be killed and started again
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

mod server;
mod stage;
mod story;
