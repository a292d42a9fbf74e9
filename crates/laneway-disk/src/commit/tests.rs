//! A store of numbers, on disks that do what a test says.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Instant;

use fjall::{Keyspace, KeyspaceCreateOptions};
use tokio::sync::oneshot;
use waiting::wait_for;

use super::*;
use crate::{Disk, Format, Marks, Space};

const FORMAT: Format = Format {
    name: "numbers",
    version: 1,
    steps: &[],
};

struct Engine {
    database: Database,
    rows: Keyspace,
}

impl AsRef<Database> for Engine {
    fn as_ref(&self) -> &Database {
        &self.database
    }
}

impl Engine {
    fn open(log: &Path) -> fjall::Result<Self> {
        let database = Database::open(log, 1 << 20)?;
        let rows = database.keyspace("rows", KeyspaceCreateOptions::default)?;
        Ok(Self { database, rows })
    }

    fn commit(&self) -> u64 {
        let row = self.rows.get("commit").unwrap();
        row.map_or(0, |row| std::str::from_utf8(&row).unwrap().parse().unwrap())
    }
}

/// The row `commit` has the number of the commit as text.
struct Numbers;

impl Marks for Numbers {
    fn commit_in(&self, key: &[u8], value: &[u8]) -> Option<u64> {
        let text = std::str::from_utf8(value).ok()?;
        text.parse().ok().filter(|_| key == b"commit")
    }

    fn latest_row(&self, _: &[u8]) -> u64 {
        0
    }
}

type Ack = oneshot::Sender<Result<(), StoreError>>;

enum Request {
    Put {
        key: String,
        is_synced: bool,
        ack: Ack,
        permit: QueuePermit,
    },
    Panic,
}

struct Numbered {
    shared: Arc<Commits<Engine, Request>>,
    disk: TestDisk,
    /// How often the engine was opened again.
    adopted: Arc<AtomicU64>,
}

impl Writer for Numbered {
    type Engine = Engine;
    type Request = Request;
    type Pending = Vec<(Ack, QueuePermit)>;
    type Found = ();

    fn open(&self, directory: &mut Directory) -> Result<Reopened<Engine, ()>, OpenError> {
        let stays = |error: &dyn std::fmt::Display| OpenError::Stays(error.to_string());
        self.disk.tell("open");
        let least = directory.prepare(&Numbers).map_err(|error| stays(&error))?;
        let engine = Engine::open(&directory.log()).map_err(|error| stays(&error))?;
        let commit = engine.commit();
        directory
            .expect(least, commit)
            .map_err(|error| stays(&error))?;
        Ok(Reopened {
            engine,
            commit,
            found: (),
        })
    }

    const MENDS: bool = true;

    fn mend(&self, _: &mut Directory) -> Result<bool, OpenError> {
        self.disk.tell("mend");
        Ok(false)
    }

    fn adopt(&mut self, (): ()) {
        self.disk.tell("adopt");
        self.adopted.fetch_add(1, Ordering::SeqCst);
    }

    fn mark(&self, engine: &Engine, commit: u64) -> fjall::Result<()> {
        self.disk.tell("mark");
        let mut batch = engine.database.batch();
        batch.insert(&engine.rows, "commit", commit.to_string());
        engine.database.write(self.shared.disk(), batch)
    }

    fn write(
        &mut self,
        engine: &Engine,
        waiting: &mut VecDeque<Request>,
        turn: &mut Turn<'_>,
    ) -> Batch<Self::Pending> {
        let mut batch = engine.database.batch();
        let (mut pending, mut must_sync, mut is_large) = (Vec::new(), false, false);
        while let Some(request) = waiting.pop_front() {
            match request {
                Request::Panic => panic!("as asked for"),
                Request::Put { ack, .. } if turn.is_short_of_room() => {
                    let _ = ack.send(Err(StoreError::Full));
                }
                Request::Put {
                    key,
                    is_synced,
                    ack,
                    permit,
                } => {
                    is_large |= key.contains("large");
                    batch.insert(&engine.rows, key, "");
                    must_sync |= is_synced;
                    pending.push((ack, permit));
                }
            }
        }
        let durability = if must_sync {
            batch.insert(&engine.rows, "commit", turn.commit.to_string());
            Durability::Synced
        } else {
            Durability::Written
        };
        let result = if is_large && self.disk.0.is_tight.load(Ordering::SeqCst) {
            Err(io::Error::from_raw_os_error(28).into())
        } else {
            engine.database.write(self.shared.disk(), batch)
        };
        Batch {
            pending,
            durability,
            result,
        }
    }

