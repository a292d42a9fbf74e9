//! What the engine runs: jobs, the handler that takes them, and how an attempt can end.

use std::collections::VecDeque;
use std::collections::vec_deque;
use std::fmt;
use std::future::Future;
use std::num::NonZeroUsize;
use std::time::Duration;

/// Something to be handled: a message, an event, a command.
pub trait Job: Send + Sync + 'static {
    /// What it must stay in order with. Jobs of one key run one at a time, in the order they were
    /// submitted; a job without a key runs whenever a worker is free.
    fn key(&self) -> Option<&str>;

    /// How many bytes it counts for in the bounds of its engine.
    fn bytes(&self) -> usize {
        0
    }
}

/// A job in its lane.
#[derive(Debug)]
pub(super) struct Queued<J> {
    pub(super) job: J,
    pub(super) room: Held,
    /// Nanoseconds on the engine's clock.
    pub(super) submitted: u64,
    pub(super) failures: Option<Box<PastFailures>>,
}

/// The room that a job takes: its bytes, and which gate they are from.
///
/// One word: a flag of its own would be what the compiler tells an empty place by, and it would then
/// move jobs in pieces of odd sizes, which costs more than anything else that happens to them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held(usize);

impl Held {
    const SHARED: usize = 1 << (usize::BITS - 1);

    /// From the topic's own gate, unless [said otherwise](Self::shared).
    pub(super) fn own(bytes: usize) -> Self {
        Self(bytes & !Self::SHARED)
    }

    pub(super) fn shared(self) -> Self {
        Self(self.0 | Self::SHARED)
    }

    pub(super) fn bytes(self) -> usize {
        self.0 & !Self::SHARED
    }

    pub(super) fn is_shared(self) -> bool {
        self.0 & Self::SHARED != 0
    }
}

/// What a job that failed carries with it.
#[derive(Debug)]
pub(super) struct PastFailures {
    pub(super) failed_attempts: u32,
    pub(super) last: Failure,
    /// Set when the attempts are used up; counts how often handing the job over has failed since.
    pub(super) exhausted: Option<u32>,
}

impl<J> Queued<J> {
    pub(super) fn failed_attempts(&self) -> u32 {
        self.failures.as_ref().map_or(0, |t| t.failed_attempts)
    }
}

/// The jobs of one attempt: one, or for a batch handler up to [`Handler::batch`] of the same key, in
/// order.
#[derive(Debug)]
pub struct Jobs<'a, J> {
    pub(super) queued: &'a VecDeque<Queued<J>>,
    pub(super) count: usize,
    pub(super) attempt: u32,
    pub(super) time_limit: Option<Duration>,
    pub(super) worker: usize,
}

impl<J> Clone for Jobs<'_, J> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<J> Copy for Jobs<'_, J> {}

impl<'a, J> Jobs<'a, J> {
    /// The first job: the only one, unless the handler takes batches.
    #[must_use]
    pub fn first(&self) -> &'a J {
        // The engine never calls a handler with nothing.
        &self.queued[0].job
    }

    /// All of them, in order.
    #[must_use]
    pub fn iter(&self) -> JobsIter<'a, J> {
        JobsIter {
            jobs: self.queued.iter(),
            left: self.count,
        }
    }

    /// How many there are; never 0.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Which attempt this is, counted from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// How long the attempt may take before it is cancelled.
    #[must_use]
    pub fn time_limit(&self) -> Option<Duration> {
        self.time_limit
    }

    /// The number of the worker that runs it.
    #[must_use]
    pub fn worker(&self) -> usize {
        self.worker
    }
}

impl<'a, J> IntoIterator for Jobs<'a, J> {
    type Item = &'a J;
    type IntoIter = JobsIter<'a, J>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, J> IntoIterator for &Jobs<'a, J> {
    type Item = &'a J;
    type IntoIter = JobsIter<'a, J>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Iterates over [`Jobs`].
#[derive(Debug)]
pub struct JobsIter<'a, J> {
    jobs: vec_deque::Iter<'a, Queued<J>>,
    left: usize,
}

impl<'a, J> Iterator for JobsIter<'a, J> {
    type Item = &'a J;

