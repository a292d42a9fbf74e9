//! The decision core of the delay service on many machines: pure code, no sockets.
//!
//! **The log decides, everything else is a copy or a directory.** Messages are split into shards by their id. Each shard
//! has a log on a broker that orders what its owner decides; what the log means is a function of its records
//! ([`apply`]), so that every reader comes to the same. There is no consensus here, and no promise rests on a clock or on a lease.
//!
//! ```
//! use bytes::Bytes;
//! use laneway_cluster::apply::{Identity, Memory, Shard, Table};
//! use laneway_cluster::owner::{Decision, Order, Reply, Request, Settings, ShardOwner, Submit};
//! use laneway_cluster::record::{Answer, Reign, RequestDigest};
//! use laneway_delay::{MessageId, Timestamp};
//!
//! let identity = Identity { cluster: "c".into(), topic: "log".into(), shard: 0, shards: 1 };
//! let mut shard = Shard::new(identity, Memory::default());
//! let mut owner = ShardOwner::new(Settings::default());
//! let now = Timestamp::from_millis(1_000);
//! let mut log = Vec::new();
//!
//! // A broker that takes everything at once, and a center that reads it back.
//! let mut run = |shard: &mut Shard<Memory>, owner: &mut ShardOwner, mut todo: Vec<Decision>| {
//!     let mut replies = Vec::new();
//!     while let Some(decision) = todo.pop() {
//!         match decision {
//!             Decision::Append(bytes) => {
//!                 let applied = shard.apply(log.len() as u64, &bytes).unwrap();
//!                 log.push(bytes.clone());
//!                 todo.extend(owner.read(shard, &bytes, &applied, now));
//!                 todo.extend(owner.flush(shard));
//!             }
//!             Decision::Reply { reply, .. } => replies.push(reply),
//!             _ => {}
//!         }
//!     }
//!     replies
//! };
//!
//! owner.assign();
//! let verified = shard.verify(None)?;
//! let announced = owner.announce(&shard, verified, Reign([7; 16]));
//! run(&mut shard, &mut owner, announced);
//!
//! let id = MessageId::new("order-4711").unwrap();
//! let submit = Submit {
//!     id: id.clone(),
//!     digest: RequestDigest([1; 32]),
//!     due: Timestamp::from_millis(60_000),
//!     at: now,
//!     topic: "reminders".into(),
//!     body: Bytes::from("{}"),
//! };
//! let mut todo = owner.request(&shard, Request::Intake { offset: 0, submit, ticket: None }, now);
//! todo.extend(owner.flush(&shard));
//! run(&mut shard, &mut owner, todo);
//!
//! let withdraw = Request::Command { ticket: 1, id: id.clone(), order: Order::Withdraw, key: None };
//! let mut todo = owner.request(&shard, withdraw, now);
//! assert!(todo.is_empty(), "nothing is promised before it is in the log");
//! todo.extend(owner.flush(&shard));
//! let replies = run(&mut shard, &mut owner, todo);
//! assert!(matches!(replies[..], [Reply::Command(Answer::Done { .. })]));
//! assert_eq!(shard.table().get(&id).unwrap().version, 2);
//! # Ok::<(), laneway_cluster::apply::Stop>(())
//! ```
//!
//! # What this is not
//!
//! It is not a service: nothing in it opens a connection, reads a clock or draws a number. The roles around it are crates of their
//! own: `laneway-center`, with `laneway-view` for rows on disk, `laneway-worker`, and `laneway-rpc` between them.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`record`] | what the log carries, and its bytes |
//! | [`apply`] | what the log means: epochs, reigns, sequences, versions, chain and digest, carry and trim |
//! | [`owner`] | the rules of a shard's owner: events in, decisions out |
//! | [`worker`] | what a worker may start |
//! | [`moving`] | messages that come from elsewhere, with all that is known of them |
//! | [`checker`] | judges a run from outside: starts, answers and the log |
//! | [`balance`] | which worker gets an attempt |
//! | [`catalog`] | what operators have set |
//! | `rules` | rules that tests can switch off, to show what happens without them |
//! | `model` | every interleaving of all of it within small bounds, in tests |
//!
//! # How it is checked
//!
//! The model runs the code of `record`, `apply`, `owner` and `worker` through every interleaving of two centers, two workers, a
//! log and clients within bounds that take about two minutes (`cargo test -p laneway-cluster`), and wider ones with
//! `LANEWAY_MODEL=full`. For each rule of [`apply`], [`owner`] and [`worker`] that an earlier draft lacked there is a test
//! `without_…` that switches it off and finds what goes wrong, and one in which the checker finds it out from outside.

pub mod apply;
pub mod balance;
pub mod catalog;
pub mod checker;
#[cfg(test)]
mod model;
pub mod moving;
pub mod owner;
pub mod record;
mod rules;
pub mod worker;

use laneway_delay::MessageId;

/// The shard of a message, of `shards` (0 counts as 1). The same hash as that of partitions, so that a shard and its partition of the intake
/// have the same number.
///
/// ```
/// use laneway_delay::MessageId;
///
/// let id = MessageId::new("order-4711").unwrap();
/// assert!(laneway_cluster::shard_of(&id, 16) < 16);
/// assert_eq!(laneway_cluster::shard_of(&id, 1), 0);
/// ```
#[must_use]
pub fn shard_of(id: &MessageId, shards: u32) -> u32 {
    laneway_lanes::fnv::fnv1a_32(id.as_str().as_bytes()) % shards.max(1)
}