    fn written(&mut self, _: &mut Self::Pending) {}

    fn committed(&mut self, pending: Self::Pending, _: &mut VecDeque<Request>) -> usize {
        let count = pending.len();
        for (ack, permit) in pending {
            drop(permit);
            let _ = ack.send(Ok(()));
        }
        count
    }

    fn refused(&mut self, pending: Self::Pending, failure: &StoreError, _: bool) -> Vec<Request> {
        for (ack, _) in pending {
            let _ = ack.send(Err(failure.clone()));
        }
        Vec::new()
    }

    fn refuse(&mut self, request: Request, failure: &StoreError) -> Option<Request> {
        match request {
            Request::Put { ref key, .. } if key.starts_with("patient") && failure.passes() => {
                return Some(request);
            }
            Request::Put { ack, .. } => drop(ack.send(Err(failure.clone()))),
            Request::Panic => {}
        }
        None
    }
}

/// A disk that does what a test says.
#[derive(Clone, Default)]
struct TestDisk(Arc<Controls>);

#[derive(Default)]
struct Controls {
    syncs: AtomicU64,
    fails: AtomicBool,
    is_full: AtomicBool,
    /// Whether only small writes fit.
    is_tight: AtomicBool,
    /// What the system says to a write, if not 0.
    refuses: AtomicI32,
    /// Syncs wait while it is locked.
    gate: parking_lot::Mutex<()>,
    /// What happened, in order.
    events: parking_lot::Mutex<Vec<&'static str>>,
}

impl TestDisk {
    fn tell(&self, event: &'static str) {
        self.0.events.lock().push(event);
    }
}

impl Disk for TestDisk {
    fn sync(&self, journal: &std::fs::File) -> io::Result<()> {
        drop(self.0.gate.lock());
        self.0.syncs.fetch_add(1, Ordering::SeqCst);
        self.tell("sync");
        if self.0.fails.load(Ordering::SeqCst) {
            return Err(io::Error::other("the disk is broken"));
        }
        journal.sync_data()
    }

    fn may_write(&self) -> io::Result<()> {
        match self.0.refuses.load(Ordering::SeqCst) {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }

    fn space(&self, _: &Path) -> io::Result<Space> {
        let total = 1 << 40;
        let is_full = self.0.is_full.load(Ordering::SeqCst);
        let free = if is_full { 0 } else { total };
        Ok(Space { free, total })
    }
}

struct Store {
    commits: Arc<Commits<Engine, Request>>,
    disk: TestDisk,
    adopted: Arc<AtomicU64>,
    folder: tempfile::TempDir,
}

const QUEUE: usize = 1 << 20;

impl Store {
    fn open() -> Self {
        Self::open_in(tempfile::tempdir().unwrap())
    }

    fn open_in(folder: tempfile::TempDir) -> Self {
        let mut directory = Directory::take(folder.path(), &FORMAT).unwrap();
        let made = directory.make_log(|draft| {
            let opened = Engine::open(draft);
            opened
                .map(drop)
                .map_err(|error| crate::Error::opening(draft, error))
        });
        made.unwrap();
        let least = directory.prepare(&Numbers).unwrap();
        let engine = Engine::open(&directory.log()).unwrap();
        let commit = engine.commit();
        directory.expect(least, commit).unwrap();
        let disk = TestDisk::default();
        let limits = CommitLimits {
            queue: QUEUE,
            note_every: Duration::from_millis(50),
            sync_every: Duration::from_millis(50),
            slow_after: Duration::from_millis(200),
        };
        let path = directory.path().to_owned();
        let commits = Arc::new(Commits::new(path, Box::new(disk.clone()), limits, engine));
        let adopted = Arc::new(AtomicU64::new(0));
        let writer = Numbered {
            shared: commits.clone(),
            disk: disk.clone(),
            adopted: adopted.clone(),
        };
        Committer::spawn("test", writer, commits.clone(), directory, commit).unwrap();
        Self {
            commits,
            disk,
            adopted,
            folder,
        }
    }

