//! Where two mechanisms touch: retention and recovery, journals and syncs, a caller that gives up and the writer.
//! With sizes so small that everything happens.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use laneway_disk::{Disk, Space};

use super::super::batch::Batch;
use super::super::catalog::{self, Key};
use super::super::state::{Mark, Span};
use super::*;
use crate::broker::embedded::Embedded;
use crate::broker::{Broker, Start};
use crate::topic::{Growth, Storage, Strategy};

async fn tiny(directory: &Path) -> FileStore {
    let store = FileStore::open(directory, FileLimits::tiny()).await;
    store.unwrap()
}

fn kilobyte() -> Record {
    Record {
        payload: vec![7; 1 << 10].into(),
        ..Record::default()
    }
}

/// The segments that a partition holds on to.
fn segments(store: &FileStore, partition: u32) -> Vec<u32> {
    let log = log_state(store, partition);
    let contents = log.lock();
    contents.spans.iter().map(|span| span.segment).collect()
}

/// Four partitions that were used once, one after the other, and of which retention took everything; a fifth one
/// goes on, until their segments are old enough to be moved together.
async fn emptied(directory: &Path) -> FileStore {
    let store = tiny(directory).await;
    let topic = Topic::domain("orders").partitions(5).build().unwrap();
    store.put_topic(&topic).await.unwrap();
    let busy = log(&store, "orders", 4).await;
    for partition in 0..4 {
        append(&log(&store, "orders", partition).await, "once").await;
        for _ in 0..4 {
            busy.append(vec![kilobyte()]).await.unwrap();
        }
    }
    for _ in 0..8 {
        busy.append(vec![kilobyte()]).await.unwrap();
    }
    for partition in 0..4 {
        let quiet = log(&store, "orders", partition).await;
        quiet.trim(1).await.unwrap();
    }
    busy.trim(busy.span().end - 3).await.unwrap();
    store
}

