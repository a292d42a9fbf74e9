//! The engine: topics on pools of workers.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;

use super::clock::Clock;
use super::close::{CloseReport, Drain, close_topic};
use super::events::{Events, Teller};
use super::intake::{Intake, Queue};
use super::job::{Handler, Job};
use super::options::{Options, OptionsError, Scope, TopicOptions};
use super::ready::WorkerId;
use super::stats::Stats;
use super::turn::TopicLanes;
use super::watchdog;
use super::worker::supervise;
use super::worker_pool::WorkerPool;

/// Runs the handlers of topics: every key in order, all keys in parallel.
///
/// An engine is a cheap handle. It stops when [`close`](Engine::close) is called, or when the last
/// handle is dropped: then what runs is finished and what is queued is handed back as
/// [abandoned](super::Outcome::Abandoned).
///
/// ```
/// use std::time::Duration;
/// use laneway_lanes::{Drain, Engine, Failure, Job, Options};
///
/// struct Order { id: String, step: u32 }
///
/// impl Job for Order {
///     fn key(&self) -> Option<&str> { Some(&self.id) }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = Engine::start(Options::default())?;
/// let orders = engine.topic("orders", |order: &Order| {
///     let line = format!("{}: step {}", order.id, order.step);
///     async move {
///         println!("{line}");
///         Ok::<(), Failure>(())
///     }
/// })?;
/// for step in 1..=3 {
///     orders.submit(Order { id: "o-1".into(), step }).await?;
/// }
/// let report = engine.close(Drain::Queued, Duration::from_secs(5)).await;
/// assert!(report.is_clean());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Engine {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) options: Options,
    runtime: Handle,
    clock: Clock,
    teller: Teller,
    /// One, or one for each topic.
    pools: Mutex<Vec<Arc<WorkerPool>>>,
    closed: AtomicBool,
    /// Set when everything is drained and the workers are sent home. The watchdog looks on until then:
    /// a handler may block its thread while the engine closes, too.
    stopped: AtomicBool,
    watchdog: Mutex<Option<std::thread::Thread>>,
}

/// Why an engine could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The options make no sense.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// Workers are tokio tasks.
    #[error("there is no tokio runtime here: start the engine from within one")]
    NoRuntime,
    /// The watchdog has a thread of its own.
    #[error("the watchdog thread could not be started: {0}")]
    Watchdog(#[from] std::io::Error),
}

