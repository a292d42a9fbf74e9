//! Damaged tables that the engine merges.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Instant;

use fjall::AbstractTree;

use super::tables::Table;
use super::tests::{TestDisk, draft, end, report};
use super::*;
use crate::store::Operation;

/// Rows are moved to files all the time.
const SIZES: Sizes = Sizes {
    memtable: 4 << 10,
    cache: 64 << 10,
    ..Sizes::DEFAULT
};

const WITHIN: Duration = Duration::from_mins(2);

/// More rows than fit into memory, and then so many more that files are merged.
const FIRST: usize = 300;

fn name(number: usize) -> String {
    format!("m{number}")
}

fn numbered(number: usize) -> Draft {
    let mut draft = draft(&name(number));
    draft.due = Timestamp::from_millis(1_000_000 + number as u64);
    draft.submission.topic = format!("t{}", number % 3);
    draft.submission.idempotency_key = Some(format!("key-{number}"));
    let noise = (0..8u64).flat_map(|part| {
        let seed = part + number as u64 * 8;
        xxhash_rust::xxh3::xxh3_64_with_seed(b"x", seed).to_le_bytes()
    });
    draft.submission = draft.submission.payload(noise.collect::<Vec<u8>>());
    draft
}

/// Submits messages, again where the store cannot write for the moment. It must never give up.
async fn submit_all(store: &DiskStore, numbers: std::ops::Range<usize>) {
    let deadline = Instant::now() + WITHIN;
    let mut numbers: Vec<usize> = numbers.collect();
    while !numbers.is_empty() {
        let some = numbers[..numbers.len().min(20)].iter();
        let answers = store.submit(some.map(|number| numbered(*number)).collect());
        let mut left = Vec::new();
        for (number, answer) in numbers.drain(..numbers.len().min(20)).zip(answers.await) {
            if let Err(error) = answer {
                assert!(!matches!(error, Error::Failed(_)), "{error}");
                assert!(Instant::now() < deadline, "{error}");
                left.push(number);
            }
        }
        if !left.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
            numbers.extend(left);
        }
    }
}

async fn open(folder: &Path) -> DiskStore {
    let disk = Box::new(TestDisk::default());
    DiskStore::open_on(folder, disk, SIZES).await.unwrap()
}

