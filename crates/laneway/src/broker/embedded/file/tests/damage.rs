//! Files that are not what was written.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

/// All files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(self::files(&path));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn copy(from: &Path, to: &Path) {
    for path in files(from) {
        let target = to.join(path.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            // The draft of a note that a store in use has just put in its place.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => panic!("{}: {error}", path.display()),
        };
        // Journals are mostly zeros that were never written.
        fs::write(&target, &bytes[..written(&bytes)]).unwrap();
        let file = fs::File::options().write(true).open(target).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
    }
}

/// The length without the zeros at the end.
fn written(bytes: &[u8]) -> usize {
    let zeros = [0; 4096];
    let pages = bytes.chunks(4096);
    let page = pages
        .clone()
        .rposition(|page| *page != zeros[..page.len()])
        .unwrap_or(0);
    let end = bytes.len().min((page + 1) * 4096);
    bytes[..end]
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |at| at + 1)
}

/// Writes the damaged bytes of a file, and the zeros that followed them.
fn overwrite(path: &Path, bytes: &[u8]) {
    let length = path.metadata().unwrap().len();
    fs::write(path, bytes).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_len(length).unwrap();
}

/// What a store holds: records and positions by partition.
type Contents = BTreeMap<u32, (Vec<(u64, Record)>, Option<Position>)>;

async fn contents(store: &FileStore) -> Result<Contents, BrokerError> {
    let mut contents = Contents::new();
    for partition in 0..2 {
        let log = store.log(&name("orders"), partition).await?;
        let all = read_all(&log, 0).await?;
        let records = all.into_iter().map(|d| (d.offset, (*d.record).clone()));
        let position = log.position("g").await?;
        contents.insert(partition, (records.collect(), position));
    }
    Ok(contents)
}

async fn fill(store: &FileStore, from: u64, to: u64) {
    for number in from..to {
        for partition in 0..2 {
            let log = log(store, "orders", partition).await;
            append(&log, &format!("{partition} {number}")).await;
            if number % 10 == 0 {
                let position = Position::at(number);
                log.save_position("g", &position).await.unwrap();
            }
        }
    }
}

/// A closed store with records in tables and in journals.
async fn closed_store(directory: &Path) -> Contents {
    let store = store_with(directory, "orders").await;
    fill(&store, 0, 60).await;
    let id = topic_id(&store);
    store.shared.engine().as_ref().unwrap().flush(id);
    fill(&store, 60, 90).await;
    let contents = contents(&store).await.unwrap();
    store.close().await.unwrap();
    contents
}

/// Opens a store and reads all of it: an error, or exactly what was written.
async fn check(directory: &Path, expected: &Contents, what: &str) -> bool {
    let store = match FileStore::open(directory, FileLimits::default()).await {
        Ok(store) => store,
        // No checksum covers the version that the engine notes: another byte there is another version.
        Err(BrokerError::Damaged { .. } | BrokerError::Io { .. } | BrokerError::Format { .. }) => {
            let again = FileStore::open(directory, FileLimits::default())
                .await
                .err();
            assert!(again.is_some(), "{what}: told once, and never again");
            return true;
        }
        Err(error) => panic!("{what}: {error}"),
    };
    let found = contents(&store).await;
    let _ = store.close().await;
    match found {
        Ok(found) => {
            assert!(found == *expected, "{what}: something else was read");
            false
        }
        Err(BrokerError::Damaged { .. } | BrokerError::Io { .. }) => true,
        // The catalog says which topics there are.
        Err(error) => panic!("{what}: {error}"),
    }
}

