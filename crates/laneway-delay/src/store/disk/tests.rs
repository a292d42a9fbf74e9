//! What only this store has: damage, and disks that fail or are full.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use laneway_disk::Space;
use proptest::prelude::*;

use super::*;
use crate::store::Operation;
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
pub(super) struct TestDisk {
    pub(super) fails: Arc<AtomicBool>,
    pub(super) hangs: Arc<AtomicBool>,
    /// Whether a sync hangs.
    is_hanging: Arc<AtomicBool>,
    pub(super) refuses: Arc<AtomicBool>,
    is_full: Arc<AtomicBool>,
}

impl Disk for TestDisk {
    fn sync(&self, journal: &File) -> io::Result<()> {
        while self.hangs.load(Ordering::SeqCst) {
            self.is_hanging.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.fails.load(Ordering::SeqCst) {
            return Err(io::Error::from(io::ErrorKind::Other));
        }
        journal.sync_data()
    }

    fn may_write(&self) -> io::Result<()> {
        if self.refuses.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(24));
        }
        Ok(())
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

pub(super) fn draft(id: &str) -> Draft {
    let at = Timestamp::from_millis;
    let target = Target::callback("http://localhost/");
    let submission = Submission::new("t", When::At(at(10)), target);
    Draft {
        submission: submission.id(MessageId::new(id).unwrap()),
        due: at(10),
        now: at(0),
    }
}

pub(super) async fn submit(store: &DiskStore, id: &str) -> Result<Accepted, Error> {
    store.submit(vec![draft(id)]).await.remove(0)
}

pub(super) async fn withdraw(store: &DiskStore, id: &str) -> Result<Message, Error> {
    let change = Change {
        id: MessageId::new(id).unwrap(),
        now: Timestamp::from_millis(5),
        what: Operation::Withdraw,
    };
    store.change(vec![change]).await.remove(0)
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_told_until_it_is_opened_anew() {
    let folder = tempfile::tempdir().unwrap();
    let disk = TestDisk::default();
    let store = DiskStore::open_on(folder.path(), Box::new(disk.clone()), Sizes::default()).await;
    let store = store.unwrap();
    submit(&store, "a").await.unwrap();
    disk.fails.store(true, Ordering::SeqCst);
    // It may be there nevertheless. The next ones are not tried.
    assert!(matches!(
        submit(&store, "b").await,
        Err(Error::Unconfirmed(_))
    ));
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
    let store = DiskStore::open_on(folder.path(), Box::new(disk.clone()), Sizes::default()).await;
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
    let store = DiskStore::open_on(folder.path(), Box::new(disk.clone()), Sizes::default()).await;
    let store = Arc::new(store.unwrap());
    submit(&store, "a").await.unwrap();
    let (first, last) = (DueKey::FIRST, DueKey::at(Timestamp::MAX));
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
    let store = DiskStore::open_on(folder.path(), Box::new(disk.clone()), Sizes::default()).await;
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
        let key = keys::due_key(DueKey {
            at: Timestamp::from_millis(10),
            serial: 0,
        });
        let mut row = tables.due.get(key).unwrap().unwrap().to_vec();
        row[20] ^= 1;
        tables.due.insert(key, row).unwrap();
    }
    let a = MessageId::new("a").unwrap();
    let error = store.get(&a).await.unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
    let scanned = store
        .scan(DueKey::FIRST, DueKey::at(Timestamp::MAX), 10)
        .await;
    assert_eq!(scanned, Ok(Vec::new()), "it holds up nobody");
    assert_eq!(report(&store).unreadable, 1);
    assert!(report(&store).is_ready());
    let withdrawn = withdraw(&store, "a").await;
    assert!(matches!(withdrawn, Err(Error::Damaged { .. })));
}

pub(super) fn report(store: &DiskStore) -> Health {
    let mut health = Health::default();
    store.report(&mut health);
    health
}

pub(super) fn end() -> DueKey {
    DueKey::at(Timestamp::MAX)
}

/// Flips a bit in the middle of the largest file of rows.
fn flip_a_bit(directory: &Path) {
    let mut folders = vec![directory.join("log").join("keyspaces")];
    let mut largest = (0, PathBuf::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let metadata = entry.metadata().unwrap();
            if metadata.is_dir() {
                folders.push(entry.path());
            } else {
                largest = largest.max((metadata.len(), entry.path()));
            }
        }
    }
    let mut bytes = std::fs::read(&largest.1).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(&largest.1, bytes).unwrap();
}