    async fn put(&self, key: &str, is_synced: bool) -> Result<(), StoreError> {
        let permit = self.commits.permit(1).await?;
        let (ack, answer) = oneshot::channel();
        self.commits.push(Request::Put {
            key: key.to_owned(),
            is_synced,
            ack,
            permit,
        })?;
        answer.await.unwrap_or_else(|_| Err(self.commits.refusal()))
    }

    fn has(&self, key: &str) -> bool {
        let guard = self.commits.engine();
        guard.as_ref().unwrap().rows.contains_key(key).unwrap()
    }

    fn syncs(&self) -> u64 {
        self.disk.0.syncs.load(Ordering::SeqCst)
    }
}

/// Whatever it is, it does not take for ever.
async fn soon<T>(work: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, work).await.expect("in time")
}

#[tokio::test]
#[expect(
    clippy::await_holding_lock,
    reason = "the thread of the committer waits at the gate, not a task"
)]
async fn callers_that_come_during_a_sync_share_the_next_one() {
    let store = Arc::new(Store::open());
    soon(store.put("first", true)).await.unwrap();
    let before = store.syncs();
    let gate = store.disk.0.gate.lock();
    let callers: Vec<_> = (0..100)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move { store.put(&number.to_string(), true).await })
        })
        .collect();
    // All of them are in the queue, or in the batch that waits at the gate.
    tokio::task::yield_now().await;
    assert!(callers.iter().all(|caller| !caller.is_finished()));
    drop(gate);
    for caller in callers {
        soon(caller).await.unwrap().unwrap();
    }
    let syncs = store.syncs() - before;
    assert!(syncs <= 3, "{syncs} syncs for 100 callers");
}

