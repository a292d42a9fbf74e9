//! A run, judged by the checker of the core.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use laneway_cluster::apply::{Applied, Identity, Memory, Shard};
use laneway_cluster::checker::{Allowed, History, Said, Start, Violation, check};
use laneway_cluster::record::{Change, Record, Row};
use laneway_cluster::shard_of;
use laneway_delay::{MessageId, Timestamp};

use super::world::{CLUSTER, World};

impl World {
    /// Everything that must not be, over all shards. `healed`: when the last fault was over.
    pub(super) fn judge(&self, healed: Option<Timestamp>) -> Vec<Violation> {
        let shards = 0..self.shards;
        shards
            .flat_map(|shard| self.judge_shard(shard, healed))
            .collect()
    }

    fn judge_shard(&self, shard: u32, healed: Option<Timestamp>) -> Vec<Violation> {
        let is_here = |id: &MessageId| shard_of(id, self.shards) == shard;
        let identity = Identity {
            cluster: CLUSTER.to_owned(),
            topic: "memory".to_owned(),
            shard,
            shards: self.shards,
        };
        let log = self.log.all(shard);
        let mut epochs = HashMap::new();
        let mut reader = Shard::new(identity.clone(), Memory::default());
        for entry in &log {
            let applied = reader.apply(entry.offset, &entry.bytes).unwrap();
            let (Applied::Fact { counted }, Ok(Record::Fact(fact))) =
                (applied, Record::decode(&entry.bytes))
            else {
                continue;
            };
            for (row, counts) in fact.rows.iter().zip(counted) {
                if let Row::Message(row) = row
                    && let Change::Begun { attempt, .. } = row.change
                    && counts
                {
                    epochs.insert((row.id.clone(), attempt), fact.epoch);
                }
            }
        }
        let came = self.receiver.came().into_iter();
        let starts = came.filter(|came| is_here(&came.id)).map(|came| Start {
            epoch: epochs
                .get(&(came.id.clone(), came.attempt))
                .copied()
                .unwrap_or(0),
            id: came.id,
            attempt: came.attempt,
            at: came.at,
            is_good: came.is_good,
        });
        let said: Vec<Said> = self.said.lock().clone();
        let history = History {
            identity,
            log,
            left: self.log.first(shard),
            dead_letters: BTreeSet::new(),
            starts: starts.collect(),
            said: said.into_iter().filter(|said| is_here(&said.id)).collect(),
            healed,
            ended: self.now(),
            allowed: Allowed {
                settle: Duration::from_secs(5),
                ..Allowed::default()
            },
        };
        check(&history)
    }
}
