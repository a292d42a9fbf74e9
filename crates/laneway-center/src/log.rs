//! The log of the shards, as far as a center needs it.

use std::ops::Range;

use bytes::Bytes;
use laneway_delay::BoxFuture;

/// Records of a shard, each with its offset.
pub(crate) type Records = Vec<(u64, Bytes)>;

/// What a log did not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct LogError(pub(crate) String);

/// The partitions of `laneway.delay.log`: one for each shard.
pub(crate) trait ShardLog: Send + Sync + 'static {
    /// What the broker calls this very topic.
    fn identity(&self) -> &str;

    /// How many shards there are.
    fn shards(&self) -> u32;

    /// Appends records in order, behind all earlier ones. An error says nothing about whether they landed, and which.
    fn append(&self, shard: u32, records: Vec<Bytes>) -> BoxFuture<'_, Result<(), LogError>>;

    /// The first offset there is, and the one behind the last, as the broker has it now.
    fn bounds(&self, shard: u32) -> BoxFuture<'_, Result<Range<u64>, LogError>>;

    /// The record at exactly this offset.
    fn read(&self, shard: u32, offset: u64) -> BoxFuture<'_, Result<Option<Bytes>, LogError>>;

    /// Records from this offset on, as they come.
    fn follow(&self, shard: u32, from: u64) -> Box<dyn Follow>;

    /// Removes all records before this offset.
    fn trim(&self, shard: u32, before: u64) -> BoxFuture<'_, Result<(), LogError>>;
}

/// A reader of one shard. Offsets may have gaps, and never go back.
pub(crate) trait Follow: Send {
    /// The next records; waits while there are none.
    fn next(&mut self) -> BoxFuture<'_, Result<Records, LogError>>;
}

impl From<laneway::log::Error> for LogError {
    fn from(error: laneway::log::Error) -> Self {
        Self(error.to_string())
    }
}

impl ShardLog for laneway::log::Log {
    fn identity(&self) -> &str {
        self.identity()
    }

    fn shards(&self) -> u32 {
        self.partitions()
    }

    fn append(&self, shard: u32, records: Vec<Bytes>) -> BoxFuture<'_, Result<(), LogError>> {
        Box::pin(async move {
            self.append(shard, records).await?;
            Ok(())
        })
    }

    fn bounds(&self, shard: u32) -> BoxFuture<'_, Result<Range<u64>, LogError>> {
        Box::pin(async move { Ok(self.bounds(shard).await?) })
    }

    fn read(&self, shard: u32, offset: u64) -> BoxFuture<'_, Result<Option<Bytes>, LogError>> {
        Box::pin(async move { Ok(self.read(shard, offset).await?) })
    }

    fn follow(&self, shard: u32, from: u64) -> Box<dyn Follow> {
        Box::new(self.follow(shard, from))
    }

    fn trim(&self, shard: u32, before: u64) -> BoxFuture<'_, Result<(), LogError>> {
        Box::pin(async move { Ok(self.trim(shard, before).await?) })
    }
}

impl Follow for laneway::log::Follower {
    fn next(&mut self) -> BoxFuture<'_, Result<Records, LogError>> {
        Box::pin(async move { Ok(self.next().await?) })
    }
}
