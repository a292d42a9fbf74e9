//! What only this store has: damage, and disks that fail or are full.

use std::fs::File;
use std::io;
use std::sync::atomic::AtomicBool;

use laneway_disk::Space;
use proptest::prelude::*;

use super::*;
use crate::store::Asked;
use crate::{StateName, Submission, Target, When};

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
        let _ = codec::decode(&bytes);
        let _ = codec::decode_head(&bytes);
        let _ = codec::Location::decode(&bytes);
        let _ = codec::KeyUse::decode(&bytes);
        let _ = keys::read_used_at(&bytes);
    }
}

/// A disk that does what a test says.
#[derive(Clone, Default)]
struct TestDisk {
    fails: Arc<AtomicBool>,
    hangs: Arc<AtomicBool>,
    is_full: Arc<AtomicBool>,
}

impl Disk for TestDisk {
    fn sync(&self, journal: &File) -> io::Result<()> {
        while self.hangs.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.fails.load(Ordering::SeqCst) {
            return Err(io::Error::from(io::ErrorKind::Other));
        }
        journal.sync_data()
    }

    fn space(&self, _: &Path) -> io::Result<Space> {
        let free = if self.is_full.load(Ordering::SeqCst) {
            0
        } else {
            1 << 40
        };
        Ok(Space {
            free,
            total: 1 << 40,
        })
    }
}

fn draft(id: &str) -> Draft {
    let at = Timestamp::from_millis;
    let target = Target::callback("http://localhost/");
    let submission = Submission::new("t", When::At(at(10)), target);
    Draft {
        submission: submission.id(MessageId::new(id).unwrap()),
        due: at(10),
        now: at(0),
    }
}

async fn submit(store: &DiskStore, id: &str) -> Result<Accepted, Error> {
    store.submit(vec![draft(id)]).await.remove(0)
}

