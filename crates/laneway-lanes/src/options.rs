//! How an engine is set up.

use std::num::NonZeroU32;
use std::thread::available_parallelism;
use std::time::Duration;

use super::capacity::Bound;
use crate::retry::RetryPolicy;

/// What a lane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneBy {
    /// One lane per live key; a key is in memory only while it has work.
    ///
    /// Lanes are told apart by a seeded 64-bit hash of the key. Should two of a million live keys
    /// ever share it (one chance in thirty million), they share a lane: each still in order.
    Key,
    /// So many fixed lanes, chosen by FNV-1a 32 of the key: in order per key, and cheaper for handlers
    /// that do almost nothing, but a slow key delays those that share its lane.
    Hash(NonZeroU32),
}

impl LaneBy {
    /// `lanes` fixed lanes; 0 means 1.
    #[must_use]
    pub fn hash(lanes: u32) -> Self {
        Self::Hash(NonZeroU32::new(lanes).unwrap_or(NonZeroU32::MIN))
    }
}

/// Who shares the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All topics: fewer workers in all, and each topic keeps a reserve of workers and of room, so
    /// that a stuck topic never stops another one.
    Shared,
    /// None: every topic has workers and bounds of its own.
    PerTopic,
}

/// How an [`Engine`](super::Engine) is set up.
///
/// ```
/// use laneway_lanes::{LaneBy, Options, Scope};
///
/// let options = Options::io_bound().scope(Scope::PerTopic).workers(64);
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(super) workers: usize,
    pub(super) scope: Scope,
    pub(super) total: Bound,
    pub(super) most_topics: usize,
    pub(super) submit_timeout: Duration,
    pub(super) restarts: RestartLimit,
    pub(super) stuck_after: Duration,
    pub(super) topic: TopicOptions,
}

/// How often a worker may restart before it is given a rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct RestartLimit {
    pub(super) per_minute: usize,
    pub(super) first_pause: Duration,
    pub(super) longest_pause: Duration,
}

/// How one topic of an engine is set up.
#[derive(Clone, Debug)]
pub struct TopicOptions {
    pub(super) lane_by: LaneBy,
    pub(super) lane_bound: usize,
    pub(super) window: Option<Bound>,
    pub(super) time_limit: Option<Duration>,
    pub(super) retry: RetryPolicy,
}

/// Options that cannot be meant.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionsError {
    /// Without workers nothing runs.
    #[error("workers is 0: give at least 1")]
    NoWorkers,
    /// Nothing could be submitted.
    #[error("lane_bound is 0: give at least 1")]
    NoLaneBound,
    /// Each topic that may share the engine needs a part of the room for itself.
    #[error(
        "total is {messages} messages for up to {topics} topics: give at least {} messages, or fewer by most_topics",
        topics.saturating_mul(4)
    )]
    TotalTooSmall {
        /// The messages given.
        messages: usize,
        /// The topics given.
        topics: usize,
    },
    /// The counters are 24 bits for messages and 40 for bytes.
    #[error("total is over what can be counted: give at most {} messages and {} bytes", Bound::MAX.messages, Bound::MAX.bytes)]
    TotalTooLarge,
    /// Nothing could be submitted.
    #[error("the window of the topic is empty: give at least 1 message and 1 byte")]
    EmptyWindow,
    /// A handler would be cancelled before it starts.
    #[error("time_limit is 0: give a longer one, or none")]
    NoTime,
}

impl Default for Options {
    /// 256 shared workers, a lane per key, at most 65,536 messages and 256 MiB under way.
    fn default() -> Self {
        Self {
            workers: 256,
            scope: Scope::Shared,
            total: Bound::new(65_536, 256 << 20),
            most_topics: 64,
            submit_timeout: Duration::from_millis(200),
            restarts: RestartLimit {
                per_minute: 3,
                first_pause: Duration::from_millis(10),
                longest_pause: Duration::from_secs(1),
            },
            stuck_after: Duration::from_secs(5),
            topic: TopicOptions::default(),
        }
    }
}

impl Options {
    /// For handlers that compute: one worker per core.
    #[must_use]
    pub fn cpu_bound() -> Self {
        Self::default().workers(cores())
    }

    /// For handlers that wait for a database or another service: 256 workers.
    #[must_use]
    pub fn io_bound() -> Self {
        Self::default().workers(256)
    }

    /// For handlers that wait long, such as for other people's servers: 2048 workers, room for
    /// 262,144 messages.
    #[must_use]
    pub fn high_concurrency() -> Self {
        Self::default()
            .workers(2048)
            .total(Bound::new(262_144, 1 << 30))
    }

    /// The keyed pool per topic: every topic has 1024 workers, each with a queue of 1000; a submit
    /// that finds its queue full waits 200 ms, then it is told so.
    #[must_use]
    pub fn per_topic_pool() -> Self {
        Self::default()
            .workers(1024)
            .scope(Scope::PerTopic)
            .lane_by(LaneBy::hash(1024))
            .lane_bound(1000)
            .submit_timeout(Duration::from_millis(200))
            .total(Bound::new(1024 * 1000, 1 << 30))
    }

    /// The one pool for all topics: 16 workers per core; keyed jobs by hash, others to the next free
    /// worker.
    #[must_use]
    pub fn unified_pool() -> Self {
        let workers = cores() * 16;
        let lanes = u32::try_from(workers).unwrap_or(u32::MAX);
        Self::default()
            .workers(workers)
            .scope(Scope::Shared)
            .lane_by(LaneBy::hash(lanes))
    }

