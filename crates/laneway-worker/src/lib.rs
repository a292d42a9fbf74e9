//! The role worker: it starts what the log says has begun, and keeps outcomes until they are logged.
//!
//! A center gives a worker the *go* for an attempt once the log says that it has begun. The worker waits for the moment, delivers
//! the message, and tells how that ended until an owner of the shard, this one or the next, says that it is in the log.
//! What may be started decides [`laneway_cluster::worker::Attempts`], the fence; waiting and delivering is the engine of
//! [`laneway_delay`], so that slots per host, circuits and budgets are the same as on one machine. This crate is the shell around both.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use laneway_cluster::record::Instance;
//! use laneway_delay::{BoxFuture, Deliver, Firing, Sinks, Undelivered};
//! use laneway_rpc::connection::pair;
//! use laneway_rpc::proto::{self, ToWorker, to_center, to_worker};
//! use laneway_worker::{Options, Worker};
//!
//! struct Print;
//!
//! impl Deliver for Print {
//!     fn deliver(&self, firing: Firing) -> BoxFuture<'_, Result<(), Undelivered>> {
//!         println!("attempt {} of {}", firing.attempt(), firing.message.id);
//!         Box::pin(std::future::ready(Ok(())))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let sinks = Sinks { callbacks: Some(Arc::new(Print)), ..Sinks::default() };
//! let worker = Worker::start(Options::new("shop", Instance([1; 16]), "worker-1", sinks))?;
//!
//! // A center within this process. Over gRPC it is the same.
//! let (mut center, connection) = pair(64);
//! worker.serve(connection);
//! let send = |frame| center.sender.try_send(ToWorker { frame: Some(frame) });
//! let callback = proto::Callback {
//!     url: "http://localhost/".into(),
//!     method: "POST".into(),
//!     ..Default::default()
//! };
//! let target = Some(proto::content::Target::Callback(callback));
//! send(to_worker::Frame::Go(proto::Go {
//!     shard: 3,
//!     epoch: 1,
//!     id: "order-4711".into(),
//!     attempt: 1,
//!     topic: "reminders".into(),
//!     content: Some(proto::Content { target, ..Default::default() }),
//!     ..Default::default()
//! }))?;
//! let outcome = loop {
//!     let frame = center.receiver.recv().await.and_then(|frame| frame.frame);
//!     if let to_center::Frame::Outcome(outcome) = frame.ok_or("it is connected")? {
//!         break outcome;
//!     }
//! };
//! assert_eq!(outcome.id, "order-4711");
//! assert_eq!(worker.stats().unlogged, 1);
//!
//! send(to_worker::Frame::Logged(proto::Logged { shard: 3, id: outcome.id, attempt: 1 }))?;
//! assert!(worker.drain(Duration::from_secs(10)).await.is_clean());
//! # Ok(())
//! # }
//! ```
//!
//! # What this is not
//!
//! It has no store: whatever it has can be lost with its process, and the owner begins anew. It makes no further attempts: what
//! comes after a failure is decided by the owner. It listens on no socket: connections are handed to it.
//!
//! # What is bounded
//!
//! | what | by |
//! |---|---|
//! | attempts of a connection that wait, run, or have an outcome that is not logged | the credit that was granted |
//! | bytes of payloads | no credit while above the bound; what comes nevertheless is handed back |
//! | how late an attempt is started | START: afterwards it is handed back, whether the process was frozen or its destination was busy |
//! | attempts that wait for a destination which hangs or rests | the first 256; the others are handed back |
//! | frames that wait for a center | a center that does not read loses its connection |
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `worker` | [`Worker`]: starts, serves, drains |
//! | `options` | how it works |
//! | `ledger` | what it knows of its attempts, and whom it has to tell what |
//! | `shared` | the ledger and the time, as all parts have them |
//! | `held` | the ledger as the store of the engine |
//! | `sinks` | the fence before the sinks |
//! | `serve` | one connection to a center |
//! | `load` | how busy the machine is |
//! | `stats` | figures |

#![forbid(unsafe_code)]

mod held;
mod ledger;
mod load;
mod options;
mod serve;
mod shared;
mod sinks;
mod stats;
mod worker;

pub use options::{Counter, Options};
pub use stats::{Stats, TopicStats};
pub use worker::{Drained, Worker};
