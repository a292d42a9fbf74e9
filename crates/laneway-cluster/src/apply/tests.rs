use bytes::Bytes;
use laneway_delay::{MessageId, Timestamp};

use super::*;
use crate::record::{Change, MessageRow, RequestDigest, Unreadable};

fn identity() -> Identity {
    Identity {
        cluster: "c".to_owned(),
        topic: "t".to_owned(),
        shard: 0,
        shards: 1,
    }
}

fn id(text: &str) -> MessageId {
    MessageId::new(text).unwrap()
}

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// A log, and a reader that reads whatever is written at once.
struct Log {
    records: Vec<(u64, Bytes)>,
    shard: Shard<Memory>,
    epoch: u64,
    sequence: u64,
}

impl Log {
    fn new() -> Self {
        let shard = Shard::new(identity(), Memory::default());
        Self {
            records: Vec::new(),
            shard,
            epoch: 0,
            sequence: 0,
        }
    }

    fn write(&mut self, record: &Record) -> Result<Applied, Stop> {
        self.write_bytes(&record.encode())
    }

    fn write_bytes(&mut self, bytes: &Bytes) -> Result<Applied, Stop> {
        // Offsets may have gaps.
        let offset = self.records.len() as u64 * 3;
        self.records.push((offset, bytes.clone()));
        self.shard.apply(offset, bytes)
    }

    fn own(&mut self) -> Applied {
        self.epoch += 1;
        self.sequence = 0;
        let owner = Owner {
            epoch: self.epoch,
            reign: Reign([1; 16]),
            basis: self.shard.head().basis(),
        };
        self.write(&Record::Owner(owner)).unwrap()
    }

    fn next(&self, rows: Vec<Row>) -> Fact {
        Fact {
            epoch: self.epoch,
            reign: Reign([1; 16]),
            sequence: self.sequence + 1,
            basis: self.shard.head().basis(),
            rows,
        }
    }

    fn fact(&mut self, rows: Vec<Row>) -> Vec<bool> {
        let fact = self.next(rows);
        self.sequence += 1;
        match self.write(&Record::Fact(fact)).unwrap() {
            Applied::Fact { counted } => counted,
            other => panic!("{other:?}"),
        }
    }

    fn open(&mut self) -> Vec<bool> {
        self.fact(vec![Row::Open(Open {
            identity: identity(),
            format: 1,
            forgotten: 0,
        })])
    }

    fn close(&mut self) -> Vec<bool> {
        let head = self.shard.head();
        let open = head.open.unwrap();
        let close = Close {
            epoch: open.epoch,
            sequence: open.sequence,
            rows: head.rows,
            digest: head.digest,
        };
        self.fact(vec![Row::Close(close)])
    }

    fn carry(&mut self, text: &str) -> Vec<bool> {
        let row = self.shard.table().get(&id(text)).unwrap();
        let image = Box::new(row.image.clone());
        self.fact(vec![row_of(
            text,
            row.version + 1,
            Change::Carried { image },
        )])
    }

    fn version(&self, text: &str) -> u64 {
        self.shard
            .table()
            .get(&id(text))
            .map_or(0, |row| row.version)
    }
}

fn row_of(text: &str, version: u64, change: Change) -> Row {
    Row::Message(MessageRow {
        id: id(text),
        version,
        change,
    })
}

fn accepted(text: &str) -> Row {
    let change = Change::Accepted {
        due: at(10),
        at: at(1),
        digest: RequestDigest([3; 32]),
        topic: "t".to_owned(),
        body: Bytes::from("hello"),
    };
    row_of(text, 1, change)
}

fn withdrawn(text: &str, version: u64) -> Row {
    let change = Change::Withdrawn {
        command: None,
        at: at(2),
    };
    row_of(text, version, change)
}

fn extended(text: &str, version: u64, due: u64) -> Row {
    let change = Change::Extended {
        due: at(due),
        command: None,
        at: at(2),
    };
    row_of(text, version, change)
}

#[test]
fn only_the_first_owner_of_an_epoch_counts() {
    let mut log = Log::new();
    let basis = log.shard.head().basis();
    let owner = |epoch, reign| {
        let reign = Reign([reign; 16]);
        Record::Owner(Owner {
            epoch,
            reign,
            basis,
        })
    };
    assert_eq!(log.write(&owner(1, 1)), Ok(Applied::Owner));
    let second = log.write(&owner(1, 2));
    assert_eq!(second, Ok(Applied::Void(Void::NotOwner)));
    assert_eq!(log.shard.head().reign, Reign([1; 16]));
    assert_eq!(log.write(&owner(2, 3)), Ok(Applied::Owner));
}