    /// The supervised actor pool: 256 workers, each with an inbox of 1000; one that restarted 3 times
    /// in a minute rests before it goes on.
    #[must_use]
    pub fn actor_pool() -> Self {
        Self::default()
            .workers(256)
            .scope(Scope::Shared)
            .lane_by(LaneBy::hash(256))
            .lane_bound(1000)
            .restarts_per_minute(3)
            .total(Bound::new(256 * 1000, 1 << 30))
    }

    /// How many jobs may run at a time (per topic in [`Scope::PerTopic`]).
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// Who shares the workers.
    #[must_use]
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// How much may be queued and running in all (per topic in [`Scope::PerTopic`]).
    #[must_use]
    pub fn total(mut self, total: Bound) -> Self {
        self.total = total;
        self
    }

    /// How many topics may share the engine. A quarter of the room is set aside for them in equal
    /// parts, so that none can be shut out by the others.
    #[must_use]
    pub fn most_topics(mut self, topics: usize) -> Self {
        self.most_topics = topics;
        self
    }

    /// How long [`submit_timeout`](super::Intake::submit_timeout) waits.
    #[must_use]
    pub fn submit_timeout(mut self, timeout: Duration) -> Self {
        self.submit_timeout = timeout;
        self
    }

    /// How many restarts within a minute a worker may have before it rests: 10 ms, then twice as
    /// long each time, up to a second. It never stays away.
    #[must_use]
    pub fn restarts_per_minute(mut self, restarts: usize) -> Self {
        self.restarts.per_minute = restarts;
        self
    }

    /// After how long a running handler is reported as stuck.
    #[must_use]
    pub fn stuck_after(mut self, stuck_after: Duration) -> Self {
        self.stuck_after = stuck_after;
        self
    }

    /// What a lane is, unless a topic says otherwise.
    #[must_use]
    pub fn lane_by(mut self, lane_by: LaneBy) -> Self {
        self.topic.lane_by = lane_by;
        self
    }

    /// How many jobs one lane may hold, unless a topic says otherwise.
    #[must_use]
    pub fn lane_bound(mut self, jobs: usize) -> Self {
        self.topic.lane_bound = jobs;
        self
    }

    /// How long an attempt may take, unless a topic says otherwise.
    #[must_use]
    pub fn time_limit(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.topic.time_limit = limit.into();
        self
    }

    /// What happens to failures, unless a topic says otherwise.
    #[must_use]
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.topic.retry = retry;
        self
    }

    /// The options that topics start from.
    #[must_use]
    pub fn topic_options(&self) -> TopicOptions {
        self.topic.clone()
    }

    pub(super) fn check(&self) -> Result<(), OptionsError> {
        if self.workers == 0 {
            return Err(OptionsError::NoWorkers);
        }
        let topics = self.topics_per_pool();
        if self.scope == Scope::Shared && self.total.messages < topics.saturating_mul(4)
            || self.total.messages == 0
        {
            return Err(OptionsError::TotalTooSmall {
                messages: self.total.messages,
                topics,
            });
        }
        if self.total.messages > Bound::MAX.messages || self.total.bytes > Bound::MAX.bytes {
            return Err(OptionsError::TotalTooLarge);
        }
        self.topic.check()
    }

    pub(super) fn topics_per_pool(&self) -> usize {
        match self.scope {
            Scope::Shared => self.most_topics.max(1),
            Scope::PerTopic => 1,
        }
    }

    /// What each topic has for itself.
    pub(super) fn reserve(&self) -> Bound {
        match self.scope {
            Scope::PerTopic => self.total,
            Scope::Shared => {
                let parts = 4 * self.topics_per_pool();
                Bound::new(self.total.messages / parts, self.total.bytes / parts)
            }
        }
    }

    /// What the topics share beyond that.
    pub(super) fn shared(&self) -> Bound {
        let reserve = self.reserve();
        let topics = self.topics_per_pool();
        Bound::new(
            self.total.messages - reserve.messages * topics,
            self.total.bytes - reserve.bytes * topics,
        )
    }
}

impl Default for TopicOptions {
    /// A lane per key with up to 1000 jobs, 30 s per attempt, five attempts.
    fn default() -> Self {
        Self {
            lane_by: LaneBy::Key,
            lane_bound: 1000,
            window: None,
            time_limit: Some(Duration::from_secs(30)),
            retry: RetryPolicy::default(),
        }
    }
}

impl TopicOptions {
    /// What a lane is.
    #[must_use]
    pub fn lane_by(mut self, lane_by: LaneBy) -> Self {
        self.lane_by = lane_by;
        self
    }

    /// How many jobs one lane may hold, queued and running.
    #[must_use]
    pub fn lane_bound(mut self, jobs: usize) -> Self {
        self.lane_bound = jobs;
        self
    }

    /// How much the topic may hold, queued and running. Without it the bound of the engine counts.
    #[must_use]
    pub fn window(mut self, window: impl Into<Option<Bound>>) -> Self {
        self.window = window.into();
        self
    }

    /// How long an attempt may take before it is cancelled; `None` for ever.
    #[must_use]
    pub fn time_limit(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.time_limit = limit.into();
        self
    }

    /// What happens to failures.
    #[must_use]
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    pub(super) fn check(&self) -> Result<(), OptionsError> {
        if self.lane_bound == 0 {
            return Err(OptionsError::NoLaneBound);
        }
        if self
            .window
            .is_some_and(|window| window.messages == 0 || window.bytes == 0)
        {
            return Err(OptionsError::EmptyWindow);
        }
        if self.time_limit.is_some_and(|limit| limit.is_zero()) {
            return Err(OptionsError::NoTime);
        }
        Ok(())
    }
}

fn cores() -> usize {
    available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}