#[tokio::test]
async fn a_block_that_cannot_be_read_hides_its_own_messages_and_no_others() {
    const COUNT: usize = 2000;
    let folder = tempfile::tempdir().unwrap();
    let store = DiskStore::open(folder.path()).await.unwrap();
    let drafts = (0..COUNT).map(|number| {
        let mut draft = draft(&format!("m{number}"));
        draft.due = Timestamp::from_millis(10 + number as u64);
        // Hardly to be made smaller, so that there are many blocks of the due index.
        let noise: Vec<u8> = (0..400u64)
            .map(|byte| {
                xxhash_rust::xxh3::xxh3_64_with_seed(b"x", byte + number as u64 * 400).to_le_bytes()
                    [0]
            })
            .collect();
        draft.submission.topic = format!("t{}", number % 7);
        draft.submission = draft.submission.payload(noise);
        draft
    });
    for answer in store.submit(drafts.collect()).await {
        answer.unwrap();
    }
    {
        let guard = store.shared.tables();
        guard
            .as_ref()
            .unwrap()
            .due
            .rotate_memtable_and_wait()
            .unwrap();
    }
    store.close().await.unwrap();
    drop(store);
    flip_a_bit(folder.path());

    let store = DiskStore::open(folder.path()).await.unwrap();
    let scanned = store.scan(DueKey::FIRST, end(), COUNT).await.unwrap();
    let missing = COUNT - scanned.len();
    assert!((1..100).contains(&missing), "{missing} are missing");
    assert!(scanned.is_sorted_by_key(|waiting| waiting.due_key));
    let health = report(&store);
    assert_eq!(health.unreadable, missing as u64);
    assert!(health.to_string().contains("topic t"), "{health}");

    // In parts it is the same.
    let (mut from, mut found) = (DueKey::FIRST, 0);
    loop {
        let part = store.scan(from, end(), 100).await.unwrap();
        found += part.len();
        match part.last() {
            Some(last) => from = last.due_key.next(),
            None => break,
        }
    }
    assert_eq!(found, scanned.len());
    let query = Query {
        limit: 1000,
        ..Query::new(StateName::Scheduled)
    };
    let page = store.list(&query).await.unwrap();
    assert_eq!(page.messages.len(), 1000);

    // Also of those that were known before their rows were damaged the others are claimed.
    let hidden = damaged_place(&scanned);
    let mut waiting = scanned.clone();
    waiting.push(Scheduled {
        due_key: hidden,
        ..scanned[0]
    });
    waiting.sort_unstable_by_key(|waiting| waiting.due_key);
    let now = Timestamp::from_millis(10_000);
    let claims = store.claim(waiting, now).await.unwrap();
    assert_eq!(claims.len(), scanned.len());
    store.close().await.unwrap();
}

/// A place of one that is missing.
fn damaged_place(scanned: &[Scheduled]) -> DueKey {
    let gap = scanned
        .windows(2)
        .find(|pair| pair[1].due_key.serial > pair[0].due_key.serial + 1);
    let before = gap.expect("there is a gap")[0].due_key;
    DueKey {
        at: Timestamp::from_millis(before.at.as_millis() + 1),
        serial: before.serial + 1,
    }
}

