//! Disks that fail, are full, or take their time.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use laneway_disk::{Disk, Space};
use tempfile::TempDir;

use super::*;

/// A disk that does what a test says.
#[derive(Clone)]
struct TestDisk(Arc<Controls>);

struct Controls {
    fails: AtomicBool,
    free: AtomicU64,
    /// Held by a test that wants syncs to wait.
    gate: tokio::sync::Mutex<()>,
    syncs: AtomicU64,
}

impl TestDisk {
    fn new() -> Self {
        Self(Arc::new(Controls {
            fails: AtomicBool::new(false),
            free: AtomicU64::new(1 << 40),
            gate: tokio::sync::Mutex::default(),
            syncs: AtomicU64::new(0),
        }))
    }

    async fn store(&self, directory: &Path) -> FileStore {
        let disk = Box::new(self.clone());
        // Nothing is synced because time has passed: that depends on how busy the machine is.
        let limits = FileLimits {
            sync_every: Duration::from_hours(1),
            ..FileLimits::default()
        };
        let store = FileStore::open_on(directory, disk, limits).await.unwrap();
        let topic = Topic::domain("orders").partitions(2).build().unwrap();
        store.put_topic(&topic).await.unwrap();
        store
    }
}

impl Disk for TestDisk {
    fn sync(&self, journal: &File) -> io::Result<()> {
        drop(self.0.gate.blocking_lock());
        self.0.syncs.fetch_add(1, Ordering::SeqCst);
        if self.0.fails.load(Ordering::SeqCst) {
            return Err(io::Error::other("the disk is broken"));
        }
        journal.sync_data()
    }

    fn space(&self, _: &Path) -> io::Result<Space> {
        Ok(Space {
            free: self.0.free.load(Ordering::SeqCst),
            total: 1 << 40,
        })
    }
}

fn fail_in_background(store: &FileStore) {
    let id = topic_id(store);
    let guard = store.shared.engine();
    guard.as_ref().unwrap().fail_in_background(id);
}

