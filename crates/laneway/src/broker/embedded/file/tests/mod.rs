//! The store as a whole, on a real disk.

mod damage;
mod failures;
mod model;
mod seams;
mod space;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use waiting::wait_for;

use super::{FileLimits, FileStore};
use crate::broker::BrokerError;
use crate::broker::embedded::store::{Log, Store};
use crate::record::{Delivered, Record};
use crate::settle::{Position, Tracker};
use crate::topic::{Topic, TopicName};

fn name(topic: &str) -> TopicName {
    TopicName::new(topic).unwrap()
}

fn record(text: &str) -> Record {
    let mut record = Record {
        key: Some(text.into()),
        payload: Bytes::copy_from_slice(text.as_bytes()),
        timestamp_ms: 1_763_200_000_000,
        ..Record::default()
    };
    record.headers.insert("X-Text", text.to_owned()).unwrap();
    record
}

async fn open(directory: &Path) -> FileStore {
    FileStore::open(directory, FileLimits::default())
        .await
        .unwrap()
}

/// A store with a topic of a few partitions.
async fn store_with(directory: &Path, topic: &str) -> FileStore {
    let store = open(directory).await;
    let topic = Topic::domain(topic).partitions(4).build().unwrap();
    store.put_topic(&topic).await.unwrap();
    store
}

async fn log(store: &FileStore, topic: &str, partition: u32) -> Arc<dyn Log> {
    store.log(&name(topic), partition).await.unwrap()
}

async fn append(log: &Arc<dyn Log>, text: &str) -> u64 {
    log.append(vec![record(text)]).await.unwrap()
}

fn text(delivered: &Delivered) -> String {
    String::from_utf8(delivered.record.payload.to_vec()).unwrap()
}

/// Everything from an offset on, through as many reads as it takes.
async fn read_all(log: &Arc<dyn Log>, from: u64) -> Result<Vec<Delivered>, BrokerError> {
    let mut all = Vec::<Delivered>::new();
    loop {
        let next = all.last().map_or(from, |last| last.offset + 1);
        let some = log.read(next, 100).await?;
        if some.is_empty() {
            return Ok(all);
        }
        all.extend(some);
    }
}

#[tokio::test]
async fn what_was_appended_is_there_after_it_was_closed_and_opened() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with(folder.path(), "orders").await;
    for partition in 0..4 {
        let log = log(&store, "orders", partition).await;
        for number in 0..300 {
            let offset = append(&log, &format!("{partition}-{number}")).await;
            assert_eq!(offset, number);
        }
        let many = (300..1500).map(|n| record(&format!("{partition}-{n}")));
        assert_eq!(log.append(many.collect()).await.unwrap(), 300);
    }
    let before = log(&store, "orders", 2).await.bytes();
    store.close().await.unwrap();

    let store = open(folder.path()).await;
    let topics = store.topics().await.unwrap();
    assert_eq!(topics.len(), 1);
    assert_eq!(topics[0].partitions().get(), 4);
    for partition in 0..4 {
        let log = log(&store, "orders", partition).await;
        assert_eq!(log.span(), 0..1500);
        let all = read_all(&log, 0).await.unwrap();
        assert_eq!(all.len(), 1500);
        for (number, delivered) in (0..).zip(&all) {
            assert_eq!(delivered.offset, number);
            let expected = record(&format!("{partition}-{number}"));
            assert_eq!(*delivered.record, expected);
        }
        assert_eq!(append(&log, "next").await, 1500);
    }
    let log = log(&store, "orders", 2).await;
    assert_eq!(log.bytes(), before + record("next").size() as u64);
}

#[tokio::test]
async fn reading_begins_anywhere_and_is_the_same_from_memory_and_from_disk() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with(folder.path(), "orders").await;
    let first = log(&store, "orders", 0).await;
    for number in 0..100 {
        append(&first, &number.to_string()).await;
    }
    for _ in 0..2 {
        let log = log(&store, "orders", 0).await;
        for from in [0, 1, 57, 99, 100, 5000] {
            let read = log.read(from, 10).await.unwrap();
            let offsets: Vec<_> = read.iter().map(|delivered| delivered.offset).collect();
            let expected: Vec<_> = (from..100).take(10).collect();
            assert_eq!(offsets, expected);
            assert!(read.iter().all(|d| text(d) == d.offset.to_string()));
        }
        // From disk the second time.
        log_state(&store, 0).lock().forget(usize::MAX);
    }
}

