//! Lists of many large rows, and readers beside the task of the shard.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};

use laneway_cluster::apply::{Applied, Shard, Table};
use laneway_cluster::record::{Change, Fact, MessageRow, Owner, Record, Reign, RequestDigest, Row};
use laneway_delay::{MessageId, StateName, Timestamp};
use laneway_view::{ListQuery, View};

use support::{Log, Step, at, compare, identity, open};

/// 200 MB. With ten thousand it says the same, and takes minutes.
const ROWS: u64 = 2_000;
const BODY: usize = 100_000;

/// What the process has in memory, in bytes.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn a_list_of_large_rows_takes_a_page_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (view, _) = View::open(&folder.path().join("view"), &identity()).unwrap();
    let mut shard = Shard::new(identity(), view);
    let (epoch, reign) = (1, Reign([1; 16]));
    let basis = shard.head().basis();
    let owner = Owner {
        epoch,
        reign,
        basis,
    };
    shard.apply(0, &Record::Owner(owner).encode()).unwrap();
    for number in 0..ROWS {
        let change = Change::Accepted {
            due: at(number),
            at: at(1),
            digest: RequestDigest([1; 32]),
            topic: "a".to_owned(),
            body: vec![number.to_le_bytes()[0]; BODY].into(),
        };
        let row = Row::Message(MessageRow {
            id: MessageId::new(format!("m{number:05}")).unwrap(),
            version: 1,
            change,
        });
        let fact = Fact {
            epoch,
            reign,
            sequence: number + 1,
            basis: shard.head().basis(),
            rows: vec![row],
        };
        let record = Record::Fact(fact).encode();
        let applied = shard.apply(number + 1, &record).unwrap();
        let counted = vec![true];
        assert_eq!(applied, Applied::Fact { counted });
        if shard.table().wants_commit() {
            shard.table().commit(shard.head()).unwrap();
        }
        assert!(shard.table().uncommitted_bytes() < 8 << 20);
    }
    shard.table().commit(shard.head()).unwrap();
    let before = resident();
    let mut query = ListQuery {
        limit: 1_000,
        ..ListQuery::new(StateName::Scheduled)
    };
    let mut found = 0;
    loop {
        let page = shard.table().list(&query).unwrap();
        assert!(
            page.rows.len() * BODY < (8 << 20) + 2 * BODY,
            "{}",
            page.rows.len()
        );
        found += page.rows.len() as u64;
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    assert_eq!(found, ROWS);
    // The same for all rows by id.
    assert!(shard.table().page(None, 1_000).len() < 100);
    query.with_bodies = false;
    assert_eq!(shard.table().list(&query).unwrap().rows.len(), 1_000);
    assert_eq!(
        shard
            .table()
            .due(None, Timestamp::MAX, usize::MAX)
            .unwrap()
            .len() as u64,
        ROWS
    );
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more are in use");
}

#[test]
fn readers_see_rows_and_indexes_that_belong_together() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = Log::new();
    let mut random = 3_u32;
    for _ in 0..600 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let [kind, id, number, _] = (random >> 3).to_le_bytes();
        let (kind, id) = (kind % 20, id % 10);
        let row = log.row(Step { kind, id, number });
        log.fact(vec![row]);
    }
    let (view, _) = View::open(&folder.path().join("view"), &identity()).unwrap();
    let mut shard = Shard::new(identity(), view);
    let is_done = AtomicBool::new(false);
    let reader = shard.table().reader();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let reader = reader.clone();
            let is_done = &is_done;
            scope.spawn(move || {
                while !is_done.load(Ordering::Relaxed) {
                    // A list fails if a row is not where its index says.
                    for state in [StateName::Scheduled, StateName::Dead, StateName::Withdrawn] {
                        reader.list(&ListQuery::new(state)).unwrap();
                    }
                    for (_, id) in reader.due(None, Timestamp::MAX, 10).unwrap() {
                        reader.get(&id).unwrap();
                    }
                }
            });
        }
        for (index, (offset, bytes)) in log.records.iter().enumerate() {
            shard.apply(*offset, bytes).unwrap();
            if index % 7 == 0 {
                shard.table().commit(shard.head()).unwrap();
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
    compare(&shard, &log);
}

#[test]
fn fixture_of_a_view_directory_is_opened() {
    let mut log = Log::new();
    for number in 0..60_u8 {
        let (kind, id) = (number % 20, number % 7);
        let row = log.row(Step { kind, id, number });
        log.fact(vec![row]);
    }
    let make = || {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("view");
        let (shard, _) = open(&directory, &log);
        shard.table().commit(shard.head()).unwrap();
        drop(shard);
        fixtures::pack(&directory, |name| name == "lock").unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("view");
    fixtures::unpack(&fixtures::text("view-1.txt", make), &directory).unwrap();
    let (view, head) = View::open(&directory, &identity()).unwrap();
    let shard = Shard::resume(head.expect("it is not set aside"), view).unwrap();
    compare(&shard, &log);
}