#[tokio::test]
async fn a_failed_sync_is_final() {
    let store = Store::open();
    soon(store.put("kept", true)).await.unwrap();
    store.disk.0.fails.store(true, Ordering::SeqCst);
    let failed = soon(store.put("lost", true)).await.unwrap_err();
    assert!(matches!(&failed, StoreError::Failed(why) if why.contains("broken")));
    store.disk.0.fails.store(false, Ordering::SeqCst);
    assert_eq!(soon(store.put("late", false)).await, Err(failed.clone()));
    assert_eq!(store.commits.health(), Some(failed.clone()));
    assert_eq!(soon(store.commits.close()).await, Err(failed));
    assert_eq!(store.adopted.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_write_that_failed_is_refused_and_goes_on_when_its_cause_is_gone() {
    // No space, no descriptor, an error of the device.
    for (code, expected) in [(28, "Full"), (24, "NoDescriptor"), (5, "Unavailable")] {
        let store = Store::open();
        soon(store.put("before", true)).await.unwrap();
        store.disk.0.refuses.store(code, Ordering::SeqCst);
        let refused = soon(store.put("refused", true)).await.unwrap_err();
        assert!(format!("{refused:?}").starts_with(expected), "{refused:?}");
        assert!(refused.passes());
        assert_eq!(store.commits.failure(), Some(refused));
        store.disk.0.refuses.store(0, Ordering::SeqCst);
        wait_for!(store.commits.health().is_none());
        assert_eq!(store.adopted.load(Ordering::SeqCst), 1);
        soon(store.put("after", true)).await.unwrap();
        assert!(store.has("before") && !store.has("refused") && store.has("after"));
        soon(store.commits.close()).await.unwrap();
    }
}

#[tokio::test]
async fn requests_that_are_handed_back_come_first_when_the_store_writes_again() {
    let store = Arc::new(Store::open());
    store.disk.0.refuses.store(28, Ordering::SeqCst);
    soon(store.put("refused", true)).await.unwrap_err();
    let patient = tokio::spawn({
        let store = store.clone();
        async move { store.put("patient", true).await }
    });
    soon(store.put("behind it", true)).await.unwrap_err();
    assert!(!patient.is_finished());
    store.disk.0.refuses.store(0, Ordering::SeqCst);
    soon(patient).await.unwrap().unwrap();
    assert!(store.has("patient") && !store.has("behind it"));
    // One that waits when the store is closed is answered.
    store.disk.0.refuses.store(28, Ordering::SeqCst);
    soon(store.put("refused", true)).await.unwrap_err();
    let patient = tokio::spawn({
        let store = store.clone();
        async move { store.put("patient again", true).await }
    });
    soon(store.put("behind it", true)).await.unwrap_err();
    soon(store.commits.close()).await.unwrap_err();
    assert_eq!(soon(patient).await.unwrap(), Err(StoreError::Closed));
}

#[tokio::test]
async fn while_only_small_writes_fit_the_engine_is_opened_again_less_and_less_often() {
    let store = Arc::new(Store::open());
    store.disk.0.is_tight.store(true, Ordering::SeqCst);
    let began = Instant::now();
    // Opening it again writes something small each time, and that goes well.
    for round in 1..=5 {
        soon(store.put("large", true)).await.unwrap_err();
        wait_for!(store.adopted.load(Ordering::SeqCst) == round);
        wait_for!(store.commits.health().is_none());
    }
    let waits = Duration::from_millis(100 + 200 + 400 + 800 + 1600);
    let took = began.elapsed();
    assert!(took >= waits, "{took:?}");
    // A batch that is written shows that it has recovered.
    store.disk.0.is_tight.store(false, Ordering::SeqCst);
    soon(store.put("large", true)).await.unwrap();
    store.disk.0.is_tight.store(true, Ordering::SeqCst);
    soon(store.put("large", true)).await.unwrap_err();
    store.disk.0.is_tight.store(false, Ordering::SeqCst);
    wait_for!(store.adopted.load(Ordering::SeqCst) == 6);
    soon(store.commits.close()).await.unwrap();
}

/// Has a thread of the engine fail, without a word why: there is no folder for tables for a while.
async fn give_up(store: &Store) {
    let rows = store.commits.engine().as_ref().unwrap().rows.clone();
    let tables = rows.path().join("tables");
    let away = tables.with_extension("away");
    std::fs::rename(&tables, &away).unwrap();
    rows.rotate_memtable().unwrap();
    drop(rows);
    let works = || {
        let guard = store.commits.engine();
        guard.as_ref().unwrap().database.check().is_ok()
    };
    wait_for!(!works());
    std::fs::rename(&away, &tables).unwrap();
}

#[tokio::test]
async fn an_engine_that_gave_up_without_a_reason_is_opened_again_if_all_syncs_went_well() {
    let store = Store::open();
    soon(store.put("before", true)).await.unwrap();
    for round in 1..=3 {
        give_up(&store).await;
        let began = Instant::now();
        let refused = soon(store.put("refused", true)).await.unwrap_err();
        assert!(
            matches!(&refused, StoreError::Unavailable(why) if why.contains("background work")),
            "{refused:?}"
        );
        wait_for!(store.adopted.load(Ordering::SeqCst) == round);
        // The longer the more often, also if something was written in between.
        assert!(began.elapsed() >= Duration::from_millis(50 << round));
        wait_for!(store.commits.health().is_none());
        soon(store.put("after", true)).await.unwrap();
        assert!(store.has("before") && !store.has("refused") && store.has("after"));
    }
    // Nothing was damaged; it is not looked for that every time.
    let events = store.disk.0.events.lock().clone();
    assert_eq!(events.iter().filter(|event| **event == "mend").count(), 1);
    soon(store.commits.close()).await.unwrap();
}

#[tokio::test]
async fn an_engine_that_gave_up_is_not_trusted_where_a_sync_may_have_failed_unseen() {
    let store = Store::open();
    soon(store.put("before", true)).await.unwrap();
    give_up(&store).await;
    // As if the engine had begun a journal, and nothing was synced since by our own descriptors.
    let log = store.folder.path().join("log");
    let journals = crate::journals::list(&log).unwrap();
    let (newest, _) = journals.last().unwrap();
    std::fs::write(log.join(format!("{}.jnl", newest + 1)), "").unwrap();
    let failed = soon(store.put("refused", true)).await.unwrap_err();
    assert!(matches!(failed, StoreError::Failed(_)), "{failed:?}");
    assert_eq!(store.adopted.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn what_an_engine_that_was_opened_again_has_is_synced_before_more_is_written() {
    let store = Store::open();
    soon(store.put("before", true)).await.unwrap();
    store.disk.0.refuses.store(28, Ordering::SeqCst);
    soon(store.put("refused", true)).await.unwrap_err();
    store.disk.0.events.lock().clear();
    store.disk.0.refuses.store(0, Ordering::SeqCst);
    wait_for!(store.adopted.load(Ordering::SeqCst) == 1);
    // A batch that was refused may be in the journal nevertheless. Were the mark synced and that batch not, a power cut
    // would leave a commit without the one before it: that counts as damage. Were readers let in before the second
    // sync, they could see what a power cut takes back.
    let events = store.disk.0.events.lock().clone();
    let opened = events.iter().rposition(|event| *event == "open");
    let since = &events[opened.expect("it was opened again")..];
    assert_eq!(since, ["open", "sync", "mark", "sync", "adopt"]);
}

#[tokio::test]
#[expect(
    clippy::await_holding_lock,
    reason = "the thread of the committer waits at the gate, not a task"
)]
async fn a_sync_that_hangs_is_told_until_it_ends() {
    let store = Arc::new(Store::open());
    let gate = store.disk.0.gate.lock();
    let putting = tokio::spawn({
        let store = store.clone();
        async move { store.put("a", true).await }
    });
    wait_for!(store.commits.health().is_some());
    let told = store.commits.health();
    assert!(
        matches!(&told, Some(StoreError::Unavailable(why)) if why.contains("not answered")),
        "{told:?}"
    );
    assert_eq!(store.commits.failure(), None, "what comes is taken");
    drop(gate);
    soon(putting).await.unwrap().unwrap();
    wait_for!(store.commits.health().is_none());
}

#[tokio::test]
async fn new_data_is_refused_before_the_disk_is_full_and_taken_again_by_itself() {
    let store = Store::open();
    store.disk.0.is_full.store(true, Ordering::SeqCst);
    assert_eq!(soon(store.put("a", true)).await, Err(StoreError::Full));
    assert_eq!(store.commits.health(), Some(StoreError::Full));
    assert_eq!(store.commits.failure(), None, "all else goes on");
    store.disk.0.is_full.store(false, Ordering::SeqCst);
    wait_for!(store.commits.health().is_none());
    soon(store.put("a", true)).await.unwrap();
}

#[tokio::test]
async fn what_was_written_without_a_sync_is_synced_by_itself() {
    let store = Store::open();
    let before = store.syncs();
    soon(store.put("a", false)).await.unwrap();
    wait_for!(store.syncs() > before);
}

#[tokio::test]
#[expect(
    clippy::await_holding_lock,
    reason = "the thread of the committer waits at the gate, not a task"
)]
async fn all_that_was_asked_for_before_a_close_is_done_and_every_closer_is_answered() {
    let store = Arc::new(Store::open());
    let gate = store.disk.0.gate.lock();
    let putting = tokio::spawn({
        let store = store.clone();
        async move { store.put("a", true).await }
    });
    let closing: Vec<_> = (0..2)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.commits.close().await })
        })
        .collect();
    // The first three tasks run until they wait.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    drop(gate);
    soon(putting).await.unwrap().unwrap();
    for closing in closing {
        soon(closing).await.unwrap().unwrap();
    }
    assert_eq!(soon(store.put("late", true)).await, Err(StoreError::Closed));
    soon(store.commits.close()).await.unwrap();
    let store = Arc::into_inner(store).unwrap();
    let store = Store::open_in(store.folder);
    assert!(store.has("a"));
}

#[tokio::test]
async fn a_panic_leaves_no_caller_waiting() {
    let store = Arc::new(Store::open());
    // One that waits for an answer, one for room in the queue, and one for the end.
    let all = soon(store.commits.permit(QUEUE)).await.unwrap();
    let (ack, answer) = oneshot::channel();
    let gate = store.disk.0.gate.lock();
    store.commits.push(Request::Panic).unwrap();
    let _ = store.commits.push(Request::Put {
        key: "behind".to_owned(),
        is_synced: true,
        ack,
        permit: all,
    });
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.put("more", true).await }
    });
    let closing = tokio::spawn({
        let store = store.clone();
        async move { store.commits.close().await }
    });
    drop(gate);
    assert!(soon(answer).await.is_err());
    let failed = |result: Result<(), StoreError>| matches!(result, Err(StoreError::Failed(_)));
    assert!(soon(waiting).await.unwrap().is_err());
    assert!(failed(soon(closing).await.unwrap()));
    assert!(failed(soon(store.commits.close()).await));
}