#[tokio::test]
async fn what_cannot_be_noted_is_not_claimed() {
    let folder = tempfile::tempdir().unwrap();
    let disk = TestDisk::default();
    let store = DiskStore::open_on(folder.path(), Box::new(disk.clone()), Sizes::default()).await;
    let store = store.unwrap();
    submit(&store, "a").await.unwrap();
    let waiting = store.scan(DueKey::FIRST, end(), 10).await.unwrap();
    disk.fails.store(true, Ordering::SeqCst);
    assert!(submit(&store, "b").await.is_err());
    disk.fails.store(false, Ordering::SeqCst);
    let claimed = store.claim(waiting, Timestamp::from_millis(10)).await;
    assert!(matches!(claimed, Err(Error::Failed(_))));
    let health = report(&store);
    assert!(!health.is_ready() && !health.is_live());
}

/// `Claims::begin` turns claims away while a change is on its way, and the engine takes the message for stale then.
#[tokio::test]
async fn a_panic_while_a_claim_is_read_leaves_the_message_free() {
    let folder = tempfile::tempdir().unwrap();
    let store = DiskStore::open(folder.path()).await.unwrap();
    for id in ["a", "b"] {
        submit(&store, id).await.unwrap();
    }
    let now = Timestamp::from_millis(10);
    let waiting = store.scan(DueKey::FIRST, end(), 10).await.unwrap();
    store.shared.claims.let_reading_panic(true);
    let broke_off = store.claim(waiting.clone(), now).await;
    assert!(matches!(broke_off, Err(Error::Failed(_))), "{broke_off:?}");
    store.shared.claims.let_reading_panic(false);
    // A change does not wait for it, and it can be claimed again.
    withdraw(&store, "a").await.unwrap();
    let claims = store.claim(waiting, now).await.unwrap();
    let ids: Vec<_> = claims
        .iter()
        .map(|claim| claim.message.id.as_str())
        .collect();
    assert_eq!(ids, ["b"]);
}

#[tokio::test]
async fn of_a_stop_and_a_settlement_in_one_batch_the_stop_counts() {
    let folder = tempfile::tempdir().unwrap();
    let disk = TestDisk::default();
    let store = DiskStore::open_on(folder.path(), Box::new(disk.clone()), Sizes::default()).await;
    let store = Arc::new(store.unwrap());
    submit(&store, "a").await.unwrap();
    let now = Timestamp::from_millis(10);
    let waiting = store.scan(DueKey::FIRST, end(), 10).await.unwrap();
    let claim = store.claim(waiting, now).await.unwrap().remove(0);
    // While this one waits for its sync the next two get into one batch.
    disk.hangs.store(true, Ordering::SeqCst);
    let first = tokio::spawn({
        let store = store.clone();
        async move { submit(&store, "b").await }
    });
    while !disk.is_hanging.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let stop = Change {
        id: MessageId::new("a").unwrap(),
        now,
        what: Operation::Stop,
    };
    let delivered = Settlement {
        claim,
        now,
        outcome: Outcome::Delivered,
    };
    let stopping = store.change(vec![stop]);
    let settling = store.settle(vec![delivered]);
    let release = async {
        while store.shared.commits.waiting() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        disk.hangs.store(false, Ordering::SeqCst);
    };
    let (mut stopped, settled, ()) = tokio::join!(stopping, settling, release);
    first.await.unwrap().unwrap();
    settled.unwrap();
    assert!(stopped.remove(0).unwrap().record.is_in_doubt());
    store.close().await.unwrap();
    drop(store);
    let store = DiskStore::open(folder.path()).await.unwrap();
    let a = store.get(&MessageId::new("a").unwrap()).await.unwrap();
    let state = StateName::from(a.unwrap().record.state());
    assert_eq!(state, StateName::Withdrawn);
    let counts = store.counts()["t"];
    assert_eq!(
        (counts.withdrawn, counts.delivered, counts.scheduled),
        (1, 0, 1)
    );
}

