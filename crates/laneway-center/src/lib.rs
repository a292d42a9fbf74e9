//! The role center: owns shards of delayed messages, decides in their logs, and gives attempts to workers.
//!
//! The pure core decides (`laneway_cluster`: what a log means, and the rules of an owner). This crate is the shell around
//! it: a task for each shard that reads the log into a view, takes what comes from the intake, from callers and from
//! workers, and does what the core decides. Whatever it promises has been read back from the log.
//!
//! ```no_run
//! use std::sync::Arc;
//! use laneway::Bus;
//! use laneway_center::{Center, Connect, DefaultTopics, Options, Settings};
//! use laneway_cluster::record::Instance;
//! use laneway_delay::clock::SystemClock;
//! use laneway_registry::Registry;
//!
//! # async fn start(connector: Arc<dyn Connect>) -> Result<(), Box<dyn std::error::Error>> {
//! let bus = Bus::open("nats://127.0.0.1:4222").await?;
//! let center = Center::start(Options {
//!     cluster: "shop".to_owned(),
//!     instance: Instance([7; 16]),
//!     name: "center-a".to_owned(),
//!     log: bus.log("laneway.delay.log", 16).await?,
//!     bus,
//!     directory: "/var/lib/laneway/views".into(),
//!     registry: Registry::local(),
//!     connector,
//!     clock: Arc::new(SystemClock::default()),
//!     topics: Arc::new(DefaultTopics),
//!     backup: None,
//!     settings: Settings::default(),
//! })
//! .await?;
//! center.stop(std::time::Duration::from_secs(10)).await;
//! # Ok(())
//! # }
//! ```
//!
//! # What this is not
//!
//! It opens no ports: streams to workers come from a [`Connect`], and calls come in over
//! [`CenterCalls`](laneway_rpc::CenterCalls). It delivers nothing: workers do. It elects no owner: the group of the intake
//! says who tries, and the log of a shard who owns it.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `center` | [`Center`]: all tasks, started and stopped |
//! | `options` | [`Options`], [`Settings`], [`Topics`] |
//! | `shard` | one shard: its view, its owner's rules, and everything that they wait for |
//! | `workers` | the workers of the cluster: streams, pings, credit, which one is next |
//! | `intake` | submits on their way in |
//! | `calls` | commands, look-ups and lists of other roles |
//! | `log` | the log of the shards, as far as it is needed here |
//! | `read` | [`read_shard`]: a shard for programs that are not a center |
//! | `rows` | the view of a shard, and which rows have changed |
//! | `backup` | [`BackupStats`]: how far the copies of owned shards are |
//! | `near` | what is due soon |
//! | `clocks` | how the clocks of the machines differ |
//! | `crashes` | how often a shard has crashed |
//! | `shared` | what the tasks share |
//! | `stats` | [`CenterStats`]: what was done |

#![forbid(unsafe_code)]

mod backup;
mod calls;
mod center;
mod clocks;
mod crashes;
mod intake;
mod log;
mod near;
mod options;
mod read;
mod rows;
mod shard;
mod shared;
mod stats;
#[cfg(test)]
mod tests;
mod workers;

pub use backup::BackupStats;
pub use center::{Center, Error};
pub use intake::{INTAKE_GROUP, INTAKE_TYPE};
pub use options::{DefaultTopics, Options, Settings, Topics};
pub use read::{ReadError, read_shard};
pub use stats::CenterStats;
pub use workers::{Connect, ConnectError};
