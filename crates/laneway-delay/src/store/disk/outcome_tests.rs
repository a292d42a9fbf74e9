//! What may be said of messages whose attempts could not be noted: by a disk that refused, a crash, a sync that failed.

use std::time::Instant;

use super::tests::{TestDisk, draft, end, settle, submit, withdraw};
use super::*;
use crate::message::Reason;
use crate::{Schedule, State, StateName, Undelivered};

pub(super) fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

pub(super) fn id(id: &str) -> MessageId {
    MessageId::new(id).unwrap()
}

async fn open(path: &Path, disk: &TestDisk) -> Arc<DiskStore> {
    let store = DiskStore::open_on(path, Box::new(disk.clone()), Sizes::default()).await;
    Arc::new(store.unwrap())
}

pub(super) async fn get(store: &DiskStore, name: &str) -> Message {
    store.get(&id(name)).await.unwrap().unwrap()
}

/// Claims all that is due at this moment.
pub(super) async fn claim_all(store: &DiskStore, now: Timestamp) -> Vec<Claim> {
    let until = DueKey::at(now).max(DueKey::at(at(now.as_millis() + 1)));
    let waiting = store.scan(DueKey::FIRST, until, 100).await.unwrap();
    store.claim(waiting, now).await.unwrap()
}

fn busy() -> Outcome {
    let waits = vec![Duration::from_millis(20)];
    Outcome::Failed(Undelivered::retry("503"), Schedule::new(waits))
}

pub(super) fn assert_refused(answer: Result<Message, Error>, expected: impl Fn(&Reason) -> bool) {
    match answer {
        Err(Error::Refused(refusal)) if expected(&refusal.reason) => {}
        other => panic!("{other:?}"),
    }
}

/// Waits until the store takes messages again.
async fn goes_on(store: &DiskStore) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while store.health().is_err() {
        assert!(Instant::now() < deadline, "it does not go on");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_settlement_that_the_disk_refused_is_kept_and_the_message_cannot_be_withdrawn() {
    let folder = tempfile::tempdir().unwrap();
    let disk = TestDisk::default();
    let store = open(folder.path(), &disk).await;
    for name in ["delivered", "busy"] {
        submit(&store, name).await.unwrap();
    }
    let mut claims = claim_all(&store, at(10)).await;
    let (delivered, failed) = (claims.remove(0), claims.remove(0));
    disk.refuses.store(true, Ordering::SeqCst);
    // The first is in a batch that is refused, the second is not even tried.
    let first = settle(&store, delivered, Outcome::Delivered);
    let deadline = Instant::now() + Duration::from_secs(30);
    while store.health().is_ok() {
        assert!(Instant::now() < deadline, "it is not noticed");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let second = settle(&store, failed, busy());
    assert_eq!(get(&store, "delivered").await.record.attempts(), 1);
    disk.refuses.store(false, Ordering::SeqCst);
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    goes_on(&store).await;
    let is_over = |reason: &Reason| *reason == Reason::WrongState;
    assert_refused(withdraw(&store, "delivered").await, is_over);
    let message = get(&store, "delivered").await;
    assert!(matches!(message.record.state(), State::Delivered { .. }));
    // It is known that this one was not delivered.
    assert_eq!(get(&store, "busy").await.record.failures(), 1);
    withdraw(&store, "busy").await.unwrap();
    let counts = store.counts()["t"];
    let counts = (counts.scheduled, counts.delivered, counts.withdrawn);
    assert_eq!(counts, (0, 1, 1));
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_settlement_whose_refused_batch_is_there_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), &TestDisk::default()).await;
    for name in ["delivered", "busy"] {
        submit(&store, name).await.unwrap();
    }
    let claims = claim_all(&store, at(10)).await;
    for (claim, outcome) in claims.into_iter().zip([Outcome::Delivered, busy()]) {
        let noted = store.shared.claims.firing(claim.due_key).unwrap();
        let settled = settle(&store, claim.clone(), outcome.clone());
        settled.await.unwrap().unwrap();
        // As if the store had not learned that it was written.
        let due_key = claim.due_key;
        store.shared.claims.fire(std::iter::once((due_key, noted)));
        let settlement = Settlement {
            claim,
            now: at(11),
            outcome,
        };
        let again = store.ask(|ack| {
            Request::Settle(Settle {
                settlements: vec![settlement],
                ack,
                is_again: true,
            })
        });
        again.await.unwrap().unwrap();
        assert!(!store.shared.claims.is_firing(due_key));
    }
    let counts = store.counts()["t"];
    assert_eq!((counts.scheduled, counts.delivered), (1, 1));
    assert_eq!(get(&store, "busy").await.record.failures(), 1);
    let waiting = store.scan(DueKey::FIRST, end(), 10).await.unwrap();
    assert_eq!(waiting.len(), 1);
}