/// Withdraws messages, again where the store cannot write for the moment. One that cannot be read is left.
async fn withdraw_some(
    store: &DiskStore,
    numbers: impl Iterator<Item = usize>,
    withdrawn: &mut BTreeSet<usize>,
) {
    let deadline = Instant::now() + WITHIN;
    let mut numbers: Vec<usize> = numbers.collect();
    while !numbers.is_empty() {
        let changes = numbers.iter().map(|number| Change {
            id: MessageId::new(name(*number)).unwrap(),
            now: Timestamp::from_millis(5),
            what: Operation::Withdraw,
        });
        let answers = store.change(changes.collect()).await;
        let mut left = Vec::new();
        for (number, answer) in numbers.drain(..).zip(answers) {
            match answer {
                Ok(_) => drop(withdrawn.insert(number)),
                Err(Error::Damaged { .. }) => {}
                Err(error) => {
                    assert!(!matches!(error, Error::Failed(_)), "{error}");
                    assert!(Instant::now() < deadline, "{error}");
                    left.push(number);
                }
            }
        }
        numbers = left;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A byte of the rows of the largest file of a table.
fn place_in(store: &DiskStore, table: Table) -> (PathBuf, usize) {
    let guard = store.shared.tables();
    let keyspace = guard.as_ref().unwrap().table(table);
    keyspace.rotate_memtable_and_wait().unwrap();
    // Rows that the engine has taken out of memory by itself are on their way, and files may be merged away meanwhile.
    let length = |path: &PathBuf| std::fs::metadata(path).map_or(0, |file| file.len());
    let deadline = Instant::now() + WITHIN;
    let path = loop {
        let version = keyspace.tree.current_version();
        let files = version.iter_tables();
        let files = files.map(|table| PathBuf::clone(&table.path));
        if let Some(path) = files.max_by_key(length) {
            break path;
        }
        assert!(Instant::now() < deadline, "there is never a file");
        std::thread::sleep(Duration::from_millis(1));
    };
    // The rows come first.
    let at = usize::try_from(length(&path)).unwrap() / 3;
    (path, at)
}

fn flip_at((path, at): &(PathBuf, usize)) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[*at] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

fn has_mended(folder: &Path) -> bool {
    std::fs::read_dir(folder.join("damaged")).is_ok_and(|files| {
        files
            .flatten()
            .any(|file| !file.file_name().to_string_lossy().starts_with("new"))
    })
}

async fn places(store: &DiskStore) -> BTreeSet<usize> {
    let scanned = store.scan(DueKey::FIRST, end(), 100_000).await.unwrap();
    let number =
        |waiting: &Scheduled| usize::try_from(waiting.due_key.at.as_millis() - 1_000_000).unwrap();
    let numbers: BTreeSet<usize> = scanned.iter().map(number).collect();
    assert_eq!(numbers.len(), scanned.len());
    numbers
}

/// A store with a damaged block goes on, whichever table has it, also when that table is merged; and after a restart.
async fn goes_on_with_a_damaged(table: Table) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let store = open(folder).await;
    submit_all(&store, 0..FIRST).await;
    let mut withdrawn = BTreeSet::new();
    withdraw_some(&store, (0..FIRST).step_by(7), &mut withdrawn).await;
    let place = place_in(&store, table);
    store.close().await.unwrap();
    drop(store);
    if !place.0.exists() {
        // It was merged meanwhile.
        return Box::pin(goes_on_with_a_damaged(table)).await;
    }
    flip_at(&place);

    let store = open(folder).await;
    let (mut count, mut round) = (FIRST, 0);
    let deadline = Instant::now() + WITHIN;
    while !has_mended(folder) {
        assert!(Instant::now() < deadline, "the table is never merged");
        submit_all(&store, count..count + 50).await;
        count += 50;
        // Between those of before, so that their rows are merged, too.
        round += 1;
        withdraw_some(&store, (round..FIRST).step_by(7), &mut withdrawn).await;
    }
    submit_all(&store, count..count + 200).await;
    count += 200;
    for round in ["at once", "after a restart"] {
        let store = open_or(&store, folder, round).await;
        let found = places(&store).await;
        let waiting: BTreeSet<usize> = (0..count)
            .filter(|number| !withdrawn.contains(number))
            .collect();
        assert!(
            found.is_subset(&waiting),
            "{table:?} {round}: one that was withdrawn waits again"
        );
        let missing: Vec<usize> = waiting.difference(&found).copied().collect();
        let health = report(&store);
        assert!(health.is_ready(), "{table:?} {round}: {health}");
        assert_eq!(health.unreadable, missing.len() as u64, "{table:?} {round}");
        let most = if table == Table::Due { 100 } else { 0 };
        assert!(
            missing.len() <= most,
            "{table:?} {round}: {} are missing",
            missing.len()
        );
        for number in &found {
            let id = MessageId::new(name(*number)).unwrap();
            let message = store.get(&id).await.unwrap();
            assert!(message.is_some(), "{table:?} {round}: {id}");
        }
        for number in &missing {
            let id = MessageId::new(name(*number)).unwrap();
            let message = store.get(&id).await;
            assert!(
                matches!(message, Err(Error::Damaged { .. })),
                "{table:?} {round}: {id} {message:?}"
            );
        }
        let counts = store.counts();
        let scheduled: u64 = counts.values().map(|counts| counts.scheduled).sum();
        let taken_back: u64 = counts.values().map(|counts| counts.withdrawn).sum();
        assert_eq!(scheduled, waiting.len() as u64, "{table:?} {round}");
        assert_eq!(taken_back, withdrawn.len() as u64, "{table:?} {round}");
        for number in (0..FIRST).step_by(50) {
            // Known, or told to be unknown; never taken twice.
            let again = store.submit(vec![numbered(number)]).await.remove(0);
            assert!(
                !again.is_ok_and(|again| again.is_new),
                "{table:?} {round}: {number}"
            );
        }
        store.close().await.unwrap();
    }
}

/// The same store, or another one after it.
async fn open_or(store: &DiskStore, folder: &Path, round: &str) -> DiskStore {
    if round == "at once" {
        let shared = store.shared.clone();
        return DiskStore { shared };
    }
    open(folder).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_block_of_messages_that_is_merged_stops_nothing() {
    goes_on_with_a_damaged(Table::Due).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_block_of_ended_messages_that_is_merged_stops_nothing() {
    goes_on_with_a_damaged(Table::Ended).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_block_of_ids_that_is_merged_is_found_out_again() {
    goes_on_with_a_damaged(Table::Ids).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_block_of_topics_that_is_merged_is_found_out_again() {
    goes_on_with_a_damaged(Table::Topics).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_block_of_keys_that_is_merged_stops_nothing() {
    goes_on_with_a_damaged(Table::Keys).await;
}

/// While it is open all of that table is known in memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_block_of_counts_that_is_merged_is_found_out_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let store = open(folder).await;
    let (mut count, mut flipped) = (0, None::<PathBuf>);
    let deadline = Instant::now() + WITHIN;
    while !has_mended(folder) {
        assert!(Instant::now() < deadline, "the table is never merged");
        submit_all(&store, count..count + 50).await;
        count += 50;
        if !has_mended(folder) && flipped.as_ref().is_none_or(|path| !path.exists()) {
            // There is one block, behind a head of 33 bytes. The file may be merged already.
            let (path, _) = place_in(&store, Table::Meta);
            let file = std::fs::File::options().write(true).open(&path);
            let _ = file.and_then(|file| file.write_all_at(&[0xff; 4], 40));
            flipped = Some(path);
        }
    }
    submit_all(&store, count..count + 50).await;
    count += 50;
    for round in ["at once", "after a restart"] {
        let store = open_or(&store, folder, round).await;
        assert_eq!(places(&store).await.len(), count, "{round}");
        let counts = store.counts();
        let scheduled: u64 = counts.values().map(|counts| counts.scheduled).sum();
        assert_eq!(scheduled, count as u64, "{round}");
        assert!(report(&store).is_ready(), "{round}");
        store.close().await.unwrap();
    }
}
