//! What an embedded broker needs of a storage engine.

use std::ops::Range;
use std::sync::Arc;

use crate::broker::{BoxFuture, BrokerError};
use crate::record::{Delivered, Record};
use crate::settle::Position;
use crate::topic::{Topic, TopicName};

/// Topics and their logs. Blocking calls are the business of the implementation.
pub(crate) trait Store: Send + Sync + 'static {
    /// All topics that were put and not removed.
    fn topics(&self) -> BoxFuture<'_, Result<Vec<Topic>, BrokerError>>;

    /// Notes a topic, new or changed; durable when it resolves.
    fn put_topic<'a>(&'a self, topic: &'a Topic) -> BoxFuture<'a, Result<(), BrokerError>>;

    /// Removes a topic with its logs and positions.
    fn remove_topic<'a>(&'a self, topic: &'a TopicName) -> BoxFuture<'a, Result<(), BrokerError>>;

    /// The log of one partition; made if it is not there.
    fn log<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
    ) -> BoxFuture<'a, Result<Arc<dyn Log>, BrokerError>>;

    /// Whether it can do its work now.
    fn health(&self) -> Result<(), BrokerError>;

    /// Finishes what is under way and lets go of the storage.
    fn close(&self) -> BoxFuture<'_, Result<(), BrokerError>>;
}

/// The log of one partition. Offsets are dense and start at 0.
pub(crate) trait Log: Send + Sync + 'static {
    /// Appends; resolves with the offset of the first record when all are durable.
    ///
    /// IMPORTANT: records of two calls are never interleaved, and a call that was made after another
    /// one resolved gets higher offsets.
    fn append(&self, records: Vec<Record>) -> BoxFuture<'_, Result<u64, BrokerError>>;

    /// Up to `most` durable records from `from` on (or from the oldest there is), in order.
    fn read(&self, from: u64, most: usize) -> BoxFuture<'_, Result<Vec<Delivered>, BrokerError>>;

    /// The oldest offset that is there, and the one that comes after the last durable one.
    fn span(&self) -> Range<u64>;

    /// Bytes that the records hold, as counted by [`Record::size`].
    fn bytes(&self) -> u64;

    /// Removes the records below `before`.
    fn trim(&self, before: u64) -> BoxFuture<'_, Result<(), BrokerError>>;

    /// Notes what a group has settled. Survives a crash of the process when it resolves; after a
    /// power cut an older one may come back, which repeats work and loses nothing.
    fn save_position<'a>(
        &'a self,
        group: &'a str,
        position: &'a Position,
    ) -> BoxFuture<'a, Result<(), BrokerError>>;

    /// The same, and a power cut does not bring back an older one: for those who must not repeat anything.
    fn sync_position<'a>(
        &'a self,
        group: &'a str,
        position: &'a Position,
    ) -> BoxFuture<'a, Result<(), BrokerError>> {
        self.save_position(group, position)
    }

    /// What a group has settled.
    fn position<'a>(
        &'a self,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Option<Position>, BrokerError>>;
}