async fn withdraw(store: &DiskStore, id: &str) -> Result<Message, Error> {
    let change = Change {
        id: MessageId::new(id).unwrap(),
        now: Timestamp::from_millis(5),
        what: Asked::Withdraw,
    };
    store.change(vec![change]).await.remove(0)
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_told_until_it_is_opened_anew() {
    let folder = tempfile::tempdir().unwrap();
    let disk = TestDisk::default();
    let store = DiskStore::open_on(folder.path(), Box::new(disk.clone())).await;
    let store = store.unwrap();
    submit(&store, "a").await.unwrap();
    disk.fails.store(true, Ordering::SeqCst);
    assert!(matches!(submit(&store, "b").await, Err(Error::Failed(_))));
    disk.fails.store(false, Ordering::SeqCst);
    assert!(matches!(submit(&store, "c").await, Err(Error::Failed(_))));
    assert!(matches!(withdraw(&store, "a").await, Err(Error::Failed(_))));
    assert!(matches!(store.health(), Err(Error::Failed(_))));
    assert!(matches!(store.close().await, Err(Error::Failed(_))));
    let store = DiskStore::open(folder.path()).await.unwrap();
    withdraw(&store, "a").await.unwrap();
    let c = MessageId::new("c").unwrap();
    assert_eq!(store.get(&c).await, Ok(None));
}

#[tokio::test]
async fn a_disk_that_hangs_is_not_waited_for_without_end() {
    let folder = tempfile::tempdir().unwrap();
    let disk = TestDisk::default();
    let store = DiskStore::open_on(folder.path(), Box::new(disk.clone())).await;
    let store = store.unwrap();
    submit(&store, "a").await.unwrap();
    disk.hangs.store(true, Ordering::SeqCst);
    // Time passes at once when everybody waits.
    tokio::time::pause();
    let unanswered = Err(Error::Unanswered(ANSWER_WITHIN));
    assert_eq!(submit(&store, "b").await, unanswered);
    assert_eq!(withdraw(&store, "a").await.map(drop), unanswered.map(drop));
    tokio::time::resume();
    disk.hangs.store(false, Ordering::SeqCst);
    // It was true that nobody knew: both happened after all.
    store.close().await.unwrap();
    let store = DiskStore::open(folder.path()).await.unwrap();
    let state = async |id| {
        let message = store.get(&MessageId::new(id).unwrap()).await.unwrap();
        message.map(|message| StateName::from(message.record.state()))
    };
    assert_eq!(state("a").await, Some(StateName::Withdrawn));
    assert_eq!(state("b").await, Some(StateName::Scheduled));
}

#[tokio::test]
async fn while_the_engine_waits_for_a_disk_that_hangs_the_store_is_unwell() {
    let folder = tempfile::tempdir().unwrap();
    let disk = TestDisk::default();
    let store = DiskStore::open_on(folder.path(), Box::new(disk.clone())).await;
    let store = Arc::new(store.unwrap());
    submit(&store, "a").await.unwrap();
    let (first, last) = (Place::FIRST, Place::at(Timestamp::MAX));
    let waiting = store.scan(first, last, 10).await.unwrap();
    let now = Timestamp::from_millis(10);
    let claim = store.claim(waiting, now).await.unwrap().remove(0);
    disk.hangs.store(true, Ordering::SeqCst);
    // The writer is busy with this one, so that the settlement comes behind it.
    tokio::time::pause();
    assert!(submit(&store, "b").await.is_err());
    let settling = tokio::spawn({
        let store = store.clone();
        let outcome = Outcome::Delivered;
        async move {
            store
                .settle(vec![Settlement {
                    claim,
                    now,
                    outcome,
                }])
                .await
        }
    });
    assert_eq!(store.health(), Ok(()), "nobody has waited for long yet");
    while store.health().is_ok() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(store.health(), Err(Error::Unanswered(ANSWER_WITHIN)));
    tokio::time::resume();
    disk.hangs.store(false, Ordering::SeqCst);
    settling.await.unwrap().unwrap();
    assert_eq!(store.health(), Ok(()));
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_full_disk_takes_nothing_new_and_still_lets_withdraw() {
    let folder = tempfile::tempdir().unwrap();
    let disk = TestDisk::default();
    let store = DiskStore::open_on(folder.path(), Box::new(disk.clone())).await;
    let store = store.unwrap();
    submit(&store, "a").await.unwrap();
    disk.is_full.store(true, Ordering::SeqCst);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let mut number = 0;
    // It is looked for room now and then.
    while submit(&store, &format!("b{number}")).await.is_ok() {
        assert!(std::time::Instant::now() < deadline, "it is not noticed");
        number += 1;
    }
    assert!(matches!(
        submit(&store, "c").await,
        Err(Error::DiskFull { .. })
    ));
    withdraw(&store, "a").await.unwrap();
    disk.is_full.store(false, Ordering::SeqCst);
    while submit(&store, "d").await.is_err() {
        assert!(std::time::Instant::now() < deadline, "it is not noticed");
    }
}

#[tokio::test]
async fn a_flipped_bit_in_a_row_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let store = DiskStore::open(folder.path()).await.unwrap();
    submit(&store, "a").await.unwrap();
    {
        let guard = store.shared.tables();
        let tables = guard.as_ref().unwrap();
        let key = keys::place(Place {
            at: Timestamp::from_millis(10),
            serial: 0,
        });
        let mut row = tables.line.get(key).unwrap().unwrap().to_vec();
        row[20] ^= 1;
        tables.line.insert(key, row).unwrap();
    }
    let a = MessageId::new("a").unwrap();
    let error = store.get(&a).await.unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
    let scanned = store
        .scan(Place::FIRST, Place::at(Timestamp::MAX), 10)
        .await;
    assert!(matches!(scanned, Err(Error::Damaged { .. })));
    let withdrawn = withdraw(&store, "a").await;
    assert!(matches!(withdrawn, Err(Error::Damaged { .. })));
}

#[tokio::test]
async fn a_lost_tail_of_the_journal_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let store = DiskStore::open(folder.path()).await.unwrap();
    submit(&store, "a").await.unwrap();
    submit(&store, "b").await.unwrap();
    store.close().await.unwrap();
    // An orderly close has noted how many commits there were.
    let journal = folder.path().join("log").join("0.jnl");
    let file = File::options().write(true).open(&journal).unwrap();
    file.set_len(file.metadata().unwrap().len().min(300))
        .unwrap();
    let error = DiskStore::open(folder.path()).await.unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
}
