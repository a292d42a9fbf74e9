//! Brokers: where records live, and the one trait that the bus knows them by.
//!
//! # The words
//!
//! A *topic* has partitions; a *partition* is a sequence of records, numbered by increasing
//! *offsets* (dense on the embedded brokers, with gaps on others). A *group* reads a topic and has
//! for every partition a [`Position`]: what it has settled.
//!
//! - **Published** means that [`Broker::publish`] resolved. The record is then as safe as its topic
//!   promises: for [`Storage::File`](crate::topic::Storage::File) it survives a crash of the process
//!   and of the machine.
//! - **Read** means that [`Reader::next`] returned it. That promises nothing: after a crash the group
//!   goes on from its committed position.
//! - **Committed** means that [`Assignment::commit`] resolved. The next owner of the partition starts
//!   there. Commits of one partition never go backwards; an older one that arrives late must be
//!   ignored.
//!
//! # What a broker must hold
//!
//! 1. Records of one partition are read in the order in which they were published.
//! 2. A record that is published is read by every group, unless retention removed it before.
//! 3. A record is not read before it is published: no handler may act on what a crash can take back.
//! 4. At most one [`Assignment`] per group and partition at a time, as far as its owner can know: see
//!    [`lease`]. What an earlier owner commits late must have no effect.
//!
//! Everything else (lanes, retries, dead letters, what is settled when) is the bus's and is the same
//! on all of them.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `embedded` | brokers in this process: `memory:` and `file:` |
//! | `kafka`, `nats` | brokers on servers |
//! | `remote` | what brokers on servers share: the parts of a server, behind [`Broker`] |
//! | `member` | a member of a group on a server: from joining to leaving |
//! | `topic_cache` | the topics of a server that are known here |
//! | `options`, `address` | settings of both servers, and how they are read from an address |
//! | `lease`, `ownership` | how long a partition is ours; the state machine of held, draining, released and lost |
//! | `subscriptions` | one subscription per topic and group in a process |
//! | `log` | partitions as logs of raw records (feature `log`) |
//! | `log_limiter` | log lines of a storm: some in a row, then one now and then |

#[cfg(feature = "metrics")]
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "metrics")]
use crate::exposition::Page;
use crate::record::{Delivered, Record};
use crate::settle::Position;
use crate::topic::{Growth, Partitions, ReconcileError, Strategy, Topic, TopicName};

#[cfg(any(feature = "kafka", feature = "nats"))]
mod address;
pub(crate) mod embedded;
#[cfg(feature = "kafka")]
pub(crate) mod kafka;
pub(crate) mod lease;
#[cfg(feature = "log")]
pub(crate) mod log;
#[cfg(any(feature = "kafka", feature = "nats"))]
mod log_limiter;
#[cfg(any(feature = "kafka", feature = "nats"))]
pub(crate) mod member;
#[cfg(feature = "nats")]
pub(crate) mod nats;
#[cfg(any(feature = "kafka", feature = "nats"))]
pub(crate) mod options;
pub(crate) mod ownership;
#[cfg(any(feature = "kafka", feature = "nats"))]
pub(crate) mod remote;
pub(crate) mod subscriptions;
#[cfg(any(feature = "kafka", feature = "nats"))]
mod topic_cache;

use lease::Lease;
#[cfg(any(feature = "kafka", feature = "nats"))]
use options::BrokerOptionsError;
use subscriptions::{SubscriptionGuard, Subscriptions};