/// A store with a log, and what is below it.
async fn opened() -> (TempDir, TestDisk, FileStore, Arc<dyn Log>) {
    let folder = tempfile::tempdir().unwrap();
    let disk = TestDisk::new();
    let store = disk.store(folder.path()).await;
    let first = log(&store, "orders", 0).await;
    (folder, disk, store, first)
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_acknowledged_any_more() {
    let (folder, disk, store, first) = opened().await;
    append(&first, "acked").await;
    disk.0.fails.store(true, Ordering::SeqCst);
    let error = first.append(vec![record("lost")]).await.unwrap_err();
    assert!(matches!(error, BrokerError::Poisoned(_)), "{error}");
    assert!(error.to_string().contains("the disk is broken"), "{error}");

    // The disk works again, but who knows what it has?
    disk.0.fails.store(false, Ordering::SeqCst);
    for attempt in 0..3 {
        let error = first.append(vec![record("late")]).await.unwrap_err();
        assert!(
            matches!(error, BrokerError::Poisoned(_)),
            "{attempt}: {error}"
        );
    }
    let error = first
        .save_position("g", &Position::at(1))
        .await
        .unwrap_err();
    assert!(matches!(error, BrokerError::Poisoned(_)), "{error}");
    let error = store.health().unwrap_err();
    assert!(matches!(error, BrokerError::Poisoned(_)), "{error}");
    assert_eq!(first.span(), 0..1);
    let all = read_all(&first, 0).await.unwrap();
    assert_eq!(all.iter().map(text).collect::<Vec<_>>(), ["acked"]);
    assert!(store.close().await.is_err());

    let store = open(folder.path()).await;
    let all = read_all(&log(&store, "orders", 0).await, 0).await.unwrap();
    assert_eq!(text(&all[0]), "acked");
    // The one of which nobody knew may be there; the ones after it were never tried.
    assert!(all.len() <= 2);
}

#[tokio::test]
async fn all_publishers_of_a_batch_hear_of_a_failed_sync() {
    let (_folder, disk, _store, first) = opened().await;
    disk.0.fails.store(true, Ordering::SeqCst);
    let gate = disk.0.gate.lock().await;
    let publishers: Vec<_> = (0..50)
        .map(|_| {
            let log = first.clone();
            tokio::spawn(async move { log.append(vec![record("x")]).await })
        })
        .collect();
    drop(gate);
    for publisher in publishers {
        assert!(publisher.await.unwrap().is_err());
    }
}

#[tokio::test]
async fn nobody_sees_a_record_before_it_is_durable() {
    let (_folder, disk, store, first) = opened().await;
    append(&first, "a").await;
    let gate = disk.0.gate.lock().await;
    let publisher = tokio::spawn({
        let log = first.clone();
        async move { log.append(vec![record("b")]).await }
    });
    // It is written, and waits for the sync.
    let id = topic_id(&store);
    let is_written = || {
        let guard = store.shared.engine();
        guard.as_ref().unwrap().rows(id, 0, 0, 1).next().is_some()
    };
    wait_for!(is_written());
    assert_eq!(first.span(), 0..1);
    log_state(&store, 0).lock().forget(usize::MAX);
    assert_eq!(first.read(0, 10).await.unwrap().len(), 1);
    assert!(!publisher.is_finished());
    drop(gate);
    assert_eq!(publisher.await.unwrap().unwrap(), 1);
    assert_eq!(first.read(0, 10).await.unwrap().len(), 2);
}

#[tokio::test]
async fn publishers_share_a_sync_and_positions_need_none() {
    let folder = tempfile::tempdir().unwrap();
    let disk = TestDisk::new();
    let store = disk.store(folder.path()).await;
    let logs = [
        log(&store, "orders", 0).await,
        log(&store, "orders", 1).await,
    ];
    let before = disk.0.syncs.load(Ordering::SeqCst);
    let gate = disk.0.gate.lock().await;
    let begun = Arc::new(AtomicUsize::new(0));
    let publishers: Vec<_> = (0..100)
        .map(|number| {
            let (log, begun) = (logs[number % 2].clone(), begun.clone());
            tokio::spawn(async move {
                begun.fetch_add(1, Ordering::SeqCst);
                log.append(vec![record("x")]).await
            })
        })
        .collect();
    // All of them stand in line before the disk goes on.
    wait_for!(begun.load(Ordering::SeqCst) == 100);
    drop(gate);
    for publisher in publishers {
        publisher.await.unwrap().unwrap();
    }
    let syncs = disk.0.syncs.load(Ordering::SeqCst) - before;
    assert!((1..=3).contains(&syncs), "{syncs} syncs");

    for low in 1..20 {
        let position = Position::at(low);
        logs[0].save_position("g", &position).await.unwrap();
    }
    assert_eq!(disk.0.syncs.load(Ordering::SeqCst) - before, syncs);
}

#[tokio::test]
async fn a_full_disk_is_told_and_passes_by_itself() {
    let (_folder, disk, store, first) = opened().await;
    append(&first, "before").await;
    disk.0.free.store(1 << 20, Ordering::SeqCst);
    let error = first.append(vec![record("no room")]).await.unwrap_err();
    assert!(matches!(error, BrokerError::DiskFull { .. }), "{error}");
    assert!(matches!(store.health(), Err(BrokerError::DiskFull { .. })));
    // What frees space, and what is small, is still done.
    first.save_position("g", &Position::at(1)).await.unwrap();
    first.trim(1).await.unwrap();

    disk.0.free.store(1 << 40, Ordering::SeqCst);
    wait_for!(store.health().is_ok());
    assert_eq!(append(&first, "after").await, 1);
}

#[tokio::test]
async fn an_engine_that_failed_for_want_of_room_is_opened_anew() {
    let (_folder, disk, store, first) = opened().await;
    append(&first, "before").await;
    first.save_position("g", &Position::at(1)).await.unwrap();

    // A background thread of the engine fails.
    disk.0.free.store(200 << 20, Ordering::SeqCst);
    fail_in_background(&store);
    let error = first.append(vec![record("no room")]).await.unwrap_err();
    assert!(matches!(error, BrokerError::DiskFull { .. }), "{error}");
    assert_eq!(first.read(0, 10).await.unwrap().len(), 1, "reading goes on");

    disk.0.free.store(1 << 40, Ordering::SeqCst);
    wait_for!(store.health().is_ok());
    assert_eq!(append(&first, "after").await, 1);
    let all = read_all(&first, 0).await.unwrap();
    assert_eq!(
        all.iter().map(text).collect::<Vec<_>>(),
        ["before", "after"]
    );
    assert_eq!(first.position("g").await.unwrap(), Some(Position::at(1)));
}

#[tokio::test]
async fn a_position_that_was_refused_does_not_make_the_next_one_count_as_known() {
    let (folder, disk, store, first) = opened().await;
    append(&first, "a").await;
    append(&first, "b").await;
    disk.0.free.store(200 << 20, Ordering::SeqCst);
    fail_in_background(&store);
    let refused = first.save_position("g", &Position::at(2)).await;
    assert!(matches!(refused, Err(BrokerError::DiskFull { .. })));
    disk.0.free.store(1 << 40, Ordering::SeqCst);
    wait_for!(store.health().is_ok());
    // It is behind the one that was refused, and that is nowhere.
    first.save_position("g", &Position::at(1)).await.unwrap();
    assert_eq!(first.position("g").await.unwrap(), Some(Position::at(1)));
    drop(first);
    store.close().await.unwrap();
    let store = TestDisk::new().store(folder.path()).await;
    let first = log(&store, "orders", 0).await;
    assert_eq!(first.position("g").await.unwrap(), Some(Position::at(1)));
}

#[tokio::test]
async fn an_engine_that_failed_on_a_full_disk_is_opened_anew_when_that_is_found_out_late() {
    let (_folder, disk, store, first) = opened().await;
    append(&first, "before").await;
    disk.0.free.store(1 << 20, Ordering::SeqCst);
    assert!(first.append(vec![record("no room")]).await.is_err());
    fail_in_background(&store);
    // Nothing was committed meanwhile.
    disk.0.free.store(1 << 40, Ordering::SeqCst);
    wait_for!(store.health().is_ok());
    let error = first.append(vec![record("x")]).await.unwrap_err();
    assert!(matches!(error, BrokerError::DiskFull { .. }), "{error}");
    wait_for!(store.health().is_ok());
    assert_eq!(append(&first, "after").await, 1);
}

#[tokio::test]
async fn an_engine_that_gave_up_without_a_reason_is_opened_anew() {
    let (_folder, _disk, store, first) = opened().await;
    append(&first, "before").await;
    fail_in_background(&store);
    let error = first.append(vec![record("x")]).await.unwrap_err();
    assert!(error.to_string().contains("goes on by itself"), "{error}");
    wait_for!(store.health().is_ok());
    assert_eq!(append(&first, "after").await, 1);
    let all = read_all(&first, 0).await.unwrap();
    assert_eq!(
        all.iter().map(text).collect::<Vec<_>>(),
        ["before", "after"]
    );
}

#[tokio::test]
async fn an_engine_is_opened_anew_to_free_space_before_new_records_have_room() {
    let (_folder, disk, store, first) = opened().await;
    append(&first, "before").await;
    disk.0.free.store(100 << 20, Ordering::SeqCst);
    fail_in_background(&store);
    let position = Position::at(1);
    let error = first.save_position("g", &position).await.unwrap_err();
    assert!(matches!(error, BrokerError::DiskFull { .. }), "{error}");

    let trimmed = async {
        while first.trim(1).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let limit = Duration::from_mins(2);
    tokio::time::timeout(limit, trimmed).await.expect("in time");
    assert!(matches!(store.health(), Err(BrokerError::DiskFull { .. })));
    assert!(first.append(vec![record("no room")]).await.is_err());
    disk.0.free.store(1 << 40, Ordering::SeqCst);
    wait_for!(store.health().is_ok());
    assert_eq!(append(&first, "after").await, 1);
}
