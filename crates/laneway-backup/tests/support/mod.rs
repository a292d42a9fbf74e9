//! A shard in memory whose rows change, its owner, and servers of a test's own.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod server;

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use laneway_backup::{Backup, Changed, RedisOptions, Rows, ShardBackup, Unused};
use laneway_cluster::apply::{Applied, Head, Identity, Memory, Shard, Table};
use laneway_cluster::record::{
    Change, Fact, Instance, MessageRow, Owner, Record, Reign, RequestDigest, Row,
};
use laneway_delay::{MessageId, Timestamp};

pub(crate) const WORKER: Instance = Instance([7; 16]);

/// A cluster that no other test has.
pub(crate) fn identity() -> Identity {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Relaxed);
    Identity {
        cluster: format!("test-{}-{number}", std::process::id()),
        topic: "laneway.delay.log/1".to_owned(),
        shard: 0,
        shards: 1,
    }
}

pub(crate) fn id(number: u32) -> MessageId {
    MessageId::new(format!("message-{number}")).unwrap()
}

pub(crate) fn backup(url: &str) -> Backup {
    Backup::open(options(url)).unwrap()
}

/// A Redis that answers at all answers in time, on however busy a machine.
pub(crate) fn options(url: &str) -> RedisOptions {
    let mut options = RedisOptions::new(url).unwrap();
    options.connect_within = Duration::from_secs(30);
    options.answer_within = Duration::from_secs(30);
    options
}

/// A log with its one reader, and the backup of its owner.
#[derive(Clone)]
pub(crate) struct Log(Arc<Mutex<Inner>>);

struct Inner {
    shard: Shard<Memory>,
    records: Vec<Bytes>,
    changed: Vec<MessageId>,
}

impl Log {
    pub(crate) fn new(identity: Identity) -> Self {
        let log = Self(Arc::new(Mutex::new(Inner {
            shard: Shard::new(identity, Memory::default()),
            records: Vec::new(),
            changed: Vec::new(),
        })));
        log.own();
        log
    }

    fn append(inner: &mut Inner, record: &Record) -> Applied {
        let bytes = record.encode();
        let offset = inner.records.len() as u64;
        inner.records.push(bytes.clone());
        inner.shard.apply(offset, &bytes).unwrap()
    }

    /// Another epoch.
    pub(crate) fn own(&self) {
        let mut inner = self.0.lock().unwrap();
        let head = inner.shard.head();
        let owner = Owner {
            epoch: head.epoch + 1,
            reign: Reign([1; 16]),
            basis: head.basis(),
        };
        assert_eq!(
            Self::append(&mut inner, &Record::Owner(owner)),
            Applied::Owner
        );
    }

    fn change(&self, id: &MessageId, change: Change) {
        let mut inner = self.0.lock().unwrap();
        let head = inner.shard.head().clone();
        let kept = inner.shard.table().get(id);
        let row = MessageRow {
            id: id.clone(),
            version: kept.map_or(0, |kept| kept.version) + 1,
            change,
        };
        let fact = Fact {
            epoch: head.epoch,
            reign: head.reign,
            sequence: head.sequence + 1,
            basis: head.basis(),
            rows: vec![Row::Message(row)],
        };
        let applied = Self::append(&mut inner, &Record::Fact(fact));
        let counted = vec![true];
        assert_eq!(applied, Applied::Fact { counted });
        inner.changed.push(id.clone());
    }

    pub(crate) fn submit(&self, number: u32, body: usize) {
        self.change(
            &id(number),
            Change::Accepted {
                due: Timestamp::from_millis(u64::from(number)),
                at: Timestamp::from_millis(1),
                digest: RequestDigest([1; 32]),
                topic: "t".to_owned(),
                body: vec![7; body].into(),
            },
        );
    }

    pub(crate) fn begin(&self, number: u32, attempt: u32, worker: Instance) {
        let at = Timestamp::from_millis(2);
        self.change(
            &id(number),
            Change::Begun {
                attempt,
                worker,
                at,
            },
        );
    }

    pub(crate) fn deliver(&self, number: u32, attempt: u32) {
        let at = Timestamp::from_millis(3);
        self.change(&id(number), Change::Delivered { attempt, at });
    }

    pub(crate) fn head(&self) -> Head {
        self.0.lock().unwrap().shard.head().clone()
    }

    pub(crate) fn record(&self, offset: u64) -> Option<Bytes> {
        let inner = self.0.lock().unwrap();
        let offset = usize::try_from(offset).unwrap();
        inner.records.get(offset).cloned()
    }

    pub(crate) fn rows(&self) -> Rows {
        let inner = self.0.clone();
        Rows::new(move |after, limit| {
            let inner = inner.lock().unwrap();
            Some(inner.shard.table().page(after, limit))
        })
    }

    pub(crate) fn backed_up(&self, backup: &Backup) -> ShardBackup {
        let identity = self.head().identity;
        let copy = backup.shard(identity, self.rows());
        self.note(&copy);
        copy
    }

    /// Tells what has changed.
    pub(crate) fn note(&self, copy: &ShardBackup) {
        let mut inner = self.0.lock().unwrap();
        let ids = std::mem::take(&mut inner.changed);
        let changes: Vec<Changed> = ids
            .into_iter()
            .map(|id| (id.clone(), inner.shard.table().get(&id)))
            .collect();
        copy.note(changes, inner.shard.head());
    }

    /// As the owner does, now and then.
    pub(crate) fn tick(&self, copy: &ShardBackup) {
        if copy.wants_note() {
            self.note(copy);
        }
    }

    /// Whether the copy is that of the log as it is now.
    pub(crate) async fn is_copied(&self, backup: &Backup) -> bool {
        let restored = restored(backup, &self.head().identity).await;
        let inner = self.0.lock().unwrap();
        restored.is_ok_and(|shard| {
            shard.head() == inner.shard.head() && shard.table() == inner.shard.table()
        })
    }
}

pub(crate) async fn restored(
    backup: &Backup,
    identity: &Identity,
) -> Result<Shard<Memory>, Unused> {
    let mut table = Memory::default();
    let head = backup
        .restore(identity, |_, page| {
            for (id, row) in page {
                table.put(&id, row);
            }
            true
        })
        .await?;
    Ok(Shard::resume(head, table).expect("a copy that is answered is consistent"))
}

pub(crate) async fn connect(url: &str) -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(url).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

pub(crate) async fn ask<R: redis::FromRedisValue>(url: &str, words: &[&str]) -> R {
    let mut connection = connect(url).await;
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query_async(&mut connection).await.unwrap()
}

/// A Redis of its own, or the end of the test.
#[macro_export]
macro_rules! own_redis {
    ($arguments:expr) => {
        match support::server::Server::start($arguments) {
            Some(server) => server,
            None => {
                needs::skip!("needs redis: LANEWAY_TEST_REDIS_BIN is not set");
                return;
            }
        }
    };
}
