//! Lanes, and the workers that drive them: jobs of one key strictly in order, all keys in parallel.
//!
//! It is the heart of Laneway, where it is `laneway::lanes`, and works without it.
//!
//! A *lane* is the unit of order: a queue, first in, first out, of which at most one job runs at a
//! time. A *worker* is the unit of concurrency: it takes a lane that is ready, runs a few of its
//! jobs, gives it back and takes the next. There may be a million lanes and 256 workers; a lane is
//! in memory only while it has work.
//!
//! What that gives:
//! - jobs of one key run strictly in the order they were submitted, also when one of them fails: its
//!   lane waits for the retry, holds no worker meanwhile, and then goes on where it was;
//! - a slow key delays only itself;
//! - memory stays bounded: by lane, by topic and over all, in messages and in bytes;
//! - a panic is caught, counted and retried, and the worker starts afresh;
//! - every accepted job ends in exactly one call of [`Handler::finished`].
//!
//! It knows no broker. The bus puts deliveries into it and settles them when they are finished.
//!
//! # Layout
//!
//! | file | what it is |
//! |---|---|
//! | `job` | [`Job`], [`Handler`], [`Failure`]: what users write |
//! | `options` | [`Options`], its presets, [`LaneBy`], [`Scope`] |
//! | `engine` | [`Engine`]: topics on pools |
//! | `clock` | a clock that is cheap to read |
//! | `intake` | [`Intake`]: the way in, and how it waits for room |
//! | `capacity` | bounds on messages and bytes, counted in one word |
//! | `shards` | the lanes: a FIFO each, made and gone with their work |
//! | `stash` | lanes that a worker has taken ahead |
//! | `cache_padded` | cache lines of one's own |
//! | `ready` | which lane is next, which worker sleeps |
//! | `worker_pool` | the workers of one ready queue, and what they share |
//! | `worker` | a worker and its supervisor |
//! | `yielding` | how a task lets others run, and is not held up by one that blocks |
//! | `restarts` | how often a worker restarted, and what that costs |
//! | `turn` | a worker runs a few jobs of one lane |
//! | `attempt` | one call of a handler: it returns, panics, or takes too long |
//! | `backoff` | where lanes wait, for their retry or to be admitted |
//! | `held` | lanes that are admitted together |
//! | `watchdog` | sees handlers that block |
//! | `worker_slot`, `stats`, `histogram`, `hot` | figures |
//! | `metrics` | the figures for Prometheus |
//! | `events` | what happened |
//! | [`retry`] | how often a failure is tried again, and after how long |
//! | `exposition`, `fnv` | what Prometheus collectors are made of; FNV-1a 32: shared with the bus |
//! | `halt`, `close` | coming to rest |
//! | `clock`, `sync` | the clock of an engine; the locks and atomics of its core |
//!
//! `capacity`, `shards`, `ready` and `stash` are the scheduling core: no clock, no runtime, no handler. They
//! are also explored under shuttle.

mod attempt;
mod backoff;
mod cache_padded;
mod capacity;
mod clock;
mod close;
mod engine;
mod events;
#[cfg(feature = "metrics")]
#[doc(hidden)]
pub mod exposition;
#[doc(hidden)]
pub mod fnv;
mod halt;
mod held;
mod histogram;
mod hot;
mod intake;
mod job;
#[cfg(feature = "metrics")]
mod metrics;
mod options;
mod ready;
mod restarts;
pub mod retry;
mod shards;
mod stash;
mod stats;
mod sync;
mod turn;
mod watchdog;
mod worker;
mod worker_pool;
mod worker_slot;
mod yielding;

pub use capacity::Bound;
#[doc(hidden)]
pub use clock::after;
pub use close::{CloseReport, Drain, LeftBehind};
pub use engine::{Engine, StartError, TopicError};
pub use events::{Event, Events, Full};
#[doc(hidden)]
pub use histogram::Histogram;
pub use histogram::Latency;
pub use hot::HotKey;
pub use intake::{Intake, Refusal, SubmitError};
pub use job::{
    Admission, Blocking, Disposition, Failure, FailureKind, Handler, Job, Jobs, JobsIter, Outcome,
};
#[cfg(feature = "metrics")]
pub use metrics::Metrics;
pub use options::{LaneBy, Options, OptionsError, Scope, TopicOptions};
pub use stats::{Stats, TopicStats, WorkerState, WorkerStats};
#[doc(hidden)]
pub use yielding::yield_to_others;
