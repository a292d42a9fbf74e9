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
use self::server::Server;
use super::forward::forward_to_server;
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
    forward_to_server!();

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