/// A future in a box: the trait is used as an object.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Why a broker could not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// The topic does not exist.
    #[error("topic {0} does not exist: declare it, or publish to it or subscribe to it first")]
    UnknownTopic(TopicName),
    /// What is declared and what exists do not agree.
    #[error(transparent)]
    Topic(#[from] ReconcileError),
    /// Another process has the directory.
    #[error("{directory} is in use by another process: stop it, or choose another directory")]
    InUse {
        /// The directory.
        directory: String,
    },
    /// The disk is full. Nothing was lost; it goes on when there is space.
    #[error("no space left in {directory}: free some, publishing goes on by itself")]
    DiskFull {
        /// The directory.
        directory: String,
    },
    /// Stored bytes are not what was written.
    #[error("{what} is damaged: {detail}. Restore the directory from a copy")]
    Damaged {
        /// The file or row that is damaged.
        what: String,
        /// In what way.
        detail: String,
    },
    /// Another version of this program made the directory. Nothing is wrong with it.
    #[error(
        "{what} is of format {found:?}, and this program reads {supported:?}: open it with a version that reads {found:?}"
    )]
    Format {
        /// Which directory.
        what: String,
        /// The format that it has: a name and a version.
        found: String,
        /// The format that this program reads.
        supported: String,
    },
    /// Writing to stable storage failed. Nothing more is accepted: what is on the
    /// disk after a failed fsync is known only when it is read again.
    #[error(
        "the disk failed ({0}): nothing is accepted any more; restart to recover what was acknowledged"
    )]
    Poisoned(String),
    /// Anything else that the operating system says.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// What went wrong.
        source: std::io::Error,
    },
    /// The group reads the topic already.
    #[error(
        "group {group} already reads {topic}: close that subscription first, or use another group"
    )]
    AlreadyJoined {
        /// The topic.
        topic: TopicName,
        /// The group.
        group: String,
    },
    /// A group reads the topic, and would not survive what is asked for.
    #[error("group {group} reads {topic}: close that subscription first")]
    InUseBy {
        /// The topic.
        topic: TopicName,
        /// The group.
        group: String,
    },
    /// The topic has another shape than when it was last looked at. Nothing was published.
    #[error(
        "topic {topic} has {now} partitions now, and was changed or made anew meanwhile: publish again"
    )]
    Reshaped {
        /// The topic.
        topic: TopicName,
        /// How many partitions it has.
        now: u32,
    },
    /// Other members of the group have another session time-out.
    #[error(
        "group {group} at {topic} has members with session_ms={theirs}, and this one has session_ms={ours}: give \
         all of them the same. To change it while they run, start each with session_ms={ours} and \
         session_before_ms={theirs}",
        theirs = .theirs.as_millis(), ours = .ours.as_millis()
    )]
    OtherSession {
        /// The topic.
        topic: TopicName,
        /// The group.
        group: String,
        /// That of this process.
        ours: Duration,
        /// That of the others.
        theirs: Duration,
    },
    /// Another process has the partition now.
    #[error("partition {partition} of {topic} is with another member of the group now")]
    NotOurs {
        /// The topic.
        topic: TopicName,
        /// The partition.
        partition: u32,
    },
    /// The options for a broker on servers cannot be meant.
    #[cfg(any(feature = "kafka", feature = "nats"))]
    #[error(transparent)]
    Options(#[from] BrokerOptionsError),
    /// A server did not do what it was asked, or could not be asked.
    #[error("{doing} at {server} failed: {detail}")]
    Server {
        /// The servers.
        server: String,
        /// What was being done.
        doing: &'static str,
        /// What went wrong.
        detail: String,
    },
    /// A record is larger than the server takes.
    #[error(
        "a record of {size} bytes is more than the {most} that the server takes: make it smaller, or raise the limit there"
    )]
    TooLarge {
        /// About how large it is.
        size: usize,
        /// The most that the server takes.
        most: usize,
    },
    /// A record has a key that the broker has no way to write.
    #[error("key {key:?} cannot be in a subject of {topic}: choose another one")]
    Key {
        /// The topic.
        topic: TopicName,
        /// The key.
        key: String,
    },
    /// The topic is declared with something that this broker does not have.
    #[error(
        "topic {topic} is declared with {what}, which this broker does not have: declare {instead}"
    )]
    Unsupported {
        /// The topic.
        topic: TopicName,
        /// What it is declared with.
        what: String,
        /// What there is.
        instead: &'static str,
    },
    /// The topic is something on the server that Laneway did not make.
    #[error(
        "topic {topic} is {what}, which Laneway did not make: change it with the tools that did"
    )]
    Foreign {
        /// The topic.
        topic: TopicName,
        /// What it is on the server.
        what: String,
    },
    /// A log is not what its reader or writer takes it for.
    #[cfg(feature = "log")]
    #[error(transparent)]
    Log(#[from] log::Fault),
    /// The task that is a member of the group ended, by a bug.
    #[error("the member of the group ended unexpectedly: {0}")]
    Broken(String),
    /// The broker is closed.
    #[error("the bus is closed")]
    Closed,
}