#[test]
fn facts_count_in_order_and_once() {
    let mut log = Log::new();
    log.own();
    let first = log.next(vec![accepted("a")]);
    let mut second = log.next(vec![accepted("b")]);
    second.sequence = 2;
    let late = log.write(&Record::Fact(second.clone()));
    assert_eq!(late, Ok(Applied::Void(Void::OutOfSequence)));
    let counted = log.write(&Record::Fact(first.clone()));
    assert_eq!(
        counted,
        Ok(Applied::Fact {
            counted: vec![true]
        })
    );
    let twice = log.write(&Record::Fact(first));
    assert_eq!(twice, Ok(Applied::Void(Void::OutOfSequence)));
    let again = log.write(&Record::Fact(second));
    assert_eq!(
        again,
        Ok(Applied::Fact {
            counted: vec![true]
        })
    );
    assert_eq!((log.version("a"), log.version("b")), (1, 1));
}

#[test]
fn rows_are_judged_one_by_one_on_their_base() {
    let mut log = Log::new();
    log.own();
    log.fact(vec![accepted("a"), accepted("b")]);
    assert_eq!(
        log.fact(vec![withdrawn("a", 2), extended("b", 3, 90)]),
        [true, false]
    );
    // The loser of a race, and one that its state does not allow.
    assert_eq!(
        log.fact(vec![extended("a", 2, 90), extended("b", 2, 5)]),
        [false, false]
    );
    assert_eq!((log.version("a"), log.version("b")), (2, 1));
    // Nothing is known of it, and all there is to know is known.
    assert_eq!(log.fact(vec![withdrawn("c", 2)]), [false]);
    // The second row of one message in a fact could count by accident.
    assert_eq!(
        log.fact(vec![extended("b", 2, 50), withdrawn("b", 3)]),
        [true, false]
    );
}

#[test]
fn a_writer_that_has_read_something_else_is_void() {
    let mut log = Log::new();
    log.own();
    log.fact(vec![accepted("a")]);
    let good = log.next(vec![withdrawn("a", 2)]);
    for spoil in [
        |basis: &mut Basis| basis.chain.0[0] ^= 1,
        |basis: &mut Basis| basis.digest.0[0] ^= 1,
        |basis: &mut Basis| basis.read += 1,
    ] {
        let mut fact = good.clone();
        spoil(&mut fact.basis);
        let applied = log.write(&Record::Fact(fact));
        assert_eq!(applied, Ok(Applied::Void(Void::OtherBasis)));
    }
    // Void records are read, too, and an older basis is one that was right.
    let applied = log.write(&Record::Fact(good));
    assert_eq!(
        applied,
        Ok(Applied::Fact {
            counted: vec![true]
        })
    );
}

#[test]
fn a_writer_that_read_too_long_ago_is_void() {
    let mut log = Log::new();
    log.own();
    let old = log.next(vec![accepted("a")]);
    for _ in 0..WINDOW {
        log.write_bytes(&Bytes::from("from somewhere else"))
            .unwrap();
    }
    let applied = log.write(&Record::Fact(old));
    assert_eq!(applied, Ok(Applied::Void(Void::OtherBasis)));
}

#[test]
fn what_is_not_known_stops_the_shard_until_it_is_skipped() {
    let mut log = Log::new();
    log.own();
    log.fact(vec![accepted("a")]);
    let before = log.shard.head().clone();
    let unknown = {
        let mut inside = b"LWF\x01Z".to_vec();
        let check = blake3::hash(&inside);
        inside.extend_from_slice(&check.as_bytes()[..8]);
        Bytes::from(inside)
    };
    let stop = log.write_bytes(&unknown).unwrap_err();
    let why = Unreadable::Kind(b'Z');
    assert_eq!(stop, Stop::Unreadable { offset: 6, why });
    assert_eq!(log.shard.apply(9, &unknown), Err(stop));
    assert_eq!(
        (log.shard.head().next, log.shard.head().chain),
        (before.next, before.chain)
    );
    log.shard.skip(6, &unknown);
    assert_eq!(log.fact(vec![accepted("b")]), [true]);
}

#[test]
fn what_others_write_is_passed_over() {
    let mut log = Log::new();
    log.own();
    let foreign = log.write_bytes(&Bytes::from("{}"));
    assert_eq!(foreign, Ok(Applied::Void(Void::Foreign)));
    assert_eq!(log.fact(vec![accepted("a")]), [true]);
}

/// A log with two messages, opened, with changes between the carried rows.
fn opened() -> Log {
    let mut log = Log::new();
    log.own();
    log.fact(vec![accepted("a"), accepted("b"), accepted("old")]);
    log.fact(vec![withdrawn("old", 2)]);
    log.open();
    log.fact(vec![extended("a", 2, 50)]);
    log.fact(vec![row_of(
        "old",
        3,
        Change::Forgotten(crate::record::Forgotten::Message),
    )]);
    log.fact(vec![accepted("c")]);
    log
}

fn rebuilt(log: &Log) -> Result<Shard<Memory>, Stop> {
    let open = log.shard.head().open.unwrap();
    let records = log.records.iter();
    // A purge that was cut short leaves something before the `open`.
    let left = records.filter(|(offset, _)| *offset + 3 >= open.offset);
    rebuild(
        &identity(),
        false,
        &left.cloned().collect::<Vec<_>>(),
        Memory::default,
    )
}

