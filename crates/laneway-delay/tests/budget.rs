//! What attempts hold in memory is bounded in bytes: counted between a claim and the end of its settlement.

mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use laneway_delay::clock::{Clock, RuntimeClock};
use laneway_delay::store::{
    Change, Claim, DiskStore, Draft, DueIndex, DueKey, MemoryStore, Scheduled, Settlement, Store,
};
use laneway_delay::{
    Accepted, BoxFuture, Counts, Delays, Deliver, Error, Firing, Message, MessageId, Options, Page,
    Publish, Query, Sinks, Steps, Submission, Target, Timestamp, Undelivered, When,
};
use waiting::wait_for;

/// Bytes of payloads that are claimed and not yet settled, now and at most.
#[derive(Default)]
struct Held {
    now: AtomicUsize,
    most: AtomicUsize,
    /// Claims that left no room for another message of the same size.
    full: AtomicUsize,
}

/// A store that counts what is claimed: callbacks and messages for the bus apart.
struct Counting {
    store: Arc<dyn Store>,
    callbacks: Arc<Held>,
    bus: Arc<Held>,
    bound: usize,
}

impl Counting {
    fn new(store: Arc<dyn Store>, bound: usize) -> Arc<Self> {
        Arc::new(Self {
            store,
            callbacks: Arc::default(),
            bus: Arc::default(),
            bound,
        })
    }

    fn held(&self, message: &Message) -> &Held {
        match message.target {
            Target::Bus(_) => &self.bus,
            _ => &self.callbacks,
        }
    }
}

impl Store for Counting {
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
        Box::pin(async move {
            let claims = self.store.claim(waiting, now).await?;
            for claim in &claims {
                let bytes = claim.message.payload.len();
                let held = self.held(&claim.message);
                let now = held.now.fetch_add(bytes, Ordering::SeqCst) + bytes;
                held.most.fetch_max(now, Ordering::SeqCst);
                if now + bytes > self.bound / 4 {
                    held.full.fetch_add(1, Ordering::SeqCst);
                }
            }
            Ok(claims)
        })
    }

    fn settle(&self, settlements: Vec<Settlement>) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let ended: Vec<_> = settlements
                .iter()
                .map(|settlement| settlement.claim.message.clone())
                .collect();
            let result = self.store.settle(settlements).await;
            for message in ended {
                let held = self.held(&message);
                held.now.fetch_sub(message.payload.len(), Ordering::SeqCst);
            }
            result
        })
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
        self.store.health()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.store.close()
    }
}

/// Takes everything after a moment; hosts whose names begin with `hang` answer nothing.
struct Slow {
    healthy: AtomicUsize,
    hanging: AtomicUsize,
}

impl Slow {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            healthy: AtomicUsize::new(0),
            hanging: AtomicUsize::new(0),
        })
    }

    fn sinks(self: &Arc<Self>) -> Sinks {
        Sinks {
            callbacks: Some(self.clone()),
            bus: Some(self.clone()),
        }
    }
}

impl Deliver for Slow {
    fn deliver(&self, firing: Firing) -> BoxFuture<'_, Result<(), Undelivered>> {
        Box::pin(async move {
            if matches!(&firing.message.target, Target::Callback(to) if to.url.contains("//hang")) {
                self.hanging.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.healthy.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
    }
}

impl Publish for Slow {
    fn publish(&self, batch: Vec<Firing>) -> BoxFuture<'_, Vec<Result<(), Undelivered>>> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            batch.iter().map(|_| Ok(())).collect()
        })
    }
}

fn start(store: Arc<Counting>, sinks: Sinks, options: Options) -> Delays {
    let clock: Arc<dyn Clock> = Arc::new(RuntimeClock::start());
    Delays::start(store, clock, sinks, options).unwrap()
}

fn submission(target: Target, bytes: usize) -> Submission {
    Submission::new("t", When::After(Duration::ZERO), target).payload(vec![7; bytes])
}

async fn submit(delays: &Delays, submissions: impl Iterator<Item = Submission>) {
    let mut submissions = submissions.peekable();
    while submissions.peek().is_some() {
        let some = submissions.by_ref().take(50).collect();
        assert!(delays.submit(some).await.iter().all(Result::is_ok));
    }
}

