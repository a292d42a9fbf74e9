//! Whether an owner of the past began anything: the log, read beside the processes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use laneway::Bus;
use laneway::log::{Error, Log};
use laneway_cluster::record::{Change, Record, Reign, Row};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::receiver::Arrival;

/// The topic with the logs of all shards, and how many there are.
const TOPIC: &str = "laneway.delay.log";
const SHARDS: u32 = 16;

const PAUSE: Duration = Duration::from_millis(100);
const READ_WITHIN: Duration = Duration::from_mins(2);

/// What the log says: in which epoch an attempt was begun.
#[derive(Debug, Default)]
pub(super) struct Begun {
    epochs: HashMap<(String, u32), u64>,
}

impl Begun {
    /// Attempts that were not begun by an owner that counts, or in an epoch below that of an earlier one.
    pub(super) fn wrong(&self, arrivals: &[Arrival]) -> u64 {
        let mut newest: HashMap<&str, u64> = HashMap::new();
        let mut wrong = 0;
        for arrival in arrivals {
            let epoch = self.epochs.get(&(arrival.id.clone(), arrival.attempt));
            let before = newest.entry(&arrival.id).or_default();
            match epoch {
                Some(epoch) if epoch >= before => *before = *epoch,
                _ => wrong += 1,
            }
        }
        wrong
    }
}

/// Reads all shards from where they end now.
pub(super) struct Reader {
    bus: Bus,
    log: Log,
    begun: Arc<Mutex<Begun>>,
    positions: Vec<Arc<AtomicU64>>,
    following: JoinSet<()>,
}

impl Reader {
    pub(super) async fn start(address: &str) -> Result<Self> {
        let bus = Bus::open(address).await.context("cannot read the log")?;
        let log = bus.log(TOPIC, SHARDS).await?;
        let mut reader = Self {
            bus,
            log,
            begun: Arc::default(),
            positions: Vec::new(),
            following: JoinSet::new(),
        };
        for shard in 0..SHARDS {
            let from = reader.log.bounds(shard).await?.end;
            let position = Arc::new(AtomicU64::new(from));
            reader.positions.push(position.clone());
            let (log, begun) = (reader.log.clone(), reader.begun.clone());
            reader
                .following
                .spawn(async move { follow(&log, shard, &begun, &position).await });
        }
        Ok(reader)
    }

    /// Reads what there is up to now.
    pub(super) async fn finish(mut self) -> Result<Begun> {
        let deadline = Instant::now() + READ_WITHIN;
        for (shard, position) in (0..).zip(&self.positions) {
            let end = self.log.bounds(shard).await?.end;
            while position.load(Ordering::Relaxed) < end {
                if Instant::now() > deadline {
                    bail!("the log of shard {shard} is not read to its end in time");
                }
                sleep(PAUSE).await;
            }
        }
        self.following.abort_all();
        let _ = self.bus.close(READ_WITHIN).await;
        Ok(std::mem::take(&mut *lock(&self.begun)))
    }
}

fn lock(begun: &Mutex<Begun>) -> MutexGuard<'_, Begun> {
    begun.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends when the log cannot be read any more, which [`Reader::finish`] notices.
async fn follow(log: &Log, shard: u32, begun: &Mutex<Begun>, position: &AtomicU64) {
    let mut follower = log.follow(shard, position.load(Ordering::Relaxed));
    let mut owner: Option<(u64, Reign)> = None;
    loop {
        let records = match follower.next().await {
            Ok(records) => records,
            Err(Error::Fault(_)) => return,
            Err(_) => {
                sleep(PAUSE).await;
                continue;
            }
        };
        for (offset, bytes) in records {
            match Record::decode(&bytes) {
                Ok(Record::Owner(it)) if owner.is_none_or(|(epoch, _)| it.epoch > epoch) => {
                    owner = Some((it.epoch, it.reign));
                }
                Ok(Record::Fact(fact)) => {
                    // The first one that is read is of the owner that there was.
                    let known = *owner.get_or_insert((fact.epoch, fact.reign));
                    if known == (fact.epoch, fact.reign) {
                        note(begun, fact.epoch, &fact.rows);
                    }
                }
                _ => {}
            }
            position.store(offset + 1, Ordering::Relaxed);
        }
    }
}

fn note(begun: &Mutex<Begun>, epoch: u64, rows: &[Row]) {
    for row in rows {
        if let Row::Message(row) = row
            && let Change::Begun { attempt, .. } = &row.change
        {
            let id = row.id.as_str().to_owned();
            lock(begun).epochs.insert((id, *attempt), epoch);
        }
    }
}
