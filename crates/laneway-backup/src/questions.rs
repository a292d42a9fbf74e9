use std::sync::Arc;

use laneway_cluster::record::Instance;
use laneway_cluster::shard_of;
use laneway_delay::{MessageId, Timestamp};

use crate::connection::Redis;
use crate::error::Error;
use crate::keys::{self, Keys};

/// What people and tools ask about a cluster: which worker was handed what. The answers are as old as the copies.
#[derive(Clone)]
pub struct Questions {
    redis: Arc<Redis>,
    cluster: String,
    shards: u32,
}

/// How much the copy of a shard has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardCounts {
    /// The shard.
    pub shard: u32,
    /// The epoch of the owner that wrote it; 0 if there is no copy.
    pub epoch: u64,
    /// The offset of the log behind the last record in it, while it is whole.
    pub applied: Option<u64>,
    /// Messages, ended ones among them.
    pub rows: u64,
    /// Messages that wait for an attempt, or for its outcome.
    pub scheduled: u64,
    /// Messages that workers have now.
    pub handed: Vec<(Instance, u64)>,
}

impl Questions {
    pub(crate) fn new(redis: Arc<Redis>, cluster: &str, shards: u32) -> Self {
        let cluster = cluster.to_owned();
        Self {
            redis,
            cluster,
            shards,
        }
    }

    fn all(&self) -> impl Iterator<Item = (u32, Keys)> {
        (0..self.shards).map(|shard| (shard, Keys::new(&self.cluster, shard)))
    }

    /// Up to `limit` messages that a worker was handed and whose outcome is not known, by due time, behind `after`.
    ///
    /// # Errors
    /// When Redis does not answer.
    pub async fn worker_messages(
        &self,
        worker: Instance,
        after: Option<&(Timestamp, MessageId)>,
        limit: usize,
    ) -> Result<Vec<(Timestamp, MessageId)>, Error> {
        let mut messages = Vec::new();
        for (_, keys) in self.all() {
            let more = self.of_shard(&keys.at(worker), after, limit).await?;
            messages.extend(more);
        }
        messages.sort_unstable();
        messages.truncate(limit);
        Ok(messages)
    }

    async fn of_shard(
        &self,
        key: &str,
        after: Option<&(Timestamp, MessageId)>,
        limit: usize,
    ) -> Result<Vec<(Timestamp, MessageId)>, Error> {
        let mut found = Vec::new();
        let mut offset = 0;
        let from = after.map_or(0, |(due, _)| due.as_millis());
        while found.len() < limit {
            let mut ask = redis::cmd("ZRANGE");
            ask.arg(key).arg(from).arg("+inf").arg("BYSCORE");
            ask.arg("LIMIT").arg(offset).arg(limit).arg("WITHSCORES");
            let page: Vec<(String, f64)> = self.redis.ask(&ask).await?;
            let is_last = page.len() < limit;
            offset += page.len();
            for (id, due) in page {
                let id = MessageId::new(id).map_err(|_| Error::Unreadable("an id"))?;
                let place = (timestamp(due), id);
                // Those that are due in the same millisecond are in the order of their ids.
                if after.is_none_or(|after| place > *after) {
                    found.push(place);
                }
            }
            if is_last {
                break;
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    /// The worker that has a message now.
    ///
    /// # Errors
    /// When Redis does not answer.
    pub async fn worker_of(&self, id: &MessageId) -> Result<Option<Instance>, Error> {
        let keys = Keys::new(&self.cluster, shard_of(id, self.shards));
        let mut ask = redis::cmd("HGET");
        ask.arg(keys.with()).arg(id.as_str());
        let worker: Option<String> = self.redis.ask(&ask).await?;
        worker
            .map(|worker| keys::instance(&worker).ok_or(Error::Unreadable("a worker")))
            .transpose()
    }

    /// How many messages wait for an attempt that may begin from `from` on and before `until`.
    ///
    /// # Errors
    /// When Redis does not answer.
    pub async fn due_between(&self, from: Timestamp, until: Timestamp) -> Result<u64, Error> {
        let mut sum = 0;
        for (_, keys) in self.all() {
            let mut ask = redis::cmd("ZCOUNT");
            ask.arg(keys.due()).arg(from.as_millis());
            ask.arg(format!("({}", until.as_millis()));
            sum += self.redis.ask::<u64>(&ask).await?;
        }
        Ok(sum)
    }

    /// How much each copy has.
    ///
    /// # Errors
    /// When Redis does not answer.
    pub async fn counts(&self) -> Result<Vec<ShardCounts>, Error> {
        let mut all = Vec::new();
        for (shard, keys) in self.all() {
            let mut ask = redis::cmd("HMGET");
            ask.arg(keys.meta());
            ask.arg(&["epoch", "count", "due", "applied", "whole"]);
            let fields: Vec<Option<u64>> = self.redis.ask(&ask).await?;
            let [epoch, rows, scheduled, applied, whole] = fields[..] else {
                return Err(Error::Unreadable("its state"));
            };
            let mut ask = redis::cmd("SMEMBERS");
            ask.arg(keys.workers());
            let workers: Vec<String> = self.redis.ask(&ask).await?;
            let mut handed = Vec::new();
            for worker in workers {
                let worker = keys::instance(&worker).ok_or(Error::Unreadable("a worker"))?;
                let mut ask = redis::cmd("ZCARD");
                ask.arg(keys.at(worker));
                handed.push((worker, self.redis.ask(&ask).await?));
            }
            handed.sort_unstable();
            all.push(ShardCounts {
                shard,
                epoch: epoch.unwrap_or(0),
                applied: applied.filter(|_| whole == Some(1)),
                rows: rows.unwrap_or(0),
                scheduled: scheduled.unwrap_or(0),
                handed,
            });
        }
        Ok(all)
    }
}

impl std::fmt::Debug for Questions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Questions")
            .field("cluster", &self.cluster)
            .field("shards", &self.shards)
            .finish_non_exhaustive()
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a score is a number of milliseconds; what is none becomes 0 or the largest"
)]
fn timestamp(score: f64) -> Timestamp {
    Timestamp::from_millis(score as u64)
}