fn target(number: usize) -> Target {
    if number.is_multiple_of(2) {
        Target::bus(format!("orders{}", number % 10), "k", "Due")
    } else {
        Target::callback(format!("http://host{}/", number % 7))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_tiny_budget_everything_is_delivered_and_the_bound_holds() {
    const BOUND: usize = 2000;
    let store = Counting::new(Arc::new(MemoryStore::new()), BOUND);
    let options = Options {
        near: 64,
        callback_bytes: BOUND,
        bus_bytes: BOUND,
        steps: Steps::TINY,
        ..Options::default()
    };
    let slow = Slow::new();
    let delays = start(store.clone(), slow.sinks(), options);
    let sizes = [0, 1, 60, 130, 400, 900];
    let all = (0..3000).map(|number| submission(target(number), sizes[number / 2 % sizes.len()]));
    submit(&delays, all).await;
    wait_for!(delays.counts()["t"].delivered == 3000);
    delays.close(Duration::from_secs(5)).await.unwrap();
    for (name, held) in [("callbacks", &store.callbacks), ("bus", &store.bus)] {
        let most = held.most.load(Ordering::SeqCst);
        let full = held.full.load(Ordering::SeqCst);
        assert!(most <= BOUND, "{name}: {most} bytes were held");
        assert!(full >= 200, "{name}: the bound acted {full} times");
        assert_eq!(held.now.load(Ordering::SeqCst), 0, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_larger_than_the_budget_goes_alone() {
    let store = Counting::new(Arc::new(MemoryStore::new()), 1000);
    let options = Options {
        callback_bytes: 1000,
        bus_bytes: 1000,
        ..Options::default()
    };
    let slow = Slow::new();
    let delays = start(store.clone(), slow.sinks(), options);
    submit(
        &delays,
        (0..100).map(|number| submission(target(number), 5000)),
    )
    .await;
    wait_for!(delays.counts()["t"].delivered == 100);
    for held in [&store.callbacks, &store.bus] {
        assert_eq!(held.most.load(Ordering::SeqCst), 5000, "one at a time");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn megabytes_are_claimed_within_the_budget_from_memory_and_from_disk() {
    const MIB: usize = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let on_disk = DiskStore::open(folder.path()).await.unwrap();
    let stores: [Arc<dyn Store>; 2] = [Arc::new(MemoryStore::new()), Arc::new(on_disk)];
    for store in stores {
        let store = Counting::new(store, 8 * MIB);
        let options = Options {
            callback_bytes: 8 * MIB,
            bus_bytes: 8 * MIB,
            ..Options::default()
        };
        let slow = Slow::new();
        let delays = start(store.clone(), slow.sinks(), options);
        submit(
            &delays,
            (0..60).map(|number| submission(target(number), MIB)),
        )
        .await;
        wait_for!(delays.counts()["t"].delivered == 60);
        for (name, held) in [("callbacks", &store.callbacks), ("bus", &store.bus)] {
            // Large payloads have half of it.
            let most = held.most.load(Ordering::SeqCst);
            assert!(most <= 4 * MIB, "{name}: {most} bytes were held");
        }
        delays.close(Duration::from_secs(5)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_that_hang_with_megabytes_delay_neither_small_messages_nor_hosts_that_answer() {
    const MIB: usize = 1 << 20;
    let store = Counting::new(Arc::new(MemoryStore::new()), 64 * MIB);
    let slow = Slow::new();
    let delays = start(store.clone(), slow.sinks(), Options::default());
    let to = |host: String| Target::callback(format!("http://{host}/"));
    // One that is known to answer.
    submit(
        &delays,
        std::iter::once(submission(to("known".into()), MIB)),
    )
    .await;
    wait_for!(slow.healthy.load(Ordering::SeqCst) == 1);
    let hanging = (0..200).map(|number| submission(to(format!("hang{}", number % 100)), MIB));
    submit(&delays, hanging).await;
    wait_for!(slow.hanging.load(Ordering::SeqCst) >= 20);
    let small = (0..500).map(|number| submission(to(format!("new{}", number % 50)), 1000));
    let large = (0..20).map(|_| submission(to("known".into()), MIB));
    submit(&delays, small.chain(large)).await;
    // Those that hang do so for ever. Each part has the time of a wait: megabytes take long on a busy machine.
    for part in 1..=10 {
        wait_for!(slow.healthy.load(Ordering::SeqCst) > 52 * part);
    }
    assert_eq!(slow.healthy.load(Ordering::SeqCst), 521);
    let most = store.callbacks.most.load(Ordering::SeqCst);
    assert!(most <= 64 * MIB, "{most} bytes were held");
}
