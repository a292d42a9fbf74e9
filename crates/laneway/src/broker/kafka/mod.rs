//! The broker on Apache Kafka, `kafka://…`.
//!
//! | file | what it is |
//! |---|---|
//! | `options`, `url` | how it is set up |
//! | `client`, `statistics` | clients of the cluster, and what they tell |
//! | `names` | what things are called on the cluster |
//! | `server` | what all parts share; topics |
//! | `cluster` | what is asked of the cluster itself |
//! | `catalog` | what the bus keeps about topics, on a compacted topic |
//! | `topics` | a topic as a topic of Kafka |
//! | `message` | a record as a message |
//! | `publish` | publishing |
//! | `mark` | what is committed with an offset |
//! | `ledger` | what groups have settled, how far they are behind |
//! | `peek`, `stretch` | reading without a group |
//! | `member`, `consumer` | members of a group |
//! | `commits` | the one place from which a member commits |
//! | `claim`, `reader` | a partition that is ours |
//! | `look` | what can be seen of a cluster, for the doctor |
//!
//! Topics, partitions, offsets, keys and headers are those of Kafka. A group commits the lowest unsettled
//! offset, and with it what is settled above: see [`mark`] and [`member`].

mod catalog;
mod claim;
mod client;
mod cluster;
mod commits;
mod consumer;
mod ledger;
mod look;
mod mark;
mod member;
mod message;
mod names;
mod options;
mod peek;
mod publish;
mod reader;
mod server;
mod statistics;
mod stretch;
mod topics;
mod url;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::Consumer as _;

#[cfg(test)]
pub(crate) use self::look::SeenTopic;
pub(crate) use self::look::{Seen, look};
pub use self::options::{KafkaOptions, KafkaOptionsError, KafkaProtocol, KafkaSasl};

use self::cluster::blocking;
use self::member::GroupMember;
use self::server::Server;
use super::{BoxFuture, Broker, BrokerError, Lag, Member, Offsets, Start};
use crate::exposition::Page;
use crate::record::{Delivered, Record};
use crate::settle::Position;
use crate::topic::{Growth, Strategy, Topic, TopicName};

/// A cluster that is well answers sooner.
const HEALTHY_WITHIN: Duration = Duration::from_secs(5);

/// A broker on a cluster.
pub(crate) struct Kafka(Arc<Server>);

impl Kafka {
    pub(crate) async fn open(options: KafkaOptions) -> Result<Self, BrokerError> {
        Ok(Self(Arc::new(Server::open(options).await?)))
    }
}

impl Broker for Kafka {
    fn is_shared(&self) -> bool {
        true
    }

    fn declare<'a>(
        &'a self,
        topic: &'a Topic,
        strategy: Strategy,
        growth: Growth,
    ) -> BoxFuture<'a, Result<Topic, BrokerError>> {
        Box::pin(self.0.declare(topic, strategy, growth))
    }

    fn describe<'a>(
        &'a self,
        topic: &'a TopicName,
    ) -> BoxFuture<'a, Result<Option<Topic>, BrokerError>> {
        Box::pin(async move {
            let place = self.0.find(topic).await?;
            Ok(place.map(|place| place.topic.clone()))
        })
    }

    fn topics(&self) -> BoxFuture<'_, Result<Vec<Topic>, BrokerError>> {
        Box::pin(self.0.topics())
    }

    fn delete<'a>(&'a self, topic: &'a TopicName) -> BoxFuture<'a, Result<(), BrokerError>> {
        Box::pin(self.0.delete(topic))
    }

    fn publish<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        records: Vec<Record>,
    ) -> BoxFuture<'a, Result<Offsets, BrokerError>> {
        Box::pin(async move {
            let offsets = self.0.publish(topic, partition, records).await?;
            Ok(Offsets::Each(offsets))
        })
    }

    fn join<'a>(
        &'a self,
        topic: &'a TopicName,
        group: &'a str,
        start: Start,
    ) -> BoxFuture<'a, Result<Box<dyn Member>, BrokerError>> {
        Box::pin(async move {
            let member = GroupMember::join(self.0.clone(), topic, group, start).await?;
            Ok(Box::new(member) as Box<dyn Member>)
        })
    }

    fn position<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Option<Position>, BrokerError>> {
        Box::pin(self.0.position(topic, partition, group))
    }

    fn settle<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        group: &'a str,
        position: Position,
    ) -> BoxFuture<'a, Result<(), BrokerError>> {
        Box::pin(self.0.settle(topic, partition, group, position))
    }

    fn peek<'a>(
        &'a self,
        topic: &'a TopicName,
        partition: u32,
        from: u64,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Delivered>, BrokerError>> {
        Box::pin(self.0.peek(topic, partition, from, most))
    }

    fn lag<'a>(
        &'a self,
        topic: &'a TopicName,
        group: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Lag>, BrokerError>> {
        Box::pin(self.0.lag(topic, group))
    }

    fn health(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            self.0.check_open()?;
            let asker = self.0.asker.clone();
            let catalog = self.0.names.catalog();
            let asking = blocking(move || {
                while asker.poll(Duration::ZERO).is_some() {}
                asker.fetch_metadata(Some(&catalog), HEALTHY_WITHIN)
            });
            asking
                .await
                .map(drop)
                .map_err(|error| self.0.failed("asking for metadata", error))
        })
    }

    fn write_metrics(&self, page: &mut Page<'_>) -> fmt::Result {
        self.0.telling.gauges.write(page)
    }

    fn close(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            self.0.close().await;
            Ok(())
        })
    }
}
