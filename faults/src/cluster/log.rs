//! The log of the cluster, read as it grows by a reader that breaks nothing and is not broken: who began what, in which epoch.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use laneway::Bus;
use laneway::log::{Error, Log};
use laneway_cluster::apply::{Applied, Identity, Memory, Shard};
use laneway_cluster::record::{Change, Record, Reign, Row};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::receiver::Start;
use super::stage::SHARDS;

/// The topic with the logs of all shards.
const TOPIC: &str = "laneway.delay.log";
/// What the cluster is called.
const CLUSTER: &str = "laneway";

const PAUSE: Duration = Duration::from_millis(500);
/// All of the log is read in that time after everything is over.
const READ_WITHIN: Duration = Duration::from_mins(2);
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// What the log says.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Records that were read.
    pub(super) records: u64,
    /// Owners that counted, in all shards.
    pub(super) owners: u64,
    /// Facts that counted, and records that did not.
    pub(super) facts: u64,
    pub(super) void: u64,
    /// The reign whose facts counted, by shard and epoch.
    reigns: BTreeMap<(u32, u64), Reign>,
    /// Facts that counted in an epoch in which those of another reign did.
    pub(super) second_reigns: u64,
    /// The epoch in which an attempt of a message was begun.
    begun: BTreeMap<String, BTreeMap<u32, u64>>,
    /// Why a shard could not be read any further.
    pub(super) stopped: Vec<String>,
}

/// Starts that the log does not allow.
#[derive(Debug, Default)]
pub(super) struct Wrong<'a> {
    pub(super) not_begun: Vec<&'a Start>,
    /// Starts of one message whose epochs run backwards: the earlier one and the later one.
    pub(super) backwards: Vec<(&'a Start, &'a Start)>,
}

impl Told {
    fn note(&mut self, shard: u32, record: &Record, applied: Applied) {
        self.records += 1;
        match (record, applied) {
            (Record::Fact(fact), Applied::Fact { counted }) => {
                self.facts += 1;
                let reign = self.reigns.entry((shard, fact.epoch)).or_insert(fact.reign);
                if *reign != fact.reign {
                    self.second_reigns += 1;
                }
                for (row, counts) in fact.rows.iter().zip(counted) {
                    if let Row::Message(row) = row
                        && let Change::Begun { attempt, .. } = &row.change
                        && counts
                    {
                        let attempts = self.begun.entry(row.id.as_str().to_owned()).or_default();
                        attempts.insert(*attempt, fact.epoch);
                    }
                }
            }
            (_, Applied::Owner) => self.owners += 1,
            (_, Applied::Void(_)) => self.void += 1,
            _ => {}
        }
    }

    /// Which of these starts, in the order of time, the log does not allow.
    pub(super) fn check<'a>(&self, starts: &'a [Start]) -> Wrong<'a> {
        let mut wrong = Wrong::default();
        let mut newest: BTreeMap<&str, (u64, &Start)> = BTreeMap::new();
        for start in starts {
            let epoch = self
                .begun
                .get(&start.id)
                .and_then(|attempts| attempts.get(&start.attempt));
            let Some(&epoch) = epoch else {
                wrong.not_begun.push(start);
                continue;
            };
            let known = newest.entry(&start.id).or_insert((epoch, start));
            if epoch < known.0 {
                wrong.backwards.push((known.1, start));
            } else {
                *known = (epoch, start);
            }
        }
        wrong
    }
}

/// Reads all shards, from their beginning to the end that they have when it is asked for.
pub(super) struct Reader {
    bus: Bus,
    log: Log,
    told: Arc<Mutex<Told>>,
    /// The offset up to which a shard was read.
    positions: Vec<Arc<AtomicU64>>,
    following: JoinSet<()>,
}

impl Reader {
    /// Begins to read.
    pub(super) async fn start(address: &str) -> Result<Self> {
        let bus = Bus::open(address).await.context("cannot read the log")?;
        let log = bus.log(TOPIC, SHARDS).await?;
        let mut reader = Self {
            bus,
            log,
            told: Arc::default(),
            positions: Vec::new(),
            following: JoinSet::new(),
        };
        for shard in 0..SHARDS {
            let position = Arc::new(AtomicU64::new(0));
            reader.positions.push(position.clone());
            let (log, told) = (reader.log.clone(), reader.told.clone());
            reader.following.spawn(async move {
                if let Err(error) = follow(&log, shard, &told, &position).await {
                    lock(&told)
                        .stopped
                        .push(format!("shard {shard}: {error:#}"));
                }
            });
        }
        Ok(reader)
    }

    /// Reads what there is up to now, and answers all of it.
    pub(super) async fn finish(mut self) -> Result<Told> {
        let deadline = Instant::now() + READ_WITHIN;
        for (shard, position) in (0..).zip(&self.positions) {
            let end = self.log.bounds(shard).await?.end;
            while position.load(Ordering::Relaxed) < end && lock(&self.told).stopped.is_empty() {
                if Instant::now() > deadline {
                    bail!("the log of shard {shard} is not read to its end {end} in time");
                }
                sleep(PAUSE / 10).await;
            }
        }
        self.following.abort_all();
        let _ = timeout(CLOSE_WITHIN, self.bus.close(CLOSE_WITHIN)).await;
        Ok(std::mem::take(&mut *lock(&self.told)))
    }
}

fn lock(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends only with an error.
async fn follow(log: &Log, number: u32, told: &Mutex<Told>, position: &AtomicU64) -> Result<()> {
    let identity = Identity {
        cluster: CLUSTER.to_owned(),
        topic: log.identity().to_owned(),
        shard: number,
        shards: SHARDS,
    };
    let mut shard = Shard::new(identity, Memory::default());
    let mut follower = log.follow(number, log.bounds(number).await?.start);
    loop {
        let records = match follower.next().await {
            Ok(records) => records,
            Err(error @ Error::Fault(_)) => return Err(error.into()),
            // The server is away; it goes on where it was.
            Err(_) => {
                sleep(PAUSE).await;
                continue;
            }
        };
        for (offset, bytes) in records {
            let applied = shard.apply(offset, &bytes)?;
            if let Ok(record) = Record::decode(&bytes) {
                lock(told).note(number, &record, applied);
            }
            position.store(offset + 1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Start, Told};

    fn start(attempt: u32) -> Start {
        Start {
            tag: 0,
            id: "a".to_owned(),
            attempt,
            at: 0,
            is_good: true,
        }
    }

    #[test]
    fn a_start_that_the_log_did_not_begin_and_epochs_that_run_backwards_are_found() {
        let told = Told {
            begun: BTreeMap::from([("a".to_owned(), BTreeMap::from([(1, 4), (2, 7)]))]),
            ..Told::default()
        };
        let in_order = [start(1), start(2)];
        let wrong = told.check(&in_order);
        assert!(wrong.not_begun.is_empty() && wrong.backwards.is_empty());
        let turned = [start(2), start(1), start(3)];
        let wrong = told.check(&turned);
        assert_eq!(wrong.backwards.len(), 1);
        assert_eq!(wrong.not_begun.len(), 1);
        assert_eq!(wrong.not_begun[0].attempt, 3);
    }
}