    fn next(&mut self) -> Option<&'a J> {
        self.left = self.left.checked_sub(1)?;
        self.jobs.next().map(|queued| &queued.job)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<J> ExactSizeIterator for JobsIter<'_, J> {}

/// Handles the jobs of one topic.
///
/// Every job that a topic accepts ends in exactly one call of [`finished`](Handler::finished): that
/// is the place to settle it.
///
/// A closure that takes a job and returns a future is a handler:
///
/// ```
/// # use laneway_lanes::{Engine, Failure, Job, Options};
/// # struct Order { id: String }
/// # impl Job for Order { fn key(&self) -> Option<&str> { Some(&self.id) } }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = Engine::start(Options::default())?;
/// let orders = engine.topic("orders", |order: &Order| {
///     let id = order.id.clone();
///     async move {
///         println!("order {id}");
///         Ok::<(), Failure>(())
///     }
/// })?;
/// orders.submit(Order { id: "o-1".into() }).await?;
/// # Ok(())
/// # }
/// ```
pub trait Handler<J: Job>: Send + Sync + 'static {
    /// The most jobs of one key that it takes at once.
    fn batch(&self) -> NonZeroUsize {
        NonZeroUsize::MIN
    }

    /// Whether a job may be in one batch with the first of it, which has the same key.
    fn joins(&self, first: &J, job: &J) -> bool {
        let _ = (first, job);
        true
    }

    /// Whether an attempt that is over its time limit can be dropped. Work on another thread
    /// cannot: the lane then waits until it returns, and the attempt counts as failed.
    fn cancellable(&self) -> bool {
        true
    }

    /// Whether a job may be attempted now. Asked before every attempt, also before one to hand it
    /// over, so it should be quick. What waits here counts as no attempt and holds no worker.
    fn admits(&self, job: &J) -> Admission {
        let _ = job;
        Admission::Now
    }

    /// Handles one attempt.
    ///
    /// A batch that failed in the middle says how far it got by [`Failure::after`]; the job that
    /// failed is then tried alone.
    fn handle(&self, jobs: Jobs<'_, J>) -> impl Future<Output = Result<(), Failure>> + Send;

    /// The attempts for this job are used up. Its lane waits until this resolves; if it fails, it is
    /// called again after a while, without end.
    fn exhausted(
        &self,
        job: &J,
        failure: &Failure,
        attempts: u32,
    ) -> impl Future<Output = Result<Disposition, Failure>> + Send {
        let _ = (job, failure, attempts);
        std::future::ready(Ok(Disposition::DeadLettered))
    }

    /// The job is over, one way or the other.
    fn finished(&self, job: J, outcome: Outcome) {
        let _ = (job, outcome);
    }
}

impl<J, F, Fut> Handler<J> for F
where
    J: Job,
    F: Fn(&J) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Failure>> + Send + 'static,
{
    fn handle(&self, jobs: Jobs<'_, J>) -> impl Future<Output = Result<(), Failure>> + Send {
        self(jobs.first())
    }
}

/// A handler that computes or blocks: it runs on the runtime's threads for blocking work, and
/// never holds up an async thread.
///
/// ```
/// # use laneway_lanes::{Blocking, Failure, Job};
/// # #[derive(Clone)] struct Image;
/// # impl Job for Image { fn key(&self) -> Option<&str> { None } }
/// let resize = Blocking::new(|_image: &Image| {
///     std::thread::sleep(std::time::Duration::from_millis(1)); // fine here
///     Ok::<(), Failure>(())
/// });
/// ```
#[derive(Debug)]
pub struct Blocking<F>(std::sync::Arc<F>);

impl<F> Blocking<F> {
    /// Wraps a plain function or closure.
    pub fn new<J>(run: F) -> Self
    where
        F: Fn(&J) -> Result<(), Failure> + Send + Sync + 'static,
    {
        Self(std::sync::Arc::new(run))
    }
}

impl<J, F> Handler<J> for Blocking<F>
where
    J: Job + Clone,
    F: Fn(&J) -> Result<(), Failure> + Send + Sync + 'static,
{
    fn cancellable(&self) -> bool {
        false
    }

    async fn handle(&self, jobs: Jobs<'_, J>) -> Result<(), Failure> {
        let run = self.0.clone();
        let job = jobs.first().clone();
        match tokio::task::spawn_blocking(move || run(&job)).await {
            Ok(result) => result,
            // Up to the engine, which counts and reports it like any other panic.
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(Failure::new("the runtime is shutting down")),
            },
        }
    }
}

/// Whether a job may be attempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may.
    Now,
    /// Its lane waits, and asks again after this long.
    Later(Duration),
    /// Its lane waits with all others of the same group, and one of them asks again after this long. When
    /// that one hears another answer, all of them go on. For many lanes that share their fate, such as
    /// those of one partition.
    Held {
        /// Which lanes of the topic share their fate.
        group: u64,
        /// How long until one of them asks again.
        every: Duration,
    },
    /// It must not run here any more: it is [abandoned](Outcome::Abandoned).
    Never,
}