/// The files as a crash of the process would leave them: whatever was handed to the system.
fn crashed(from: &Path) -> tempfile::TempDir {
    fn copy(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let target = to.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                copy(&entry.path(), &target);
            } else {
                std::fs::copy(entry.path(), target).unwrap();
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    copy(from, folder.path());
    folder
}

pub(super) fn is_in_doubt(reason: &Reason) -> bool {
    *reason == Reason::InDoubt
}

#[tokio::test]
async fn what_was_firing_when_the_process_was_killed_is_in_doubt() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), &TestDisk::default()).await;
    submit(&store, "sent").await.unwrap();
    let mut later = draft("later");
    later.due = at(3_600_000);
    store.submit(vec![later]).await.remove(0).unwrap();
    assert_eq!(claim_all(&store, at(10)).await.len(), 1);

    let folder = crashed(folder.path());
    let store = open(folder.path(), &TestDisk::default()).await;
    assert!(get(&store, "sent").await.record.is_in_doubt());
    let listed = store.list(&Query::new(StateName::Scheduled)).await.unwrap();
    let listed = listed.messages.iter();
    let doubts: Vec<_> = listed.map(|message| message.record.is_in_doubt()).collect();
    assert_eq!(doubts, [true, false]);
    assert_refused(withdraw(&store, "sent").await, is_in_doubt);
    let mut replacing = draft("sent");
    replacing.submission.replace = true;
    replacing.submission.payload = "other".into();
    let replaced = store.submit(vec![replacing]).await.remove(0);
    assert!(matches!(replaced, Err(Error::Refused(_))), "{replaced:?}");
    // What was not due, and what came since, is known not to have been sent.
    withdraw(&store, "later").await.unwrap();
    submit(&store, "new").await.unwrap();
    withdraw(&store, "new").await.unwrap();

    // Also across an orderly end, and after an attempt that is known to have failed.
    store.close().await.unwrap();
    drop(store);
    let store = open(folder.path(), &TestDisk::default()).await;
    assert_refused(withdraw(&store, "sent").await, is_in_doubt);
    let claim = claim_all(&store, at(10)).await.remove(0);
    settle(&store, claim, busy()).await.unwrap().unwrap();
    assert_refused(withdraw(&store, "sent").await, is_in_doubt);
    let stop = Change {
        id: id("sent"),
        now: at(12),
        what: crate::store::Operation::Stop,
    };
    let stopped = store.change(vec![stop]).await.remove(0).unwrap();
    assert!(stopped.record.is_in_doubt());
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_delivery_that_a_power_cut_takes_back_is_in_doubt() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), &TestDisk::default()).await;
    submit(&store, "sent").await.unwrap();
    let claim = claim_all(&store, at(10)).await.remove(0);
    // Its settlement is written after that, and never gets to the disk.
    let cut = crashed(folder.path());
    settle(&store, claim, Outcome::Delivered)
        .await
        .unwrap()
        .unwrap();
    let store = open(cut.path(), &TestDisk::default()).await;
    assert_refused(withdraw(&store, "sent").await, is_in_doubt);
}

#[tokio::test]
async fn after_an_orderly_end_nothing_is_in_doubt() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), &TestDisk::default()).await;
    for name in ["sent", "waits"] {
        submit(&store, name).await.unwrap();
    }
    let mut claims = claim_all(&store, at(10)).await;
    settle(&store, claims.remove(0), busy())
        .await
        .unwrap()
        .unwrap();
    let release = Settlement {
        claim: claims.remove(0),
        now: at(11),
        outcome: Outcome::Released,
    };
    store.settle(vec![release]).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let store = open(folder.path(), &TestDisk::default()).await;
    for name in ["sent", "waits"] {
        withdraw(&store, name).await.unwrap();
    }
    // With an attempt on its way the end is not one.
    submit(&store, "again").await.unwrap();
    assert_eq!(claim_all(&store, at(10)).await.len(), 1);
    store.close().await.unwrap();
    drop(store);
    let store = open(folder.path(), &TestDisk::default()).await;
    assert_refused(withdraw(&store, "again").await, is_in_doubt);
}

#[tokio::test]
async fn a_submit_whose_sync_failed_has_an_unknown_outcome() {
    let folder = tempfile::tempdir().unwrap();
    let disk = TestDisk::default();
    let store = open(folder.path(), &disk).await;
    submit(&store, "waits").await.unwrap();
    disk.fails.store(true, Ordering::SeqCst);
    let answer = submit(&store, "unconfirmed").await;
    assert!(matches!(answer, Err(Error::Unconfirmed(_))), "{answer:?}");
    // These are not tried: it is certain that they did not happen.
    let answer = submit(&store, "refused").await;
    assert!(matches!(answer, Err(Error::Failed(_))), "{answer:?}");
    let answer = withdraw(&store, "waits").await;
    assert!(matches!(answer, Err(Error::Failed(_))), "{answer:?}");
    assert!(matches!(store.health(), Err(Error::Failed(_))));
    disk.fails.store(false, Ordering::SeqCst);
    store.close().await.unwrap_err();
    let store = open(folder.path(), &disk).await;
    // It was right not to say no.
    let found = async |name| store.get(&id(name)).await.unwrap().is_some();
    assert!(found("unconfirmed").await && !found("refused").await);
    withdraw(&store, "waits").await.unwrap();
}

#[tokio::test]
async fn a_sync_that_hangs_makes_the_store_unwell_before_any_caller_gives_up() {
    let folder = tempfile::tempdir().unwrap();
    let disk = TestDisk::default();
    let store = open(folder.path(), &disk).await;
    disk.hangs.store(true, Ordering::SeqCst);
    let submitting = tokio::spawn({
        let store = store.clone();
        async move { submit(&store, "a").await }
    });
    let deadline = Instant::now() + ANSWER_WITHIN;
    while store.health().is_ok() {
        assert!(Instant::now() < deadline, "it is not told");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!submitting.is_finished());
    let told = store.health();
    assert!(matches!(told, Err(Error::Unavailable(_))), "{told:?}");
    disk.hangs.store(false, Ordering::SeqCst);
    submitting.await.unwrap().unwrap();
    goes_on(&store).await;
}