/// Where a group starts in a partition that it has no position for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Start {
    /// At the oldest record that is there.
    #[default]
    Earliest,
    /// At what is published from now on.
    Latest,
}

/// How far a group is behind in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lag {
    /// The partition.
    pub partition: u32,
    /// Records that are not settled.
    pub records: u64,
    /// How old the oldest unsettled one is.
    pub oldest: Option<Duration>,
}

/// Where records are that were published together, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Offsets {
    /// One after the other, from here on.
    From(u64),
    /// Each at its own place.
    #[cfg_attr(
        not(any(feature = "kafka", feature = "nats")),
        expect(dead_code, reason = "the embedded brokers have dense offsets")
    )]
    Each(Vec<u64>),
}

impl Offsets {
    /// Where the record at this place among them is.
    pub(crate) fn at(&self, index: usize) -> u64 {
        match self {
            Self::From(first) => first + index as u64,
            Self::Each(offsets) => offsets.get(index).copied().unwrap_or_default(),
        }
    }
}

/// A broker. See the [module](self) for what it must hold.
pub(crate) trait Broker: Send + Sync + 'static {
    /// Whether others read its records with tools of their own, and look for headers.
    fn is_shared(&self) -> bool {
        false
    }

    /// The largest record that it takes, about, if it has a limit that is known here.
    #[cfg_attr(
        not(any(feature = "delay", feature = "log")),
        expect(dead_code, reason = "asked before an event is delayed")
    )]
    fn largest(&self) -> Option<usize> {
        None
    }

    /// How many partitions a topic had when it was last looked at, if it was: a publisher must not
    /// choose a partition by an older number.
    fn partitions(&self, _topic: &TopicName) -> Option<Partitions> {
        None
    }

    /// Creates, changes or checks a topic as the strategy says; answers it as it is then.
    fn declare<'a>(
        &'a self,
        topic: &'a Topic,
        strategy: Strategy,
        growth: Growth,
    ) -> BoxFuture<'a, Result<Topic, BrokerError>>;

    /// The topic as it is, if it exists.
    fn describe<'a>(
        &'a self,
        topic: &'a TopicName,
    ) -> BoxFuture<'a, Result<Option<Topic>, BrokerError>>;

    /// All topics.
    fn topics(&self) -> BoxFuture<'_, Result<Vec<Topic>, BrokerError>>;

    /// Removes a topic, its records and the positions of its groups. Refused while a group reads it.
    fn delete<'a>(&'a self, topic: &'a TopicName) -> BoxFuture<'a, Result<(), BrokerError>>;

    /// Appends records to one partition, in order; answers where they are.
    ///
    /// A caller may give up. The records are then published or not; if they are, they are read like
    /// any others.
    fn publish<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        records: Vec<Record>,
    ) -> BoxFuture<'a, Result<Offsets, BrokerError>>;

    /// Reads a topic for a group, as one of its members. `start` counts for a group that has never
    /// read the topic; one that has starts at the oldest record in a partition that is new to it.
    fn join<'a>(
        &'a self,
        topic: &'a TopicName,
        group: &'a str,
        start: Start,
    ) -> BoxFuture<'a, Result<Box<dyn Member>, BrokerError>>;

    /// What a group has settled in a partition; `None` if it has never committed there.
    fn position<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Option<Position>, BrokerError>>;

    /// Adds to what a group without members has settled: the bus keeps its books that way.
    fn settle<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        group: &'a str,
        position: Position,
    ) -> BoxFuture<'a, Result<(), BrokerError>>;

    /// Reads records without a group, for lists of dead letters and the like.
    fn peek<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        from: u64,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Delivered>, BrokerError>>;

    /// Reads records again that a reader has had: those in the range, up to `most` of them, in order and with
    /// none left out between two. Whatever copy is nearest may answer; what is missing at the end may be there
    /// all the same, which [`peek`](Self::peek) knows.
    fn reread<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        range: Range<u64>,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Delivered>, BrokerError>> {
        self.peek(topic, partition, range.start, most)
    }

    /// What it does for [`crate::log`].
    #[cfg(feature = "log")]
    fn logs(&self) -> &dyn log::Logs;

    /// How far a group is behind.
    fn lag<'a>(
        &'a self,
        topic: &'a TopicName,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Lag>, BrokerError>>;

    /// Whether it can do its work now.
    fn health(&self) -> BoxFuture<'_, Result<(), BrokerError>>;

    /// Writes figures of its own for Prometheus.
    #[cfg(feature = "metrics")]
    fn write_metrics(&self, _page: &mut Page<'_>) -> fmt::Result {
        Ok(())
    }

    /// Finishes what is under way and lets go.
    fn close(&self) -> BoxFuture<'_, Result<(), BrokerError>>;
}