#[tokio::test]
async fn a_store_opens_after_retention_emptied_quiet_partitions() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = emptied(folder.path()).await;
    for round in 0..3 {
        store.close().await.unwrap();
        store = tiny(folder.path()).await;
        let busy = log(&store, "orders", 4).await;
        assert_eq!(read_all(&busy, 0).await.unwrap().len(), 3);
        for partition in 0..4 {
            let quiet = log(&store, "orders", partition).await;
            assert_eq!(quiet.span(), 1 + round..1 + round);
            assert_eq!(quiet.bytes(), 0);
            assert_eq!(append(&quiet, "again").await, 1 + round);
            assert_eq!(read_all(&quiet, 0).await.unwrap().len(), 1);
            quiet.trim(2 + round).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_partition_of_which_nothing_is_left_holds_on_to_no_segment() {
    let folder = tempfile::tempdir().unwrap();
    let store = emptied(folder.path()).await;
    for partition in 0..4 {
        assert!(segments(&store, partition).is_empty());
    }
    let id = topic_id(&store);
    let has_rows = |store: &FileStore| {
        let oldest = segments(store, 4)[0];
        let guard = store.shared.engine();
        guard.as_ref().unwrap().has_rows(id, 0, oldest - 1)
    };
    // Rows in memory go when their table is written.
    store.shared.engine().as_ref().unwrap().flush(id);
    let busy = log(&store, "orders", 4).await;
    for _ in 0..40 {
        busy.append(vec![kilobyte()]).await.unwrap();
        busy.trim(busy.span().end - 1).await.unwrap();
        if !has_rows(&store) {
            return;
        }
    }
    panic!("records of emptied partitions are still there");
}

#[tokio::test]
async fn a_store_that_an_earlier_version_left_without_the_end_of_a_log_opens() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with(folder.path(), "orders").await;
    let quiet = log(&store, "orders", 0).await;
    append(&quiet, "once").await;
    let end = log_state(&store, 0).lock().end;
    let id = topic_id(&store);
    {
        // All of it was removed, and its span moved into a segment without a row.
        let guard = store.shared.engine();
        let mut batch = Batch::new(guard.as_ref().unwrap(), store.shared.identity, 0);
        let start = catalog::numbers([end.offset, end.size]);
        batch.put(&Key::Start(id, 0), start);
        let first = Mark::default();
        batch.put_span(id, 0, Span { first, segment: 77 });
        batch.commit(&laneway_disk::RealDisk).1.unwrap();
    }
    store.close().await.unwrap();
    for round in 0..2 {
        let store = open(folder.path()).await;
        let quiet = log(&store, "orders", 0).await;
        assert_eq!(quiet.span().end, 1 + round);
        assert_eq!(append(&quiet, "again").await, 1 + round);
        let all = read_all(&quiet, 0).await.unwrap();
        assert_eq!(all.len() as u64, 1 + round);
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_last_span_without_a_row_is_damage_where_nothing_was_removed() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with(folder.path(), "orders").await;
    append(&log(&store, "orders", 0).await, "there").await;
    let id = topic_id(&store);
    {
        let guard = store.shared.engine();
        let mut batch = Batch::new(guard.as_ref().unwrap(), store.shared.identity, 0);
        let first = Mark::default();
        batch.put_span(id, 0, Span { first, segment: 77 });
        batch.commit(&laneway_disk::RealDisk).1.unwrap();
    }
    store.close().await.unwrap();
    let error = FileStore::open(folder.path(), FileLimits::default()).await;
    let error = error.err().unwrap();
    assert!(matches!(error, BrokerError::Damaged { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_come_while_a_log_is_emptied_are_there_after_it_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut expected = 0;
    for _ in 0..6 {
        let store = tiny(folder.path()).await;
        let topic = Topic::domain("orders").partitions(4).build().unwrap();
        store.put_topic(&topic).await.unwrap();
        let shared = log(&store, "orders", 0).await;
        assert_eq!(shared.span().end, expected);
        let trimming = {
            let log = shared.clone();
            tokio::spawn(async move {
                for _ in 0..40 {
                    log.trim(log.span().end).await.unwrap();
                }
            })
        };
        for _ in 0..40 {
            let both = vec![record("a"), record("b")];
            assert_eq!(shared.append(both).await.unwrap(), expected);
            expected += 2;
        }
        trimming.await.unwrap();
        let span = shared.span();
        let left = read_all(&shared, 0).await.unwrap();
        assert_eq!(left.len() as u64, span.end - span.start);
        store.close().await.unwrap();
    }
}

/// Notes which files are synced.
#[derive(Clone, Default)]
struct Witness {
    synced: Arc<Mutex<BTreeSet<u64>>>,
    syncs: Arc<AtomicU64>,
    /// Held by a test that wants syncs to wait.
    gate: Arc<tokio::sync::Mutex<()>>,
}

impl Disk for Witness {
    fn sync(&self, journal: &File) -> io::Result<()> {
        drop(self.gate.blocking_lock());
        self.syncs.fetch_add(1, Ordering::SeqCst);
        let inode = journal.metadata()?.ino();
        self.synced.lock().unwrap().insert(inode);
        journal.sync_data()
    }

    fn space(&self, _: &Path) -> io::Result<Space> {
        let free = 1 << 40;
        Ok(Space { free, total: free })
    }
}

impl Witness {
    async fn store(&self, directory: &Path, limits: FileLimits) -> FileStore {
        let disk = Box::new(self.clone());
        FileStore::open_on(directory, disk, limits).await.unwrap()
    }
}

/// The journals that are there: number and inode.
fn journals(directory: &Path) -> Vec<(u64, u64)> {
    let entries = fs::read_dir(directory.join("log")).unwrap();
    let mut all: Vec<_> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let number = name.strip_suffix(".jnl")?.parse().ok()?;
            Some((number, entry.metadata().ok()?.ino()))
        })
        .collect();
    all.sort_unstable();
    all
}

/// Writes a row of the catalog as large as many positions, which nobody waits for.
fn write_unsynced(store: &FileStore) {
    let guard = store.shared.engine();
    let mut batch = Batch::new(guard.as_ref().unwrap(), store.shared.identity, 0);
    batch.put(&Key::Position(0, 0, "group".to_owned()), vec![0; 4 << 20]);
    batch.commit(&laneway_disk::RealDisk).1.unwrap();
}

/// A group works off a backlog, and nobody publishes meanwhile: nothing but positions is written.
#[tokio::test]
async fn publishes_are_synced_after_a_long_time_of_only_positions() {
    let folder = tempfile::tempdir().unwrap();
    let witness = Witness::default();
    let never = FileLimits {
        sync_every: Duration::from_hours(1),
        ..FileLimits::default()
    };
    let store = witness.store(folder.path(), never).await;
    let topic = Topic::domain("orders").partitions(1).build().unwrap();
    store.put_topic(&topic).await.unwrap();
    let log = log(&store, "orders", 0).await;
    append(&log, "first").await;
    let (oldest, _) = journals(folder.path())[0];
    // Until two journals were begun and the first of them is gone.
    let newest = loop {
        write_unsynced(&store);
        let (number, inode) = *journals(folder.path()).last().unwrap();
        let is_gone = |number: u64| {
            journals(folder.path())
                .iter()
                .all(|(other, _)| *other != number)
        };
        if number >= oldest + 2 && is_gone(oldest + 1) {
            break inode;
        }
        assert!(number < oldest + 40, "journals are never removed");
    };
    witness.synced.lock().unwrap().clear();
    append(&log, "important").await;
    let synced = witness.synced.lock().unwrap().clone();
    let now = journals(folder.path()).last().unwrap().1;
    assert!(
        synced.contains(&newest) || synced.contains(&now),
        "the journal that it is in was not synced"
    );
}

#[tokio::test]
async fn positions_are_synced_by_themselves_after_a_while() {
    let folder = tempfile::tempdir().unwrap();
    let witness = Witness::default();
    let store = witness.store(folder.path(), FileLimits::tiny()).await;
    let topic = Topic::domain("orders").partitions(1).build().unwrap();
    store.put_topic(&topic).await.unwrap();
    let log = log(&store, "orders", 0).await;
    let before = witness.syncs.load(Ordering::SeqCst);
    log.save_position("group", &Position::at(1)).await.unwrap();
    wait_for!(witness.syncs.load(Ordering::SeqCst) > before);
}

/// A broker over a store on a disk that is watched.
async fn broker(directory: &Path, topic: &Topic) -> (Witness, Embedded) {
    let witness = Witness::default();
    let limits = FileLimits {
        sync_every: Duration::from_hours(1),
        ..FileLimits::default()
    };
    let store = witness.store(directory, limits).await;
    let broker = Embedded::over(Arc::new(store)).await.unwrap();
    declare(&broker, topic).await.unwrap();
    (witness, broker)
}

async fn declare(broker: &Embedded, topic: &Topic) -> Result<Topic, BrokerError> {
    broker
        .declare(topic, Strategy::CreateOnly, Growth::default())
        .await
}

#[tokio::test]
async fn what_a_plain_topic_commits_is_on_disk_before_it_is_handled() {
    for (topic, must_sync) in [
        (Topic::plain("notes").storage(Storage::File), true),
        (Topic::domain("notes"), false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let topic = topic.partitions(1).build().unwrap();
        let (witness, broker) = broker(folder.path(), &topic).await;
        let join = broker.join(topic.name(), "g", Start::Earliest);
        let assignment = join.await.unwrap().next().await.unwrap();
        for position in [5, 5, 3] {
            let before = witness.syncs.load(Ordering::SeqCst);
            assignment.commit(Position::at(position)).await.unwrap();
            let synced = witness.syncs.load(Ordering::SeqCst) > before;
            assert_eq!(synced, must_sync, "{:?}", topic.kind());
        }
        let noted = broker.position(topic.name(), 0, "g").await.unwrap();
        assert_eq!(noted, Some(Position::at(5)));
    }
}

#[tokio::test]
async fn a_topic_whose_deletion_is_given_up_is_deleted_for_all() {
    let folder = tempfile::tempdir().unwrap();
    let topic = Topic::domain("orders").partitions(2).build().unwrap();
    let (witness, broker) = broker(folder.path(), &topic).await;
    let publish = || broker.publish(topic.name(), 0, vec![record("old")]);
    publish().await.unwrap();
    {
        let gate = witness.gate.lock().await;
        let syncs = witness.syncs.load(Ordering::SeqCst);
        let deleting = broker.delete(topic.name());
        let gave_up = tokio::time::timeout(Duration::from_millis(30), deleting).await;
        assert!(gave_up.is_err());
        assert_eq!(witness.syncs.load(Ordering::SeqCst), syncs);
        drop(gate);
    }
    let deadline = tokio::time::Instant::now() + Duration::from_mins(2);
    while broker.describe(topic.name()).await.unwrap().is_some() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "it is still declared"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let error = publish().await.unwrap_err();
    assert!(matches!(error, BrokerError::UnknownTopic(_)), "{error}");
    declare(&broker, &topic).await.unwrap();
    publish().await.unwrap();
    let all = broker.peek(topic.name(), 0, 0, 10).await.unwrap();
    assert_eq!(all.len(), 1);
}

#[tokio::test]
async fn a_first_join_that_dies_half_way_still_means_from_now_on() {
    let folder = tempfile::tempdir().unwrap();
    let topic = Topic::domain("orders").partitions(8).build().unwrap();
    let (_witness, broker) = broker(folder.path(), &topic).await;
    for partition in 0..8 {
        let publish = broker.publish(topic.name(), partition, vec![record("old")]);
        publish.await.unwrap();
    }
    {
        // Given up as soon as the first position is noted, which is as good as a kill.
        let mut joining = broker.join(topic.name(), "g", Start::Latest);
        let has_begun = async || {
            for partition in 0..8 {
                let position = broker.position(topic.name(), partition, "g");
                if position.await.unwrap().is_some() {
                    return true;
                }
            }
            false
        };
        while !has_begun().await {
            assert!((&mut joining).now_or_never().is_none(), "it got too far");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let mut member = broker.join(topic.name(), "g", Start::Latest).await.unwrap();
    for _ in 0..8 {
        let assignment = member.next().await.unwrap();
        assert_eq!(
            assignment.position().low(),
            1,
            "partition {}",
            assignment.partition()
        );
    }
}

#[tokio::test]
async fn damage_to_the_first_commit_of_a_journal_is_told_and_nothing_is_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with(folder.path(), "orders").await;
    let first = log(&store, "orders", 0).await;
    for number in 0..20 {
        append(&first, &number.to_string()).await;
    }
    store.close().await.unwrap();
    let journal = folder.path().join("log").join("0.jnl");
    let mut bytes = fs::read(&journal).unwrap();
    bytes[40] ^= 4;
    fs::write(&journal, &bytes).unwrap();
    for _ in 0..2 {
        let error = FileStore::open(folder.path(), FileLimits::default()).await;
        let error = error.err().unwrap();
        assert!(matches!(error, BrokerError::Damaged { .. }), "{error}");
        let found = fs::read(&journal).unwrap();
        let length = bytes.iter().rposition(|byte| *byte != 0).unwrap();
        assert!(found.len() > length, "it was cut off at {}", found.len());
        assert_eq!(found[..=length], bytes[..=length]);
    }
    // Whoever can repair it loses nothing.
    bytes[40] ^= 4;
    fs::write(&journal, &bytes).unwrap();
    let store = open(folder.path()).await;
    let all = read_all(&log(&store, "orders", 0).await, 0).await.unwrap();
    assert_eq!(all.len(), 20);
}