fn topic_id(store: &FileStore) -> u32 {
    let state = store.shared.topics.lock().state(&name("orders"));
    state.unwrap().id
}

fn log_state(store: &FileStore, partition: u32) -> Arc<super::state::LogState> {
    let mut topics = store.shared.topics.lock();
    let topic = topics.state(&name("orders")).unwrap();
    topics.log(&topic, partition)
}

#[tokio::test]
async fn a_second_owner_is_refused_and_may_come_later() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let error = FileStore::open(folder.path(), FileLimits::default())
        .await
        .err()
        .unwrap();
    assert!(matches!(error, BrokerError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("in use by another process"));
    store.close().await.unwrap();
    let store = open(folder.path()).await;
    // Dropped without a word, it lets go soon. An open waits a second for that, and its disk may take longer.
    drop(store);
    let open = async || {
        let opened = FileStore::open(folder.path(), FileLimits::default()).await;
        opened.is_ok()
    };
    wait_for!(open().await, "it has let go");
}

#[tokio::test]
async fn a_closed_store_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with(folder.path(), "orders").await;
    let log = log(&store, "orders", 0).await;
    append(&log, "a").await;
    store.close().await.unwrap();
    store.close().await.unwrap();
    let position = Position::at(1);
    for error in [
        log.append(vec![record("b")]).await.err(),
        log.save_position("g", &position).await.err(),
        store.remove_topic(&name("orders")).await.err(),
        store.health().err(),
    ] {
        assert!(matches!(error, Some(BrokerError::Closed)), "{error:?}");
    }
}

#[tokio::test]
async fn positions_survive_and_never_go_back() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with(folder.path(), "orders").await;
    let first = log(&store, "orders", 0).await;
    assert_eq!(first.position("g").await.unwrap(), None);
    let mut tracker = Tracker::resume(Position::at(0));
    (0..10).for_each(|offset| assert!(tracker.deliver(offset)));
    tracker.done(0);
    let older = tracker.position();
    tracker.done(7);
    let newer = tracker.position();
    first.save_position("g", &newer).await.unwrap();
    first.save_position("g", &older).await.unwrap();
    first.save_position("other", &older).await.unwrap();
    log(&store, "orders", 1)
        .await
        .save_position("g", &Position::at(44))
        .await
        .unwrap();
    store.close().await.unwrap();

    let store = open(folder.path()).await;
    let first = log(&store, "orders", 0).await;
    assert_eq!(first.position("g").await.unwrap(), Some(newer));
    assert_eq!(first.position("other").await.unwrap(), Some(older));
    let second = log(&store, "orders", 1).await;
    assert_eq!(second.position("g").await.unwrap(), Some(Position::at(44)));
    assert_eq!(second.position("other").await.unwrap(), None);
}

