//! Coming to rest: stop taking, finish what can be finished, report what was left.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{timeout, timeout_at};

use super::clock::after;
use super::ready::TopicId;
use super::worker_pool::{Runner, WorkerPool};

/// What is still run when an engine or a topic closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// Everything that was accepted, if the deadline allows.
    Queued,
    /// Only what is running. For jobs that are safe elsewhere, such as in a log.
    Running,
}

/// What was left when the deadline was over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CloseReport {
    /// The topics that were not finished.
    pub left: Vec<LeftBehind>,
}

impl CloseReport {
    /// Whether everything was finished.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.left.is_empty()
    }
}

/// What was left of one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftBehind {
    /// The topic.
    pub topic: Arc<str>,
    /// Jobs that were handed back unfinished.
    pub abandoned: usize,
    /// Their keys, each once, up to a hundred.
    pub keys: Vec<String>,
    /// Jobs whose handler cannot be stopped; they are handed back if it ever returns.
    pub stuck: usize,
    /// What those handlers work on.
    pub stuck_keys: Vec<String>,
}

impl LeftBehind {
    /// Jobs of a topic that were handed back unfinished, whatever their keys.
    #[doc(hidden)]
    #[must_use]
    pub fn abandoned(topic: Arc<str>, abandoned: usize) -> Self {
        Self {
            topic,
            abandoned,
            keys: Vec::new(),
            stuck: 0,
            stuck_keys: Vec::new(),
        }
    }
}

const KEYS_NAMED: usize = 100;

/// After a cancel, running handlers are given this long to be dropped.
const GRACE: Duration = Duration::from_secs(1);

/// Jobs that were handed back unfinished, counted as they are.
#[derive(Debug, Default)]
pub(super) struct Abandoned {
    count: usize,
    keys: Vec<String>,
}

impl Abandoned {
    pub(super) fn add(&mut self, key: Option<&str>) {
        self.count += 1;
        if let Some(key) = key
            && self.keys.len() < KEYS_NAMED
            && !self.keys.iter().any(|named| named == key)
        {
            self.keys.push(key.to_owned());
        }
    }
}

/// What closing needs of a topic, whatever the type of its jobs.
pub(super) trait Closing: Send + Sync {
    fn id(&self) -> TopicId;

    fn name(&self) -> &Arc<str>;

    /// How many jobs are queued, backing off or running.
    fn depth(&self) -> usize;

    /// No further jobs are taken.
    fn refuse(&self);

    /// Resolves when nothing is queued, backing off or running.
    fn quiet(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Queued jobs are handed back, running turns end after the job they are at.
    fn halt(&self);

    /// Running attempts are dropped.
    fn cancel(&self);

    /// Whether it was halted.
    fn is_closed(&self) -> bool;

    /// Whether it is closed and holds nothing. A worker may still be about to find that out.
    fn is_over(&self) -> bool {
        self.is_closed() && self.depth() == 0
    }

    /// What was handed back unfinished and not reported yet.
    fn take_abandoned(&self) -> Abandoned;
}

/// Closes one topic of a pool.
pub(super) async fn close_topic(
    pool: &WorkerPool,
    runner: &Arc<dyn Runner>,
    drain: Drain,
    deadline: Duration,
) -> Option<LeftBehind> {
    let topic = runner.closing();
    let deadline = after(deadline);
    topic.refuse();
    if drain == Drain::Queued {
        // Late or not, what follows is the same.
        let _ = timeout_at(deadline, topic.quiet()).await;
    }
    topic.halt();
    if timeout_at(deadline, topic.quiet()).await.is_err() {
        topic.cancel();
        let _ = timeout(GRACE, topic.quiet()).await;
    }
    pool.sweep();
    let abandoned = topic.take_abandoned();
    let stuck = topic.depth();
    (abandoned.count + stuck > 0).then(|| LeftBehind {
        topic: topic.name().clone(),
        abandoned: abandoned.count,
        keys: abandoned.keys,
        stuck,
        stuck_keys: if stuck == 0 {
            Vec::new()
        } else {
            pool.keys_running(topic.name())
        },
    })
}
