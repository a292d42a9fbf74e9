//! What the tests of the engine share: a job, a handler that writes everything down, and waits that
//! end.

use std::collections::HashMap;
use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use laneway_lanes::retry::RetryPolicy;
use laneway_lanes::{Engine, Event, Events, Failure, Handler, Intake, Job, Jobs, Options, Outcome};
use tokio::sync::Semaphore;

/// No wait of a test is longer than this.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// A job that knows its place among those of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) key: Option<Arc<str>>,
    pub(crate) seq: u64,
    pub(crate) bytes: usize,
}

impl Job for Item {
    fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

pub(crate) fn item(key: &str, seq: u64) -> Item {
    Item {
        key: Some(key.into()),
        seq,
        bytes: 1,
    }
}

pub(crate) fn keyless(seq: u64) -> Item {
    Item {
        key: None,
        seq,
        bytes: 1,
    }
}

/// One call of a handler.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) key: String,
    pub(crate) seqs: Vec<u64>,
    pub(crate) attempt: u32,
    pub(crate) worker: usize,
}

impl Call {
    pub(crate) fn seq(&self) -> u64 {
        self.seqs[0]
    }

    /// The job as `key:sequence`.
    pub(crate) fn name(&self) -> String {
        format!("{}:{}", self.key, self.seq())
    }
}

/// What a [`Probe`] has seen.
#[derive(Default)]
pub(crate) struct Log {
    begun: Mutex<Vec<Call>>,
    ended: Mutex<Vec<Call>>,
    finished: Mutex<Vec<(Item, Outcome)>>,
    exhausted: Mutex<Vec<(Item, String, u32)>>,
}

impl Log {
    /// All calls, in the order they began.
    pub(crate) fn begun(&self) -> Vec<Call> {
        lock(&self.begun).clone()
    }

    /// All calls that returned, whatever they returned.
    pub(crate) fn ended(&self) -> Vec<Call> {
        lock(&self.ended).clone()
    }

    pub(crate) fn finished(&self) -> Vec<(Item, Outcome)> {
        lock(&self.finished).clone()
    }

    /// Jobs that were handed over: why, and after how many attempts.
    pub(crate) fn exhausted(&self) -> Vec<(Item, String, u32)> {
        lock(&self.exhausted).clone()
    }

    /// The jobs that were begun, as `key:sequence`.
    pub(crate) fn names(&self) -> Vec<String> {
        self.begun().iter().map(Call::name).collect()
    }

    /// How often each job was finished. Whatever happens, it is once.
    #[track_caller]
    pub(crate) fn assert_finished_once(&self, jobs: usize) {
        let mut times = HashMap::new();
        for (item, _) in self.finished() {
            *times.entry((item.key, item.seq)).or_insert(0) += 1;
        }
        assert_eq!(times.len(), jobs, "every accepted job is finished");
        assert!(
            times.values().all(|times| *times == 1),
            "exactly once: {times:?}"
        );
    }

    pub(crate) fn count(&self, outcome: Outcome) -> usize {
        lock(&self.finished)
            .iter()
            .filter(|(_, other)| *other == outcome)
            .count()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) type Step = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

/// A handler that does what it is told and writes down that it did.
pub(crate) struct Probe {
    run: Box<dyn Fn(Call) -> Step + Send + Sync>,
    batch: NonZeroUsize,
    pub(crate) log: Arc<Log>,
}

impl Probe {
    pub(crate) fn new<F, Fut>(run: F) -> Self
    where
        F: Fn(Call) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        Self {
            run: Box::new(move |call| Box::pin(run(call))),
            batch: NonZeroUsize::MIN,
            log: Arc::default(),
        }
    }

    /// Succeeds at once.
    pub(crate) fn ok() -> Self {
        Self::new(|_| async { Ok(()) })
    }

    /// Waits for a permit of the gate in every call.
    pub(crate) fn gated(gate: &Arc<Semaphore>) -> Self {
        let gate = Arc::clone(gate);
        Self::new(move |_| pass(Arc::clone(&gate)))
    }

    pub(crate) fn batch(mut self, most: usize) -> Self {
        self.batch = NonZeroUsize::new(most).expect("a batch is at least 1");
        self
    }

    pub(crate) fn log(&self) -> Arc<Log> {
        Arc::clone(&self.log)
    }
}

/// Waits for a permit and uses it up.
pub(crate) async fn pass(gate: Arc<Semaphore>) -> Result<(), Failure> {
    gate.acquire().await?.forget();
    Ok(())
}

pub(crate) fn closed_gate() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(0))
}

/// Lets everybody through, now and later.
pub(crate) fn open(gate: &Semaphore) {
    gate.add_permits(1_000_000);
}

impl Handler<Item> for Probe {
    fn batch(&self) -> NonZeroUsize {
        self.batch
    }

    async fn handle(&self, jobs: Jobs<'_, Item>) -> Result<(), Failure> {
        let call = Call {
            key: jobs.first().key.as_deref().unwrap_or("-").to_owned(),
            seqs: jobs.iter().map(|job| job.seq).collect(),
            attempt: jobs.attempt(),
            worker: jobs.worker(),
        };
        lock(&self.log.begun).push(call.clone());
        let result = (self.run)(call.clone()).await;
        lock(&self.log.ended).push(call);
        result
    }

    async fn exhausted(
        &self,
        job: &Item,
        failure: &Failure,
        attempts: u32,
    ) -> Result<laneway_lanes::Disposition, Failure> {
        lock(&self.log.exhausted).push((job.clone(), failure.message().to_owned(), attempts));
        Ok(laneway_lanes::Disposition::DeadLettered)
    }

    fn finished(&self, job: Item, outcome: Outcome) {
        lock(&self.log.finished).push((job, outcome));
    }
}

/// An engine with one topic `"t"`.
pub(crate) fn one_topic(options: Options, probe: Probe) -> (Engine, Intake<Item>, Arc<Log>) {
    let log = probe.log();
    let engine = Engine::start(options).expect("the options are good");
    let intake = engine.topic("t", probe).expect("the topic is new");
    (engine, intake, log)
}

/// Attempts at intervals that do not depend on chance.
pub(crate) fn retry(attempts: u32, first: Duration, longest: Duration) -> RetryPolicy {
    RetryPolicy::exponential(attempts, first, longest)
        .and_then(|policy| policy.with_jitter(0.0))
        .expect("the policy is good")
}

/// Lets everything that can run without the clock run, in a runtime of one thread.
pub(crate) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// The next event that `wanted` takes.
pub(crate) async fn next_event(events: &mut Events, wanted: impl Fn(&Event) -> bool) -> Event {
    let search = async {
        loop {
            let event = events.next().await.expect("the engine lives");
            if wanted(&event) {
                return event;
            }
        }
    };
    tokio::time::timeout(PATIENCE, search)
        .await
        .expect("the event comes")
}
