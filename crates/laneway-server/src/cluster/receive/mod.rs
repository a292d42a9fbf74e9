//! The role receive: messages in, and questions to the owners of their shards. It has no state.
//!
//! | file | what it is |
//! |---|---|
//! | `submit` | into the intake, and the verdict where a client may have sent the same before |
//! | `change` | extend, withdraw, replay, purge and look up: by the owner |
//! | `missing` | "not found", said only when the intake is read |
//! | `list` | lists over all shards |
//! | `counts` | how many messages there are, asked now and then |
//! | `digest` | ids made of keys, digests of requests |

mod change;
mod counts;
mod digest;
mod list;
mod missing;
mod submit;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use laneway::Bus;
use laneway_delay::clock::Clock;
use laneway_delay::{
    Accepted, BoxFuture, Counts, Extend, Health, Message, MessageId, Sinks, Submission, Timestamp,
    Withdraw,
};
use laneway_rpc::proto::{reply, request};
use parking_lot::Mutex;
use tokio::time::Instant;

pub(crate) use counts::keep_counting;
pub(crate) use digest::id_of_key;

use super::owners::{Owners, Replied};
use crate::messages::{Error, List, Listed, Messages};

/// How long a client waits for the owner of a shard.
const WITHIN: Duration = Duration::from_secs(5);

/// Questions to owners of one batch that are on their way at the same time.
const AT_ONCE: usize = 64;

/// What is wrong with the roles of this process.
pub(crate) type Lacks = Box<dyn Fn() -> Vec<String> + Send + Sync>;

/// Messages of a cluster.
pub(crate) struct Receive {
    /// The bus with the intake.
    pub(super) bus: Bus,
    pub(super) shards: u32,
    /// The largest record of the intake.
    pub(super) largest: usize,
    /// What checks targets. Nothing is delivered here.
    pub(super) sinks: Sinks,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) max_delay: Option<Duration>,
    pub(super) owners: Arc<Owners>,
    lacks: Lacks,
    doubts: Lacks,
    counts: Mutex<Counts>,
    is_closed: AtomicBool,
}

impl fmt::Debug for Receive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receive")
            .field("shards", &self.shards)
            .finish_non_exhaustive()
    }
}

/// What a receive needs.
pub(crate) struct Parts {
    pub(crate) bus: Bus,
    pub(crate) shards: u32,
    pub(crate) largest: usize,
    pub(crate) sinks: Sinks,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) max_delay: Option<Duration>,
    pub(crate) owners: Arc<Owners>,
    /// What keeps the roles of this process from their work.
    pub(crate) lacks: Lacks,
    /// What people should look at, although all work is done.
    pub(crate) doubts: Lacks,
}

impl Receive {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts {
            bus,
            shards,
            largest,
            sinks,
            clock,
            max_delay,
            owners,
            lacks,
            doubts,
        } = parts;
        Self {
            bus,
            shards,
            largest,
            sinks,
            clock,
            max_delay,
            owners,
            lacks,
            doubts,
            counts: Mutex::default(),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Takes nothing from now on.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    fn shard_of(&self, id: &MessageId) -> u32 {
        laneway_cluster::shard_of(id, self.shards)
    }

    /// Asks the owner of the shard of a message.
    async fn ask(&self, id: &MessageId, what: request::What) -> Result<Replied, Error> {
        let deadline = Instant::now() + WITHIN;
        Ok(self.owners.ask(self.shard_of(id), what, deadline).await?)
    }
}

/// A reply that does not fit its question: the center is of another version.
fn odd(what: &reply::What) -> Error {
    let detail = format!("the center gave an answer that is not known here: {what:?}");
    laneway_delay::Error::Unavailable(detail).into()
}

fn unreadable(invalid: &laneway_rpc::convert::Invalid) -> Error {
    let detail = format!("the answer of the center cannot be read: {invalid}");
    laneway_delay::Error::Unavailable(detail).into()
}

impl Messages for Receive {
    fn submit<'a>(
        &'a self,
        submissions: Vec<Submission>,
        request_id: Option<&'a str>,
    ) -> BoxFuture<'a, Vec<Result<Accepted, Error>>> {
        Box::pin(self.submit_all(submissions, request_id))
    }

    fn extend<'a>(
        &'a self,
        extends: Vec<(MessageId, Extend)>,
        request_id: Option<&'a str>,
    ) -> BoxFuture<'a, Vec<Result<Message, Error>>> {
        Box::pin(self.extend_all(extends, request_id))
    }

    fn withdraw<'a>(
        &'a self,
        ids: Vec<MessageId>,
        how: Withdraw,
        request_id: Option<&'a str>,
    ) -> BoxFuture<'a, Vec<Result<Message, Error>>> {
        Box::pin(self.withdraw_all(ids, how, request_id))
    }

    fn get<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Message, Error>> {
        Box::pin(self.look_up(id))
    }

    fn list<'a>(&'a self, list: &'a List) -> BoxFuture<'a, Result<Listed, Error>> {
        Box::pin(self.merged(list))
    }

    fn replay<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Accepted, Error>> {
        Box::pin(self.replay_one(id))
    }

    fn purge<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.purge_one(id))
    }

    fn purge_dead<'a>(&'a self, topic: Option<&'a str>) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(self.purge_all(topic))
    }

    fn counts(&self) -> Counts {
        self.counts.lock().clone()
    }

    /// Told by the owners, not by a receive.
    fn deaths(&self) -> u64 {
        0
    }

    fn panics(&self) -> u64 {
        0
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn report(&self) -> Health {
        let mut health = Health::default();
        health.clock_ahead = self.clock.distrusted();
        if self.is_closed() {
            health.refuses = Some(laneway_delay::Error::Closed);
        }
        health
    }

    fn lacks(&self) -> Vec<String> {
        (self.lacks)()
    }

    fn doubts(&self) -> Vec<String> {
        (self.doubts)()
    }
}