#[tokio::test]
async fn a_message_whose_change_is_refused_waits_again() {
    let folder = tempfile::tempdir().unwrap();
    let disk = TestDisk::default();
    let store = DiskStore::open_on(folder.path(), Box::new(disk.clone()), Sizes::default()).await;
    let store = Arc::new(store.unwrap());
    let due_index = Arc::new(TestIndex::default());
    store.attach(due_index.clone());
    submit(&store, "a").await.unwrap();
    let waiting = store.scan(DueKey::FIRST, end(), 1).await.unwrap();
    due_index.admitted.lock().clear();

    disk.refuses.store(true, Ordering::SeqCst);
    assert!(withdraw(&store, "a").await.is_err());
    disk.refuses.store(false, Ordering::SeqCst);
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while submit(&store, "b").await.is_err() {
        assert!(std::time::Instant::now() < deadline, "it does not go on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(due_index.admitted.lock().contains(&waiting[0]));
    let claims = store.claim(waiting, Timestamp::from_millis(10)).await;
    assert_eq!(claims.unwrap().len(), 1);
}

#[tokio::test]
async fn a_failure_that_passes_is_got_over() {
    let folder = tempfile::tempdir().unwrap();
    let disk = TestDisk::default();
    let store = DiskStore::open_on(folder.path(), Box::new(disk.clone()), Sizes::default()).await;
    let store = Arc::new(store.unwrap());
    let due_index = Arc::new(TestIndex::default());
    store.attach(due_index.clone());
    for id in ["a", "b"] {
        submit(&store, id).await.unwrap();
    }
    let waiting = store.scan(DueKey::FIRST, end(), 1).await.unwrap();
    let now = Timestamp::from_millis(10);
    let claim = store.claim(waiting.clone(), now).await.unwrap().remove(0);
    due_index.admitted.lock().clear();

    disk.refuses.store(true, Ordering::SeqCst);
    assert!(matches!(
        submit(&store, "c").await,
        Err(Error::Unconfirmed(_))
    ));
    assert!(matches!(
        submit(&store, "c").await,
        Err(Error::Unavailable(_))
    ));
    let settling = settle(&store, claim, Outcome::Delivered);
    let others = store
        .scan(DueKey::FIRST, end(), 10)
        .await
        .unwrap_or_default();
    assert!(
        store.claim(others, now).await.is_err(),
        "nothing is delivered"
    );
    assert!(!report(&store).is_ready() && report(&store).is_live());
    assert!(!settling.is_finished());

    disk.refuses.store(false, Ordering::SeqCst);
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while submit(&store, "d").await.is_err() {
        assert!(std::time::Instant::now() < deadline, "it does not go on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(report(&store).is_well());
    // What was delivered is noted now, and does not fire again.
    settling.await.unwrap().unwrap();
    assert!(!due_index.admitted.lock().contains(&waiting[0]));
    assert!(store.claim(waiting, now).await.unwrap().is_empty());
    withdraw(&store, "b").await.unwrap();
    store.close().await.unwrap();
}

/// Settles in a task of its own.
pub(super) fn settle(
    store: &Arc<DiskStore>,
    claim: Claim,
    outcome: Outcome,
) -> tokio::task::JoinHandle<Result<(), Error>> {
    let store = store.clone();
    let settlement = Settlement {
        claim,
        now: Timestamp::from_millis(11),
        outcome,
    };
    tokio::spawn(async move { store.settle(vec![settlement]).await })
}

#[derive(Default)]
struct TestIndex {
    admitted: Mutex<Vec<Scheduled>>,
}

impl DueIndex for TestIndex {
    fn admit(&self, waiting: &[Scheduled]) {
        self.admitted.lock().extend_from_slice(waiting);
    }

    fn floor(&self) -> DueKey {
        DueKey::FIRST
    }
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

#[tokio::test]
async fn large_messages_are_listed_and_changed_some_at_a_time() {
    const COUNT: usize = 24;
    let folder = tempfile::tempdir().unwrap();
    let store = DiskStore::open(folder.path()).await.unwrap();
    for number in 0..COUNT {
        let mut draft = draft(&format!("m{number}"));
        draft.submission = draft.submission.payload(vec![7; 1 << 20]);
        store.submit(vec![draft]).await.remove(0).unwrap();
    }
    let query = Query {
        limit: 1000,
        ..Query::new(StateName::Scheduled)
    };
    let page = store.list(&query).await.unwrap();
    assert_eq!(page.messages.len(), 8, "a page has a bound in bytes");
    assert!(page.next.is_some());
    let changes = |what: Operation| {
        let change = move |number| Change {
            id: MessageId::new(format!("m{number}")).unwrap(),
            now: Timestamp::from_millis(5),
            what,
        };
        (0..COUNT).map(change).collect::<Vec<_>>()
    };
    {
        let all = changes(Operation::Withdraw);
        let ahead = store.shared.look_ahead(&all);
        assert_eq!(ahead.len(), 8, "so has what is looked up for changes");
    }
    let later = Operation::Extend(crate::Extend::By(Duration::from_millis(5)));
    let answers = store.change(changes(later)).await;
    assert_eq!(answers.len(), COUNT);
    for answer in answers {
        assert_eq!(answer.unwrap().record.due(), Timestamp::from_millis(15));
    }
    let kept = store.get(&MessageId::new("m9").unwrap()).await.unwrap();
    assert_eq!(kept.unwrap().payload.len(), 1 << 20);
    let mut waiting = store.scan(DueKey::FIRST, end(), COUNT).await.unwrap();
    waiting.truncate(1);
    assert_eq!(waiting[0].due_key.at, Timestamp::from_millis(15));
}

#[tokio::test]
async fn a_store_of_another_version_is_not_told_as_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let store = DiskStore::open(folder.path()).await.unwrap();
    store.close().await.unwrap();
    let file = folder.path().join("store");
    let text = std::fs::read_to_string(&file).unwrap();
    let (said, _) = text.rsplit_once(" checksum ").unwrap();
    let said = said.replacen("laneway-delay-store 2", "laneway-delay-store 1", 1);
    let sum = laneway_disk::checksum(0, said.as_bytes());
    std::fs::write(&file, format!("{said} checksum {sum:08x}\n")).unwrap();
    let error = DiskStore::open(folder.path()).await.unwrap_err();
    let Error::Format {
        found, supported, ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(found, "laneway-delay-store 1");
    assert_eq!(supported, "laneway-delay-store 2");
    // One that is cut off is damaged.
    std::fs::write(&file, &text[..text.len() / 2]).unwrap();
    let error = DiskStore::open(folder.path()).await.unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
}

#[tokio::test]
async fn forgetting_goes_past_rows_that_cannot_be_read() {
    const COUNT: usize = 1000;
    let folder = tempfile::tempdir().unwrap();
    let store = DiskStore::open(folder.path()).await.unwrap();
    let drafts = (0..COUNT).map(|number| {
        let mut draft = draft(&format!("m{number}"));
        // Hardly to be made smaller, and kept when the message has ended, so that there are many blocks.
        let words = (0..40_u64)
            .map(|word| xxhash_rust::xxh3::xxh3_64_with_seed(b"x", word + number as u64 * 40));
        let noise = words
            .map(|word| format!("{word:x}"))
            .collect::<Vec<_>>()
            .concat();
        draft.submission.metadata.insert("noise".to_owned(), noise);
        draft
    });
    for answer in store.submit(drafts.collect()).await {
        answer.unwrap();
    }
    let changes = (0..COUNT).map(|number| Change {
        id: crate::MessageId::new(format!("m{number}")).unwrap(),
        now: Timestamp::from_millis(5),
        what: Operation::Withdraw,
    });
    for answer in store.change(changes.collect()).await {
        answer.unwrap();
    }
    {
        let guard = store.shared.tables();
        let ended = &guard.as_ref().unwrap().ended;
        ended.rotate_memtable_and_wait().unwrap();
    }
    store.close().await.unwrap();
    drop(store);
    flip_a_bit(folder.path());

    let store = DiskStore::open(folder.path()).await.unwrap();
    let later = Timestamp::from_millis(100);
    let mut rounds = 0;
    while store.forget(later, later).await.unwrap() {
        rounds += 1;
        assert!(rounds < 100, "it does not end");
    }
    let left: u64 = store.counts().values().map(|counts| counts.withdrawn).sum();
    assert!((1..100).contains(&left), "{left} are left");
    // What is left does not hold up those that come after it.
    assert_eq!(store.forget(later, later).await, Ok(false));
}

#[tokio::test]
async fn metadata_and_headers_count_as_payloads_do() {
    const COUNT: usize = 40;
    const LARGE: usize = 200 << 10;
    let folder = tempfile::tempdir().unwrap();
    let store = DiskStore::open(folder.path()).await.unwrap();
    for number in 0..COUNT {
        let mut draft = draft(&format!("m{number}"));
        let large = || ("large".to_owned(), "x".repeat(LARGE));
        draft.submission.metadata.extend([large()]);
        if let Target::Callback(callback) = &mut draft.submission.target {
            callback.headers.push(large());
        }
        store.submit(vec![draft]).await.remove(0).unwrap();
    }
    let query = Query {
        limit: 1000,
        ..Query::new(StateName::Scheduled)
    };
    let fit = Sizes::DEFAULT.page_bytes.div_ceil(2 * (LARGE + 5));
    let page = store.list(&query).await.unwrap();
    assert_eq!(page.messages.len(), fit);
    let changes: Vec<_> = (0..COUNT)
        .map(|number| Change {
            id: MessageId::new(format!("m{number}")).unwrap(),
            now: Timestamp::from_millis(5),
            what: Operation::Withdraw,
        })
        .collect();
    let ahead = store.shared.look_ahead(&changes);
    assert_eq!(ahead.len(), fit);
    let found = changes.into_iter().zip(ahead).collect();
    let (ack, _) = oneshot::channel();
    let bytes = Request::Change(found, ack).bytes();
    assert!(bytes >= Sizes::DEFAULT.ahead_bytes, "{bytes}");
    // What attempts are charged with, as scanned and as claimed.
    let waiting = store.scan(DueKey::FIRST, end(), 1).await.unwrap();
    let held = u32::try_from(2 * (LARGE + 5)).unwrap();
    assert_eq!(waiting[0].payload_bytes, held);
    let claims = store.claim(waiting, Timestamp::from_millis(10)).await;
    assert_eq!(Scheduled::from(&claims.unwrap()[0]).payload_bytes, held);
}

#[tokio::test]
async fn counts_of_many_topics_are_copied_some_at_a_time_and_go_with_their_last_message() {
    const TOPICS: usize = COUNTS_AT_A_TIME * 2 + 1;
    let folder = tempfile::tempdir().unwrap();
    let store = DiskStore::open(folder.path()).await.unwrap();
    let drafts = (0..TOPICS).map(|number| {
        let mut draft = draft(&format!("m{number}"));
        draft.submission.topic = format!("t{number}");
        draft
    });
    let answers = store.submit(drafts.collect()).await;
    assert!(answers.iter().all(Result::is_ok));
    let some = store.shared.some_counts(None).unwrap();
    assert_eq!(some.len(), COUNTS_AT_A_TIME);
    let counts = store.counts();
    assert_eq!(counts.len(), TOPICS);
    assert!(counts.values().all(|counts| counts.scheduled == 1));
    for what in [Operation::Withdraw, Operation::Purge] {
        let change = |number| Change {
            id: MessageId::new(format!("m{number}")).unwrap(),
            now: Timestamp::from_millis(5),
            what,
        };
        let answers = store.change((0..TOPICS).map(change).collect()).await;
        assert!(answers.iter().all(Result::is_ok));
    }
    assert!(store.counts().is_empty());
}