/// A guard for a group that joins a topic in this process, or the error that it reads it already.
pub(crate) fn subscribe_once(
    subscriptions: &Subscriptions,
    topic: &TopicName,
    group: &str,
) -> Result<SubscriptionGuard, BrokerError> {
    let guard = subscriptions.acquire(topic, group);
    guard.ok_or_else(|| BrokerError::AlreadyJoined {
        topic: topic.clone(),
        group: group.to_owned(),
    })
}

/// A member of a group. Dropped, it is gone without a word, as after a crash.
pub(crate) trait Member: Send {
    /// The next partition that becomes ours; waits for one. Those that are ours from the beginning
    /// are there at once. May be dropped and called again.
    fn next(&mut self) -> BoxFuture<'_, Result<Arc<dyn Assignment>, BrokerError>>;

    /// Leaves the group. All assignments have been released.
    fn leave(self: Box<Self>) -> BoxFuture<'static, ()>;
}

/// A partition that is ours, for as long as its [`lease`](Self::lease) says.
pub(crate) trait Assignment: Send + Sync {
    fn partition(&self) -> u32;

    /// Counts the owners of the partition, for as long as the topic keeps its records: users can
    /// fence their own writes with it.
    fn epoch(&self) -> u64;

    /// What the group had settled when it became ours.
    fn position(&self) -> &Position;

    /// The most bytes that a position of it may take, if the broker has a limit. The bus reads no
    /// further than what fits whatever happens next.
    fn room(&self) -> Option<usize> {
        None
    }

    fn lease(&self) -> &Lease;

    /// Reads it from its position on.
    fn read(&self) -> Box<dyn Reader>;

    /// Notes what the group has settled. [`BrokerError::NotOurs`] if it is lost.
    fn commit(&self, position: Position) -> BoxFuture<'_, Result<(), BrokerError>>;

    /// Lets another member have it. Nothing of it runs any more.
    fn release(&self) -> BoxFuture<'_, ()>;

    /// Gives it up as lost. What was read of it and not committed comes again: the group gives it to a member
    /// anew, which may be this one.
    fn lose(&self);
}

/// Reads one partition.
pub(crate) trait Reader: Send {
    /// The next records, at least one; waits for them. May be dropped and called again.
    fn next(&mut self) -> BoxFuture<'_, Result<Vec<Delivered>, BrokerError>>;
}