#[tokio::test]
async fn flipped_bytes_are_noticed_or_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let good = folder.path().join("good");
    let expected = closed_store(&good).await;
    assert!(!check(&good, &expected, "untouched").await);

    let mut dice = StdRng::seed_from_u64(7);
    let mut noticed = 0;
    let files: Vec<_> = files(&good)
        .into_iter()
        .filter(|path| path.metadata().unwrap().len() > 0)
        .collect();
    for round in 0..120 {
        let file = &files[round % files.len()];
        let bad = folder.path().join("bad");
        copy(&good, &bad);
        let target = bad.join(file.strip_prefix(&good).unwrap());
        let mut bytes = fs::read(&target).unwrap();
        bytes.truncate(written(&bytes));
        let at = dice.random_range(0..bytes.len());
        bytes[at] ^= 1 << dice.random_range(0..8);
        overwrite(&target, &bytes);
        let what = format!("{} byte {at}", target.display());
        noticed += u32::from(check(&bad, &expected, &what).await);
        fs::remove_dir_all(&bad).unwrap();
    }
    assert!(noticed > 40, "only {noticed} of 120 were noticed");
}

#[tokio::test]
async fn files_that_were_cut_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let good = folder.path().join("good");
    let expected = closed_store(&good).await;
    let mut dice = StdRng::seed_from_u64(11);
    for (round, file) in files(&good).iter().cycle().take(40).enumerate() {
        let bad = folder.path().join("bad");
        copy(&good, &bad);
        let target = bad.join(file.strip_prefix(&good).unwrap());
        let bytes = fs::read(&target).unwrap();
        let keep = dice.random_range(0..=written(&bytes).saturating_sub(1));
        fs::write(&target, &bytes[..keep]).unwrap();
        let what = format!("{round}: {} cut to {keep}", target.display());
        check(&bad, &expected, &what).await;
        fs::remove_dir_all(&bad).unwrap();
    }
}

/// As after a kill: the files of a store that was not closed.
async fn crashed_store(folder: &Path) -> (PathBuf, Contents) {
    let live = folder.join("live");
    let store = store_with(&live, "orders").await;
    fill(&store, 0, 50).await;
    let expected = contents(&store).await.unwrap();
    let crashed = folder.join("crashed");
    copy(&live, &crashed);
    store.close().await.unwrap();
    (crashed, expected)
}

#[tokio::test]
async fn after_a_crash_everything_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let (crashed, expected) = crashed_store(folder.path()).await;
    assert!(!check(&crashed, &expected, "a crash").await);
}

/// The only journal of a store, and what is written in it.
fn journal_of(store: &Path) -> (PathBuf, Vec<u8>) {
    let is_journal = |path: &PathBuf| path.extension().is_some_and(|end| end == "jnl");
    let journal = files(store).into_iter().find(is_journal).unwrap();
    let mut bytes = fs::read(&journal).unwrap();
    bytes.truncate(written(&bytes));
    (journal, bytes)
}

#[tokio::test]
async fn damage_further_up_in_a_journal_is_not_taken_for_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let (crashed, expected) = crashed_store(folder.path()).await;
    let (journal, good) = journal_of(&crashed);
    let bad = folder.path().join("bad");
    // A byte, a sector, a page. Only the last commit, some hundred bytes, may get lost without a
    // word.
    for length in [1, 512, 4096] {
        let places = (0..good.len() - 1000 - length).step_by(good.len() / 40);
        for at in places {
            copy(&crashed, &bad);
            let mut bytes = good.clone();
            match length {
                1 => bytes[at] ^= 0xff,
                _ => bytes[at..at + length].fill(0),
            }
            overwrite(&bad.join(journal.strip_prefix(&crashed).unwrap()), &bytes);
            let what = format!("{length} bytes of a journal from byte {at} on");
            assert!(check(&bad, &expected, &what).await, "{what}: not noticed");
            fs::remove_dir_all(&bad).unwrap();
        }
    }
}

#[tokio::test]
async fn a_journal_that_ends_too_early_is_noticed_by_the_note_of_the_last_commit() {
    let folder = tempfile::tempdir().unwrap();
    let live = folder.path().join("live");
    let store = store_with(&live, "orders").await;
    let note = || fs::read_to_string(live.join("store")).unwrap();
    let before = note();
    fill(&store, 0, 50).await;
    wait_for!(note() != before);
    let expected = contents(&store).await.unwrap();
    let bad = folder.path().join("bad");
    copy(&live, &bad);
    store.close().await.unwrap();
    // Nothing is left in the journal that would tell.
    let (journal, good) = journal_of(&bad);
    overwrite(&journal, &good[..good.len() / 100]);
    assert!(check(&bad, &expected, "a lost journal").await);
}

