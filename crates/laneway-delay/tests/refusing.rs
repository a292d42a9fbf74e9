//! A store that refuses: what is due waits, and neither the store nor the log is asked a thousand times.

mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use waiting::wait_for;

use laneway_delay::clock::RuntimeClock;
use laneway_delay::store::{
    Change, Claim, Draft, DueIndex, DueKey, MemoryStore, Scheduled, Settlement, Store,
};
use laneway_delay::{
    Accepted, BoxFuture, Counts, Delays, Error, Message, MessageId, Options, Page, Query, Timestamp,
};
use rig::{Witness, to_host};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Claims nothing while it refuses.
#[derive(Default)]
struct Refusing {
    store: MemoryStore,
    refuses: AtomicBool,
    claims: AtomicUsize,
}

fn refusal() -> Error {
    Error::Unavailable("it refuses".to_owned())
}

impl Store for Refusing {
    fn attach(&self, due_index: Arc<dyn DueIndex>) {
        self.store.attach(due_index);
    }

    fn submit(&self, drafts: Vec<Draft>) -> BoxFuture<'_, Vec<Result<Accepted, Error>>> {
        self.store.submit(drafts)
    }

    fn change(&self, changes: Vec<Change>) -> BoxFuture<'_, Vec<Result<Message, Error>>> {
        self.store.change(changes)
    }

    fn claim(
        &self,
        waiting: Vec<Scheduled>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<Claim>, Error>> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        if self.refuses.load(Ordering::SeqCst) {
            return Box::pin(std::future::ready(Err(refusal())));
        }
        self.store.claim(waiting, now)
    }

    fn settle(&self, settlements: Vec<Settlement>) -> BoxFuture<'_, Result<(), Error>> {
        self.store.settle(settlements)
    }

    fn scan(
        &self,
        from: DueKey,
        until: DueKey,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Scheduled>, Error>> {
        self.store.scan(from, until, limit)
    }

    fn floor(&self) -> DueKey {
        self.store.floor()
    }

    fn get<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Option<Message>, Error>> {
        self.store.get(id)
    }

    fn list<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Page, Error>> {
        self.store.list(query)
    }

    fn counts(&self) -> Counts {
        self.store.counts()
    }

    fn forget(
        &self,
        keys_before: Timestamp,
        ended_before: Timestamp,
    ) -> BoxFuture<'_, Result<bool, Error>> {
        self.store.forget(keys_before, ended_before)
    }

    fn health(&self) -> Result<(), Error> {
        if self.refuses.load(Ordering::SeqCst) {
            return Err(refusal());
        }
        self.store.health()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.store.close()
    }
}

/// Counts the errors that are logged.
struct Errors(Arc<AtomicUsize>);

impl Subscriber for Errors {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn a_store_that_refuses_is_not_asked_for_each_message_and_the_log_is_not_flooded() {
    const COUNT: usize = 2000;
    const HOSTS: usize = 4;
    let errors = Arc::<AtomicUsize>::default();
    tracing::subscriber::set_global_default(Errors(errors.clone())).unwrap();
    let (store, witness) = (Arc::<Refusing>::default(), Witness::new());
    let clock = Arc::new(RuntimeClock::start());
    let delays = Delays::start(store.clone(), clock, witness.sinks(), Options::default()).unwrap();
    store.refuses.store(true, Ordering::SeqCst);
    let due = delays.now();
    let message = |number| to_host(&format!("h{}", number % HOSTS), due);
    let answers = delays.submit((0..COUNT).map(message).collect()).await;
    assert!(answers.iter().all(Result::is_ok));
    let began = std::time::Instant::now();
    wait_for!(began.elapsed() >= Duration::from_secs(2) && errors.load(Ordering::SeqCst) > 0);
    let asked = store.claims.load(Ordering::SeqCst);
    assert!((1..COUNT / 10).contains(&asked), "{asked} claims");
    let lines = errors.load(Ordering::SeqCst);
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap() + 1;
    assert!((1..=2 * (seconds + 1)).contains(&lines), "{lines} lines");

    store.refuses.store(false, Ordering::SeqCst);
    witness.wait_for(COUNT).await;
    wait_for!(delays.counts()["t"].delivered == COUNT as u64);
    assert_eq!(witness.seen().len(), COUNT, "each once");
    delays.close(Duration::from_secs(5)).await.unwrap();
}