#[test]
fn a_log_that_was_opened_and_closed_is_complete_by_itself() {
    let mut log = opened();
    assert_eq!(rebuilt(&log).err(), Some(Stop::NoBeginning));
    log.carry("a");
    log.carry("b");
    assert_eq!(log.close(), [true]);
    log.fact(vec![withdrawn("b", log.version("b") + 1)]);
    let built = rebuilt(&log).unwrap();
    assert_eq!(built.head(), log.shard.head());
    assert_eq!(built.table(), log.shard.table());
}

#[test]
fn a_close_does_not_count_before_all_is_carried() {
    let mut log = opened();
    log.carry("a");
    assert_eq!(log.close(), [false]);
    log.carry("b");
    assert_eq!(log.close(), [true]);
    // Once.
    assert_eq!(log.close(), [false]);
}

#[test]
fn a_row_that_a_change_overtook_is_not_carried() {
    let mut log = opened();
    let row = log.shard.table().get(&id("a")).unwrap();
    let image = Box::new(row.image.clone());
    let stale = row_of("a", row.version + 1, Change::Carried { image });
    log.fact(vec![extended("a", row.version + 1, 70)]);
    assert_eq!(log.fact(vec![stale]), [false]);
    let kept = log.shard.table().get(&id("a")).unwrap();
    assert_eq!(kept.image.due, at(70));
    log.carry("a");
    log.carry("b");
    assert_eq!(log.close(), [true]);
    assert_eq!(rebuilt(&log).unwrap().head(), log.shard.head());
}

#[test]
fn what_was_forgotten_is_not_carried_back() {
    let mut log = Log::new();
    log.own();
    log.fact(vec![accepted("a")]);
    log.fact(vec![withdrawn("a", 2)]);
    log.open();
    let image = Box::new(log.shard.table().get(&id("a")).unwrap().image.clone());
    log.fact(vec![row_of(
        "a",
        3,
        Change::Forgotten(crate::record::Forgotten::Message),
    )]);
    assert_eq!(
        log.fact(vec![row_of("a", 3, Change::Carried { image })]),
        [false]
    );
    assert_eq!(log.close(), [true]);
    assert_eq!(rebuilt(&log).unwrap().head(), log.shard.head());
}

#[test]
fn what_had_not_read_the_open_is_void_behind_it() {
    let mut log = Log::new();
    log.own();
    let basis = log.shard.head().basis();
    log.open();
    let mut stale = log.next(vec![accepted("a")]);
    stale.basis = basis;
    let applied = log.write(&Record::Fact(stale));
    assert_eq!(applied, Ok(Applied::Void(Void::OtherBasis)));
}

#[test]
fn a_log_of_another_cluster_stops_the_shard() {
    let mut log = Log::new();
    log.own();
    let mut open = Open {
        identity: identity(),
        format: 1,
        forgotten: 0,
    };
    open.identity.shards = 32;
    let fact = log.next(vec![Row::Open(open)]);
    let stop = log.write(&Record::Fact(fact)).unwrap_err();
    assert!(matches!(stop, Stop::OtherLog { .. }), "{stop}");
}

#[test]
fn a_close_with_rows_missing_before_it_fails_loudly() {
    let mut log = opened();
    log.carry("a");
    log.carry("b");
    log.close();
    let open = log.shard.head().open.unwrap().offset;
    // The record with the image of b is gone from the middle: no trim does that.
    let mut left: Vec<_> = log
        .records
        .iter()
        .filter(|(offset, _)| *offset >= open)
        .cloned()
        .collect();
    left.remove(left.len() - 2);
    let stop = rebuild(&identity(), false, &left, Memory::default).unwrap_err();
    assert!(
        matches!(stop, Stop::Incomplete { .. } | Stop::NoBeginning),
        "{stop}"
    );
}

#[test]
fn a_view_that_lost_a_row_is_not_resumed() {
    let log = opened();
    let resumed = |table: &Memory| Shard::resume(log.shard.head().clone(), table.clone());
    assert!(resumed(log.shard.table()).is_ok());
    let mut table = log.shard.table().clone();
    table.remove(&id("c"));
    assert_eq!(resumed(&table).err(), Some(Stop::OtherRows));
}

#[test]
fn a_view_of_a_log_that_lost_its_end_is_not_verified() {
    let log = opened();
    let last = &log.records.last().unwrap().1;
    assert!(log.shard.verify(Some(last)).is_ok());
    assert_eq!(log.shard.verify(None), Err(Stop::OtherRecord));
    let other = Bytes::from("another record");
    assert_eq!(log.shard.verify(Some(&other)), Err(Stop::OtherRecord));
    let empty = Shard::new(identity(), Memory::default());
    assert!(empty.verify(None).is_ok());
}
