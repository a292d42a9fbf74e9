//! The heart of Laneway: lanes, and the workers that drive them.
//!
//! A *lane* is the unit of order: a queue, first in, first out, of which at most one job runs at a
//! time. A *worker* is the unit of concurrency: it takes a lane that is ready, runs a few of its
//! jobs, gives it back and takes the next. There may be a million lanes and 256 workers; a lane is
//! in memory only while it has work.
//!
//! What that gives:
//! - jobs of one key run strictly in the order they were submitted, also when one of them fails: its
//!   lane waits for the retry, holds no worker meanwhile, and then goes on where it was;
//! - a slow key delays itself and nobody else;
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
//! | `engine` | [`Engine`]: topics on crews |
//! | `intake` | [`Intake`]: the way in, and how it waits for room |
//! | `capacity` | bounds on messages and bytes, counted in one word |
//! | `shards` | the lanes: a FIFO each, made and gone with their work |
//! | `stash` | lanes that a worker has taken ahead |
//! | `line` | cache lines of one's own |
//! | `ready` | which lane is next, which worker sleeps |
//! | `crew` | the workers of one ready queue, and what they share |
//! | `worker` | a worker and its supervisor |
//! | `turn` | a worker runs a few jobs of one lane |
//! | `attempt` | one call of a handler: it returns, panics, or takes too long |
//! | `parking` | where failed lanes wait for their retry |
//! | `watchdog` | sees handlers that block |
//! | `seat`, `stats`, `histogram`, `hot` | figures |
//! | `metrics` | the figures for Prometheus |
//! | `events` | what happened |
//! | `halt`, `close` | coming to rest |
//!
//! `capacity`, `shards` and `ready` are the scheduling core: no clock, no runtime, no handler. They
//! are also explored under shuttle.

mod attempt;
mod capacity;
mod clock;
mod close;
mod crew;
mod engine;
mod events;
mod halt;
mod histogram;
mod hot;
mod intake;
mod job;
mod line;
mod metrics;
mod options;
mod parking;
mod ready;
mod seat;
mod shards;
mod stash;
mod stats;
mod sync;
mod turn;
mod watchdog;
mod worker;

pub use capacity::Bound;
pub use close::{CloseReport, Drain, LeftBehind};
pub use engine::{Engine, StartError, TopicError};
pub use events::{Event, Events, Full};
pub(crate) use histogram::Histogram;
pub use histogram::Latency;
pub use hot::HotKey;
pub use intake::{Intake, Refusal, SubmitError};
pub use job::{
    Admission, Blocking, Disposition, Failure, FailureKind, Handler, Job, Jobs, JobsIter, Outcome,
};
pub use metrics::Metrics;
pub use options::{LaneBy, Options, OptionsError, Scope, TopicOptions};
pub use stats::{Stats, TopicStats, WorkerState, WorkerStats};
