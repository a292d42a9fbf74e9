//! A store on disk that is opened again: after closing it, and without.

use std::path::Path;
use std::time::Duration;

use laneway_delay::store::{Change, DiskStore, DueKey, Operation, Store};
use laneway_delay::{Error, Extend, StateName, Submission, Timestamp};

use crate::stage::{at, draft, id_of, message};

async fn open(path: &Path) -> DiskStore {
    // Whoever dropped it may still be about to let go.
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        match DiskStore::open(path).await {
            Err(Error::InUse { .. }) if std::time::Instant::now() < deadline => {}
            opened => return opened.unwrap(),
        }
    }
}

async fn change(store: &DiskStore, id: &str, what: Operation) {
    let change = Change {
        id: id_of(id),
        now: at(5),
        what,
    };
    store.change(vec![change]).await.pop().unwrap().unwrap();
}

async fn fill(store: &DiskStore) {
    let drafts = ["a", "b", "c"].map(|id| draft(message(id, 10).idempotency_key(id), 0));
    for answer in store.submit(drafts.to_vec()).await {
        answer.unwrap();
    }
    change(store, "a", Operation::Withdraw).await;
    let extend = Operation::Extend(Extend::To(at(99)));
    change(store, "b", extend).await;
}

async fn check(store: &DiskStore) {
    let state = async |id| {
        let message = store.get(&id_of(id)).await.unwrap().unwrap();
        StateName::from(message.record.state())
    };
    assert_eq!(state("a").await, StateName::Withdrawn);
    assert_eq!(state("b").await, StateName::Scheduled);
    let until = DueKey::at(Timestamp::MAX);
    let due_index = store.scan(store.floor(), until, 10).await.unwrap();
    let due_keys: Vec<_> = due_index.iter().map(|one| one.due_key.at).collect();
    assert_eq!(due_keys, [at(10), at(99)]);
    let counts = store.counts()["t"];
    assert_eq!((counts.scheduled, counts.withdrawn), (2, 1));
    // The keys are known, and a new message gets a new number.
    let again = draft(
        Submission {
            id: None,
            ..message("x", 10).idempotency_key("a")
        },
        7,
    );
    assert!(!store.submit(vec![again]).await[0].as_ref().unwrap().is_new);
    let new = format!(
        "new-{}",
        due_index.len() + usize::try_from(counts.scheduled).unwrap()
    );
    let submission = message(&new, 10);
    store
        .submit(vec![draft(submission.clone(), 7)])
        .await
        .pop()
        .unwrap()
        .unwrap();
    let due_index = store
        .scan(DueKey::FIRST, DueKey::at(at(11)), 10)
        .await
        .unwrap();
    assert_eq!(due_index.len(), 2);
    let withdraw = Operation::Withdraw;
    change(store, &new, withdraw).await;
    change(store, &new, Operation::Purge).await;
}

#[tokio::test]
async fn what_was_told_is_there_after_closing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    fill(&store).await;
    store.close().await.unwrap();
    assert_eq!(store.health(), Err(Error::Closed));
    let answers = store.submit(vec![draft(message("z", 1), 0)]).await;
    assert_eq!(answers[0], Err(Error::Closed));
    for _ in 0..2 {
        let store = open(folder.path()).await;
        check(&store).await;
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn what_was_told_is_there_after_a_drop() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    fill(&store).await;
    drop(store);
    check(&open(folder.path()).await).await;
}

/// The files as a crash of the process would leave them: whatever was handed to the system.
fn crashed(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            crashed(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test]
async fn what_was_told_is_there_after_a_crash() {
    let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(folder.path()).await;
    fill(&store).await;
    let due_index = store
        .scan(DueKey::FIRST, DueKey::at(at(11)), 10)
        .await
        .unwrap();
    assert_eq!(store.claim(due_index, at(10)).await.unwrap().len(), 1);
    crashed(folder.path(), copy.path());
    // The keys are known, what was firing waits, what was withdrawn is so.
    check(&open(copy.path()).await).await;
}

#[tokio::test]
async fn two_submits_with_one_key_make_one_message_across_a_crash() {
    let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let keyed = || {
        let submission = Submission {
            id: None,
            ..message("x", 10).idempotency_key("key")
        };
        vec![draft(submission, 0)]
    };
    let store = open(folder.path()).await;
    let first = store.submit(keyed()).await.remove(0).unwrap();
    crashed(folder.path(), copy.path());
    let store = open(copy.path()).await;
    let again = store.submit(keyed()).await.remove(0).unwrap();
    assert_eq!((again.id, again.is_new), (first.id, false));
    let due_index = store
        .scan(DueKey::FIRST, DueKey::at(at(99)), 9)
        .await
        .unwrap();
    assert_eq!(due_index.len(), 1);
}

#[tokio::test]
async fn what_was_firing_waits_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    fill(&store).await;
    let due_index = store
        .scan(DueKey::FIRST, DueKey::at(at(11)), 10)
        .await
        .unwrap();
    assert_eq!(store.claim(due_index, at(10)).await.unwrap().len(), 1);
    drop(store);
    check(&open(folder.path()).await).await;
}

#[tokio::test]
async fn a_directory_has_one_owner() {
    let folder = tempfile::tempdir().unwrap();
    let _store = open(folder.path()).await;
    let error = DiskStore::open(folder.path()).await.unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
}
