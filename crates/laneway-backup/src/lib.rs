//! The backup of shards in Redis. It answers which worker was handed what, and lets a center without a view begin where the
//! copy is, instead of at the start of the log.
//!
//! **Nothing is decided by it.** The log decides; what is here is a copy, written behind the decisions, that may be late, gone or old. So
//! nothing waits for Redis: changes are buffered, and when that is too much they are dropped, and the copy is filled anew later.
//! A copy is used only if it is whole, of the very log that is asked for, and has exactly the rows of its head; and then only if the log
//! still has the record where it ends, which the caller compares.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use laneway_backup::{Backup, RedisOptions, Rows};
//! use laneway_cluster::apply::{Identity, Memory, Shard, Table};
//!
//! # async fn example(last: Option<bytes::Bytes>) -> Result<(), Box<dyn std::error::Error>> {
//! let backup = Backup::open(RedisOptions::new("redis://127.0.0.1:6379")?)?;
//! let identity = Identity { cluster: "c".into(), topic: "log".into(), shard: 0, shards: 1 };
//!
//! // A center without a view.
//! let mut table = Memory::default();
//! let restored = backup.restore(&identity, |_, page| {
//!     for (id, row) in page {
//!         table.put(&id, row);
//!     }
//!     true
//! });
//! let shard = match restored.await {
//!     Ok(head) => Shard::resume(head, table)?,
//!     Err(_) => Shard::new(identity.clone(), Memory::default()),
//! };
//! // The record in front of `shard.head().next`, as the log has it.
//! shard.verify(last.as_ref())?;
//!
//! // The owner.
//! let rows = shard.table().clone();
//! let copy = backup.shard(identity, Rows::new(move |after, limit| Some(rows.page(after, limit))));
//! copy.note(Vec::new(), shard.head());
//! # Ok(())
//! # }
//! ```
//!
//! # What is where
//!
//! | key | what it has |
//! |---|---|
//! | `<cluster>:{<shard>}:meta` | epoch, applied, hash, count, digest, format, identity, head, and where the copy is |
//! | `…:row` | ids with their rows |
//! | `…:due` | scheduled ids by the time of the next attempt |
//! | `…:with` | ids with the worker that was handed them |
//! | `…:at:<worker>` | what a worker was handed, by due time |
//! | `…:workers` | the workers that have something |
//!
//! The keys of a shard have one hash tag, so that they are in one slot of a Redis Cluster. Other keys are not touched. One script
//! writes all of them, and refuses an epoch below the one that wrote last, and what does not begin where the copy is. (An owner that
//! is refused for a minute, and still owns, takes the copy all the same: the log may have gone back, and its epochs with it.) It also
//! counts: rows that were evicted are noticed by the next write, or within about a second, and the copy is filled anew.
//! `maxmemory-policy noeviction` is the right setting all the same.
//!
//! # What this is not
//!
//! No store, no lock and no queue: claims, answers and epochs are never read from it. Redis replicates asynchronously, and what
//! is kept there rolls back with it.
//!
//! # Layout
//!
//! | file | what it is |
//! |---|---|
//! | `backup` | the entry |
//! | `shard` | the copy of a shard: written, looked at, filled anew |
//! | `buffer` | what waits to be written |
//! | `rows` | where a copy is filled from |
//! | `script` | the one script, and what it is given |
//! | `restore` | reads a copy, and finds out whether it is whole |
//! | `questions` | which worker was handed what |
//! | `look` | what a Redis says of itself |
//! | `connection` | Redis, one or a cluster; every wait has an end |
//! | `keys` | where things are |
//! | `options` | how Redis is reached |
//! | `error` | what can go wrong |

#![forbid(unsafe_code)]

mod backup;
mod buffer;
mod connection;
mod error;
mod keys;
mod look;
mod options;
mod questions;
mod restore;
mod rows;
mod script;
mod shard;

pub use backup::{Backup, Stats};
pub use error::Error;
pub use look::Look;
pub use options::RedisOptions;
pub use questions::{Questions, ShardCounts};
pub use restore::Unused;
pub use rows::{Changed, Row, Rows};
pub use shard::ShardBackup;