/// What became of an exhausted job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// It was put aside for good.
    DeadLettered,
    /// It and the later ones of its key wait elsewhere until somebody releases them.
    Parked,
    /// It is given up, and kept nowhere.
    Dropped,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The handler returned `Ok`.
    Done,
    /// All attempts failed and [`Handler::exhausted`] took it.
    Exhausted(Disposition),
    /// The engine or the topic closed before the job was done, or its handler does not
    /// [admit](Handler::admits) it any more.
    Abandoned,
}

/// Why an attempt failed.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure(Box<Failed>);

/// In a box, so that the result of an attempt that succeeds is one word.
#[derive(Clone, PartialEq, Eq)]
struct Failed {
    kind: FailureKind,
    message: Box<str>,
    done: usize,
}

/// The kinds of [`Failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// The handler returned an error: it is tried again.
    Failed,
    /// The handler says that trying again is of no use.
    Fatal,
    /// The handler panicked: it is tried again.
    Panicked,
    /// The handler was over its time limit: it is tried again.
    TimedOut,
}

impl Failure {
    /// A failure that may go away.
    pub fn new(message: impl fmt::Display) -> Self {
        Self::of(FailureKind::Failed, message)
    }

    /// A failure that will not go away: no further attempts.
    pub fn fatal(message: impl fmt::Display) -> Self {
        Self::of(FailureKind::Fatal, message)
    }

    pub(super) fn of(kind: FailureKind, message: impl fmt::Display) -> Self {
        Self(Box::new(Failed {
            kind,
            message: message.to_string().into(),
            done: 0,
        }))
    }

    /// Says that the first `done` jobs of the batch succeeded and the next one is the one that
    /// failed.
    #[must_use]
    pub fn after(mut self, done: usize) -> Self {
        self.0.done = done;
        self
    }

    /// The kind of failure.
    #[must_use]
    pub fn kind(&self) -> FailureKind {
        self.0.kind
    }

    /// What the handler said.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Of a batch: how many of its jobs, from the first on, were done before it failed.
    #[doc(hidden)]
    #[must_use]
    pub fn done(&self) -> usize {
        self.0.done
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.0.message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

/// Whatever becomes an error in a box is a failure that may go away, so that `?` works in a handler: errors,
/// text, `Box<dyn Error + Send + Sync>`, and what libraries such as anyhow have. (`Failure` itself is not an
/// `Error` for that reason.) The sources of the error are part of the message.
///
/// ```
/// use laneway_lanes::Failure;
///
/// fn by_error() -> Result<i32, Failure> {
///     Ok("7".parse::<i32>()?)
/// }
///
/// fn by_box(error: Box<dyn std::error::Error + Send + Sync>) -> Result<(), Failure> {
///     Err(error)?
/// }
///
/// fn by_text(ok: bool) -> Result<(), Failure> {
///     if ok { Ok(()) } else { Err("the stock is empty")? }
/// }
///
/// assert_eq!(by_text(false).unwrap_err().message(), "the stock is empty");
/// assert_eq!(by_box("no".into()).unwrap_err().message(), "no");
/// ```
impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message.push_str(": ");
            message.push_str(&cause.to_string());
            source = cause.source();
        }
        Self::new(message)
    }
}
