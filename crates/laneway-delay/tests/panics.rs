//! Tasks of the engine that panic: seen, started again, and nothing is lost.

mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use laneway_delay::clock::{Clock, ManualClock, RuntimeClock};
use laneway_delay::store::{
    Change, Claim, Draft, DueIndex, DueKey, MemoryStore, Scheduled, Settlement, Store,
};
use laneway_delay::{
    Accepted, BoxFuture, Counts, Delays, Error, Message, MessageId, Options, Page, Query,
    Submission, Timestamp, Withdraw,
};
use rig::{Witness, manual, to_bus, to_host};
use waiting::wait_for;

/// Panics so many times.
#[derive(Default)]
struct Fuse(AtomicUsize);

impl Fuse {
    fn set(&self, times: usize) {
        self.0.store(times, Ordering::SeqCst);
    }

    fn burn(&self) {
        let left = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            });
        assert!(left.is_err(), "injected");
    }

    fn is_out(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }
}

/// A clock that panics where only the scheduler waits.
struct FaultyClock {
    clock: ManualClock,
    sleep: Arc<Fuse>,
}

impl Clock for FaultyClock {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn sleep_until(&self, due: Timestamp) -> BoxFuture<'_, ()> {
        self.sleep.burn();
        self.clock.sleep_until(due)
    }
}

#[derive(Default)]
struct FaultyStore {
    store: MemoryStore,
    scan: Fuse,
    forget: Fuse,
}

impl Store for FaultyStore {
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
        self.scan.burn();
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
        self.forget.burn();
        self.store.forget(keys_before, ended_before)
    }

    fn health(&self) -> Result<(), Error> {
        self.store.health()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.store.close()
    }
}

fn start(store: &Arc<FaultyStore>, witness: &Witness, near: usize) -> Delays {
    start_with(store, witness, Arc::new(RuntimeClock::start()), near)
}

fn start_with(
    store: &Arc<FaultyStore>,
    witness: &Witness,
    clock: Arc<dyn Clock>,
    near: usize,
) -> Delays {
    let options = Options {
        near,
        keep_ended: Duration::ZERO,
        ..Options::default()
    };
    Delays::start(store.clone(), clock, witness.sinks(), options).unwrap()
}

#[tokio::test]
async fn a_scheduler_that_panics_is_seen_and_started_again_and_loses_nothing() {
    let (store, witness, sleep) = (Arc::default(), Witness::new(), Arc::<Fuse>::default());
    sleep.set(3);
    let clock = manual();
    let faulty = FaultyClock {
        clock: clock.clone(),
        sleep: sleep.clone(),
    };
    let delays = start_with(&store, &witness, Arc::new(faulty), 1000);
    let due = delays.now() + Duration::from_secs(1);
    for number in 0..100 {
        let host = format!("h{}", number % 7);
        delays.submit_one(to_host(&host, due)).await.unwrap();
        delays.submit_one(to_bus("k", due)).await.unwrap();
    }
    wait_for!(delays.panics() == 3);
    assert!(sleep.is_out() && witness.seen().is_empty());
    clock.set(due);
    witness.wait_for(200).await;
    assert_eq!(delays.panics(), 3);
    let report = delays.report();
    assert!(report.is_ready() && !report.is_well());
    let told = report.to_string();
    assert!(told.contains("the scheduler: injected"), "{told}");
    delays.close(Duration::from_secs(5)).await.unwrap();
    assert_eq!(witness.seen().len(), 200, "each once");
}

#[tokio::test]
async fn a_reading_that_panics_is_seen_and_made_again() {
    let (store, witness) = (Arc::<FaultyStore>::default(), Witness::new());
    // The first reading of all, and one of those for queues that did not fit.
    store.scan.set(1);
    let delays = start(&store, &witness, 16);
    wait_for!(delays.panics() == 1);
    store.scan.set(2);
    let due = delays.now() + Duration::from_millis(100);
    let submissions = (0..200).map(|_| to_bus("k", due)).collect();
    assert!(delays.submit(submissions).await.iter().all(Result::is_ok));
    witness.wait_for(200).await;
    assert!(store.scan.is_out());
    assert_eq!(delays.panics(), 3);
    assert!(delays.report().panicked.is_some());
}

#[tokio::test]
async fn forgetting_that_panics_is_seen_and_goes_on() {
    let (store, witness) = (Arc::<FaultyStore>::default(), Witness::new());
    store.forget.set(2);
    let delays = start(&store, &witness, 16);
    delays.submit_one(to_host("h", delays.now())).await.unwrap();
    witness.wait_for(1).await;
    wait_for!(delays.panics() == 2 && delays.counts().is_empty());
}

#[tokio::test]
async fn an_attempt_that_panics_may_have_delivered_and_cannot_be_taken_back() {
    let store = Arc::<FaultyStore>::default();
    for to in [to_host as fn(&str, Timestamp) -> Submission, to_bus] {
        let witness = Witness::answering(|_| panic!("injected"));
        let delays = start(&store, &witness, 16);
        let accepted = delays.submit_one(to("h", delays.now())).await.unwrap();
        witness.wait_for(1).await;
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        loop {
            let message = delays.get(&accepted.id).await.unwrap();
            if message.record.is_in_doubt() {
                assert_eq!(message.record.attempts(), 1);
                break;
            }
            assert!(std::time::Instant::now() < deadline, "{message:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let withdrawn = delays.withdraw(&accepted.id).await;
        assert!(matches!(withdrawn, Err(Error::Refused(_))), "{withdrawn:?}");
        let stopped = delays.withdraw_with(&accepted.id, Withdraw::Stop).await;
        assert!(stopped.unwrap().record.is_in_doubt());
        delays.close(Duration::from_secs(5)).await.unwrap();
    }
}
