//! Records that are gone give their space back.

use std::fs;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

/// As it is outside of tests.
const SEGMENT_SIZE: u64 = 16 << 20;

fn bytes_below(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

/// Bytes in the engine's tables. Journals come and go.
fn tables(directory: &Path) -> u64 {
    bytes_below(&directory.join("log").join("keyspaces"))
}

/// A mebibyte that nothing compresses.
fn large(dice: &mut StdRng) -> Record {
    let mut payload = vec![0; 1 << 20];
    dice.fill_bytes(&mut payload);
    Record {
        payload: payload.into(),
        ..Record::default()
    }
}

#[tokio::test]
async fn trimmed_records_are_dropped_even_where_a_quiet_partition_holds_on() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with(folder.path(), "orders").await;
    let (busy, quiet) = (
        log(&store, "orders", 0).await,
        log(&store, "orders", 1).await,
    );
    let mut dice = StdRng::seed_from_u64(3);
    let segments = 8;
    let per_segment = SEGMENT_SIZE >> 20;
    for number in 0..segments * per_segment {
        busy.append(vec![large(&mut dice)]).await.unwrap();
        if number % per_segment == 0 {
            append(&quiet, &number.to_string()).await;
        }
    }
    let id = topic_id(&store);
    store.shared.engine().as_ref().unwrap().flush(id);
    let before = tables(folder.path());
    assert!(before > (segments - 2) * SEGMENT_SIZE, "{before} bytes");

    let keep = busy.span().end - 4;
    busy.trim(keep).await.unwrap();
    // The two latest segments stay as they are.
    let deadline = Instant::now() + Duration::from_mins(2);
    while tables(folder.path()) > 3 * SEGMENT_SIZE {
        let left = tables(folder.path());
        assert!(Instant::now() < deadline, "{left} of {before} are left");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    assert_eq!(busy.span().start, keep);
    assert_eq!(read_all(&busy, 0).await.unwrap().len(), 4);
    log_state(&store, 1).lock().forget(usize::MAX);
    let quiet_texts: Vec<_> = read_all(&quiet, 0)
        .await
        .unwrap()
        .iter()
        .map(text)
        .collect();
    let expected: Vec<_> = (0..segments)
        .map(|n| (n * per_segment).to_string())
        .collect();
    assert_eq!(quiet_texts, expected, "they were moved, and are all there");
    assert_eq!(append(&quiet, "more").await, segments);
    store.close().await.unwrap();
    let store = open(folder.path()).await;
    let quiet = log(&store, "orders", 1).await;
    assert_eq!(
        read_all(&quiet, 0).await.unwrap().len() as u64,
        segments + 1
    );

    store.remove_topic(&name("orders")).await.unwrap();
    let deadline = Instant::now() + Duration::from_mins(2);
    while tables(folder.path()) > 1 << 20 {
        let left = tables(folder.path());
        assert!(Instant::now() < deadline, "{left} of a removed topic");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    store.close().await.unwrap();
}

#[tokio::test]
async fn many_small_topics_do_not_pile_up_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let mut dice = StdRng::seed_from_u64(4);
    let mut logs = Vec::new();
    for number in 0..7 {
        let topic = format!("topic-{number}");
        let declared = Topic::domain(&topic).partitions(1).build().unwrap();
        store.put_topic(&declared).await.unwrap();
        logs.push(log(&store, &topic, 0).await);
    }
    // Eleven mebibytes each: none of them is moved out of memory for its own sake.
    let record = large(&mut dice);
    let mut most = 0;
    for _ in 0..11 {
        for log in &logs {
            log.append(vec![record.clone()]).await.unwrap();
            let guard = store.shared.engine();
            most = most.max(guard.as_ref().unwrap().memory());
        }
    }
    assert!((40 << 20..70 << 20).contains(&most), "{most} bytes");
    store.close().await.unwrap();
}