#[tokio::test]
async fn a_removed_topic_is_gone_and_a_new_one_of_its_name_is_empty() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with(folder.path(), "orders").await;
    let old = log(&store, "orders", 0).await;
    append(&old, "old").await;
    old.save_position("g", &Position::at(1)).await.unwrap();
    store.remove_topic(&name("orders")).await.unwrap();
    for error in [
        old.append(vec![record("x")]).await.err(),
        old.read(0, 1).await.err(),
        store.log(&name("orders"), 0).await.err(),
    ] {
        let told = matches!(error, Some(BrokerError::UnknownTopic(_)));
        assert!(told, "{error:?}");
    }
    let topic = Topic::domain("orders").build().unwrap();
    store.put_topic(&topic).await.unwrap();
    for _ in 0..2 {
        let new = log(&store, "orders", 0).await;
        assert_eq!(new.span(), 0..0);
        assert_eq!(new.position("g").await.unwrap(), None);
    }
    append(&log(&store, "orders", 0).await, "new").await;
    store.close().await.unwrap();
    let store = open(folder.path()).await;
    let all = read_all(&log(&store, "orders", 0).await, 0).await.unwrap();
    assert_eq!(all.iter().map(text).collect::<Vec<_>>(), ["new"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishers_at_once_get_dense_offsets_and_keep_their_own_order() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with(folder.path(), "orders").await;
    let shared = log(&store, "orders", 0).await;
    let publishers: Vec<_> = (0..32)
        .map(|publisher| {
            let log = shared.clone();
            tokio::spawn(async move {
                let mut offsets = Vec::new();
                for number in 0..20 {
                    // Several in one call stay together.
                    let both =
                        ["a", "b"].map(|half| record(&format!("{publisher} {number}{half}")));
                    offsets.push(log.append(both.to_vec()).await.unwrap());
                }
                offsets
            })
        })
        .collect();
    let mut taken = Vec::new();
    for publisher in publishers {
        let offsets = publisher.await.unwrap();
        assert!(offsets.is_sorted());
        taken.extend(offsets);
    }
    taken.sort_unstable();
    assert_eq!(taken, (0..640).map(|n| n * 2).collect::<Vec<_>>());
    store.close().await.unwrap();

    let store = open(folder.path()).await;
    let all = read_all(&log(&store, "orders", 0).await, 0).await.unwrap();
    assert_eq!(all.len(), 1280);
    for both in all.chunks(2) {
        let (first, second) = (text(&both[0]), text(&both[1]));
        assert_eq!(first.strip_suffix('a'), second.strip_suffix('b'));
    }
}

#[tokio::test]
async fn large_records_and_large_batches_go_through() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with(folder.path(), "orders").await;
    let first = log(&store, "orders", 0).await;
    let large = Record {
        payload: vec![7; 3 << 20].into(),
        ..Record::default()
    };
    // More than the queue has room for.
    let offset = first.append(vec![large.clone(); 12]).await.unwrap();
    assert_eq!(offset, 0);
    store.close().await.unwrap();
    let store = open(folder.path()).await;
    let first = log(&store, "orders", 0).await;
    let some = first.read(0, 100).await.unwrap();
    assert!((1..12).contains(&some.len()), "a bounded number of bytes");
    let all = read_all(&first, 0).await.unwrap();
    assert_eq!(all.len(), 12);
    assert!(all.iter().all(|delivered| *delivered.record == large));
}

#[tokio::test]
async fn nothing_to_append_is_nothing_appended() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with(folder.path(), "orders").await;
    let log = log(&store, "orders", 0).await;
    append(&log, "a").await;
    assert_eq!(log.append(Vec::new()).await.unwrap(), 1);
    assert_eq!(log.span(), 0..1);
}

/// A directory as this version leaves it: a topic of two partitions, records, a position, and a log that was trimmed.
fn made() -> String {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = open(folder.path()).await;
        let topic = Topic::domain("orders").partitions(2).build().unwrap();
        store.put_topic(&topic).await.unwrap();
        let first = log(&store, "orders", 0).await;
        for number in 0..3 {
            append(&first, &format!("first {number}")).await;
        }
        first.save_position("g", &Position::at(2)).await.unwrap();
        first.trim(1).await.unwrap();
        append(&log(&store, "orders", 1).await, "second").await;
        store.close().await.unwrap();
    });
    fixtures::pack(folder.path(), |name| name == "lock").unwrap()
}

#[tokio::test]
async fn the_fixture_of_a_store_opens_and_has_what_was_stored() {
    let making = || std::thread::spawn(made).join().unwrap();
    let packed = fixtures::text("file-store-1.txt", making);
    let folder = tempfile::tempdir().unwrap();
    fixtures::unpack(&packed, folder.path()).unwrap();
    let store = open(folder.path()).await;
    let topics = store.topics().await.unwrap();
    let orders = Topic::domain("orders").partitions(2).build().unwrap();
    assert_eq!(topics, [orders]);
    let first = log(&store, "orders", 0).await;
    assert_eq!(first.span(), 1..3);
    assert_eq!(first.position("g").await.unwrap(), Some(Position::at(2)));
    let all = read_all(&first, 1).await.unwrap();
    assert_eq!(*all[0].record, record("first 1"));
    assert_eq!(*all[1].record, record("first 2"));
    let second = log(&store, "orders", 1).await;
    assert_eq!(text(&read_all(&second, 0).await.unwrap()[0]), "second");
    assert_eq!(append(&second, "next").await, 1);
    store.close().await.unwrap();
}