#[tokio::test]
async fn a_torn_last_commit_is_forgotten_and_the_rest_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (crashed, expected) = crashed_store(folder.path()).await;
    let (journal, good) = journal_of(&crashed);
    let bad = folder.path().join("bad");
    for torn in [1, 5, 20, 60, 100] {
        copy(&crashed, &bad);
        let path = bad.join(journal.strip_prefix(&crashed).unwrap());
        fs::write(path, &good[..good.len() - torn]).unwrap();
        let store = open(&bad).await;
        let found = contents(&store).await.unwrap();
        assert_eq!(found[&0], expected[&0]);
        let (records, _) = &found[&1];
        let (all, _) = &expected[&1];
        assert_eq!(records[..], all[..all.len() - 1], "without the last one");
        // And it goes on from there.
        let log = log(&store, "orders", 1).await;
        assert_eq!(append(&log, "again").await, all.len() as u64 - 1);
        store.close().await.unwrap();
        fs::remove_dir_all(&bad).unwrap();
    }
}

#[tokio::test]
async fn damage_names_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with(folder.path(), "orders").await;
    fill(&store, 0, 5).await;
    let state = log_state(&store, 1);
    state.lock().forget(usize::MAX);
    // A row that belongs to somebody else.
    let (row, _) = {
        let guard = store.shared.engine();
        let mut rows = guard.as_ref().unwrap().rows(state.topic.id, 0, 0, 3);
        let (key, value) = rows.next().unwrap().into_inner().unwrap();
        (value.to_vec(), key)
    };
    {
        let guard = store.shared.engine();
        let mut writes = guard.as_ref().unwrap().writes();
        let key = super::super::engine::row_key(0, 1, 3);
        writes.put_row(state.topic.id, key, &row);
        writes.commit(&laneway_disk::RealDisk).unwrap();
    }
    let log = log(&store, "orders", 1).await;
    assert_eq!(log.read(0, 3).await.unwrap().len(), 3);
    let error = log.read(3, 1).await.unwrap_err().to_string();
    assert!(
        error.contains("topic orders, partition 1, offset 3"),
        "{error}"
    );
}

#[tokio::test]
async fn a_directory_of_another_version_is_told_as_that_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with(folder.path(), "orders").await;
    append(&log(&store, "orders", 0).await, "kept").await;
    store.close().await.unwrap();
    let path = folder.path().join("store");
    let written = fs::read_to_string(&path).unwrap();
    let (said, _) = written.rsplit_once(" checksum ").unwrap();
    let said = said.replacen("laneway-file-store 1 ", "laneway-file-store 99 ", 1);
    let sum = laneway_disk::checksum(0, said.as_bytes());
    let other = format!("{said} checksum {sum:08x}\n");
    fs::write(&path, &other).unwrap();
    let error = FileStore::open(folder.path(), FileLimits::default()).await;
    let error = error.err().unwrap();
    assert!(
        matches!(&error, BrokerError::Format { found, supported, .. }
            if found == "laneway-file-store 99" && supported == "laneway-file-store 1"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), other);
    // And the engine below it.
    fs::write(&path, written).unwrap();
    let version = folder.path().join("log").join("version");
    fs::write(&version, b"FJL\x02").unwrap();
    let error = FileStore::open(folder.path(), FileLimits::default()).await;
    let error = error.err().unwrap();
    assert!(
        matches!(&error, BrokerError::Format { found, .. } if found == "fjall 2"),
        "{error}"
    );
    fs::write(&version, b"FJL\x03").unwrap();
    let store = open(folder.path()).await;
    let all = read_all(&log(&store, "orders", 0).await, 0).await.unwrap();
    assert_eq!(text_of(&all), ["kept"]);
}

fn text_of(all: &[Delivered]) -> Vec<String> {
    all.iter().map(text).collect()
}