/// Why a topic could not be added.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TopicError {
    /// The options make no sense.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// Every topic has a handler, and only one.
    #[error("the topic {0:?} has a handler already: close that one first")]
    AlreadyThere(String),
    /// Each topic has a part of the room for itself.
    #[error(
        "the engine has its {0} topics, of which every subscription of a bus is one: raise most_topics in the \
         options of the lanes, or use Scope::PerTopic"
    )]
    TooMany(usize),
    /// The engine is closed.
    #[error("the engine is closed")]
    Closed,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Starts the workers. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the options make no sense, or there is no runtime.
    pub fn start(options: Options) -> Result<Self, StartError> {
        options.check()?;
        let runtime = Handle::try_current().map_err(|_| StartError::NoRuntime)?;
        let inner = Arc::new(Inner {
            options,
            runtime,
            clock: Clock::start(),
            teller: Teller::new(),
            pools: Mutex::default(),
            closed: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            watchdog: Mutex::default(),
        });
        if inner.options.scope == Scope::Shared {
            inner.hire();
        }
        *inner
            .watchdog
            .lock()
            .unwrap_or_else(PoisonError::into_inner) =
            Some(watchdog::spawn(Arc::downgrade(&inner))?);
        Ok(Self { inner })
    }

    /// Adds a topic with the engine's options for topics.
    ///
    /// # Errors
    /// When the topic is there already, there are too many, or the engine is closed.
    pub fn topic<J: Job, H: Handler<J>>(
        &self,
        name: &str,
        handler: H,
    ) -> Result<Intake<J>, TopicError> {
        self.topic_with(name, self.inner.options.topic_options(), handler)
    }

    /// Adds a topic with options of its own.
    ///
    /// # Errors
    /// As [`topic`](Self::topic), and when the options make no sense.
    pub fn topic_with<J: Job, H: Handler<J>>(
        &self,
        name: &str,
        options: TopicOptions,
        handler: H,
    ) -> Result<Intake<J>, TopicError> {
        options.check()?;
        let inner = &self.inner;
        // Held for the whole of it, so that two callers cannot add the same topic.
        let mut pools = inner.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.is_closed() {
            return Err(TopicError::Closed);
        }
        pools.iter().for_each(|pool| pool.sweep());
        pools.retain(|pool| !pool.is_left());
        let taken = pools
            .iter()
            .flat_map(|pool| pool.runners())
            .any(|runner| &**runner.closing().name() == name);
        if taken {
            return Err(TopicError::AlreadyThere(name.to_owned()));
        }
        let pool = match inner.options.scope {
            Scope::Shared => pools.first().cloned().ok_or(TopicError::Closed)?,
            Scope::PerTopic => {
                let pool = inner.make_pool();
                pools.push(pool.clone());
                pool
            }
        };
        if pool.runners().len() >= inner.options.topics_per_pool() {
            return Err(TopicError::TooMany(inner.options.topics_per_pool()));
        }
        let reserve = inner.options.reserve();
        let topic = pool.add_topic(|id| {
            let queue = Queue::new(id, name.into(), options, reserve, pool.clone());
            Arc::new(TopicLanes {
                queue: Arc::new(queue),
                handler,
            })
        });
        Ok(Intake {
            queue: topic.queue.clone(),
            runner: topic,
            submit_timeout: inner.options.submit_timeout,
        })
    }

    /// The events from now on.
    #[must_use]
    pub fn events(&self) -> Events {
        self.inner.teller.listen()
    }

    /// The figures now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let pools = self.inner.pools();
        Stats {
            topics: pools
                .iter()
                .flat_map(|pool| pool.runners())
                .map(|runner| runner.stats())
                .collect(),
            workers: pools.iter().flat_map(|pool| pool.worker_stats()).collect(),
            ready_lanes: pools.iter().map(|pool| pool.ready_lanes()).sum(),
        }
    }

    /// Closes all topics and sends the workers home. What is unfinished at the deadline is
    /// cancelled and handed back.
    pub async fn close(&self, drain: Drain, deadline: Duration) -> CloseReport {
        self.inner.closed.store(true, Ordering::SeqCst);
        let pools = self.inner.pools();
        let runners: Vec<_> = pools
            .iter()
            .flat_map(|pool| pool.runners().into_iter().map(move |runner| (pool, runner)))
            .collect();
        // None may take anything while another one is still being drained.
        for (_, runner) in &runners {
            runner.closing().refuse();
        }
        let closing = runners
            .iter()
            .map(|(pool, runner)| close_topic(pool, runner, drain, deadline));
        let left = futures_util::future::join_all(closing).await;
        self.inner.stop();
        CloseReport {
            left: left.into_iter().flatten().collect(),
        }
    }
}

impl Inner {
    fn hire(&self) {
        let pool = self.make_pool();
        self.pools
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(pool);
    }

    fn make_pool(&self) -> Arc<WorkerPool> {
        let pool = Arc::new(WorkerPool::new(
            &self.options,
            self.clock.clone(),
            self.teller.clone(),
        ));
        for id in 0..self.options.workers {
            self.runtime.spawn(supervise(pool.clone(), WorkerId(id)));
        }
        let attended = pool.clone();
        self.runtime.spawn(async move {
            attended
                .backoff
                .attend(|topic, lane| {
                    if let Some(runner) = attended.runner(topic) {
                        runner.resume(lane);
                    }
                })
                .await;
        });
        pool
    }

    pub(super) fn pools(&self) -> Vec<Arc<WorkerPool>> {
        self.pools
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Gives the runtime something to do from outside. A handler may be blocking the very thread that
    /// served the runtime's timers, while the other threads sleep: one of them then takes over.
    pub(super) fn rouse(&self) {
        drop(self.runtime.spawn(std::future::ready(())));
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        for pool in self.pools() {
            pool.stop();
        }
        if let Some(watchdog) = self
            .watchdog
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            watchdog.unpark();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for pool in self.pools() {
            for runner in pool.runners() {
                runner.closing().refuse();
                runner.closing().halt();
            }
            pool.sweep();
        }
        self.stop();
    }
}
