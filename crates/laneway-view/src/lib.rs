//! The view that a center has of a shard: the rows of its log on local disk, as of some offset.
//!
//! A view can be thrown away, for the log has everything. So nothing is synced. But it is never half written: [`View::commit`] writes
//! all rows that were changed, their indexes and the head of the shard in one batch, and a view that was damaged is told
//! apart and set aside.
//!
//! ```
//! use laneway_cluster::apply::{Identity, Shard, Table};
//! use laneway_delay::{MessageId, StateName, Timestamp};
//! use laneway_view::{ListQuery, View};
//!
//! # let directory = tempfile::tempdir()?;
//! # let directory = directory.path().join("0");
//! let identity = Identity { cluster: "c".into(), topic: "log".into(), shard: 0, shards: 1 };
//! let (view, head) = View::open(&directory, &identity)?;
//! let shard = match head {
//!     Some(head) => Shard::resume(head, view)?,
//!     None => Shard::new(identity.clone(), view),
//! };
//!
//! // Here the records of the log are applied, and after each of them:
//! assert!(shard.table().failure().is_none());
//!
//! // Now and then.
//! shard.table().commit(shard.head())?;
//!
//! // Other tasks read meanwhile.
//! let reader = shard.table().reader();
//! assert_eq!(reader.get(&MessageId::new("order-4711")?)?, None);
//! assert!(reader.due(None, Timestamp::from_millis(1_000), 100)?.is_empty());
//! assert!(reader.list(&ListQuery::new(StateName::Dead))?.rows.is_empty());
//!
//! drop(shard);
//! let (_, head) = View::open(&directory, &identity)?;
//! assert_eq!(head.unwrap().next, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What this is not
//!
//! It decides nothing, and is no truth: what a record means is up to `laneway_cluster::apply`, and a row that is here and not in the log is
//! wrong. Nothing in it is async: calls block for as long as the disk takes.
//!
//! # Layout
//!
//! | file | what it is |
//! |---|---|
//! | `view` | the view, as the task of its shard has it, and its readers |
//! | `state` | what both share: the overlay first, then the disk |
//! | `overlay` | what was changed since the last commit |
//! | `engine` | fjall below it, and opening it |
//! | `keys`, `row` | what is stored |
//! | `query` | what lists are asked for, and their pages |
//! | `aside` | setting aside what cannot be used |
//! | `error` | what can go wrong |

#![forbid(unsafe_code)]

mod aside;
mod engine;
mod error;
mod keys;
mod overlay;
mod query;
mod row;
mod state;
mod view;

pub use aside::set_aside;
pub use error::Error;
pub use query::{ListQuery, Page};
pub use view::{View, ViewReader};
