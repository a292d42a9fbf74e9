//! The broker on Apache Kafka, `kafka://…`.
//!
//! | file | what it is |
//! |---|---|
//! | `options` | how it is set up |
//! | `client`, `statistics` | clients of the cluster, and what they tell |
//! | `names` | what things are called on the cluster |
//! | `server` | what all parts share; topics |
//! | `cluster` | what is asked of the cluster itself |
//! | `topic_identity` | which topic of its name it is, and how it is created once |
//! | `catalog` | what the bus keeps about topics, on a compacted topic |
//! | `topics`, `refresh`, `growth` | a topic as a topic of Kafka, and as it is by now |
//! | `message`, `panics` | a record as a message, whatever is in it |
//! | `publish` | publishing |
//! | `mark` | what is committed with an offset |
//! | `ledger` | what groups have settled, how far they are behind |
//! | `groups` | what is remembered of groups for longer than Kafka does |
//! | `peek`, `range_reader` | reading without a group |
//! | `logs` | logs of raw records |
//! | `follower`, `follow_client` | reading them without a group, many partitions by one client |
//! | `member`, `consumer` | members of a group |
//! | `takeover` | becoming the owner of what the group assigned |
//! | `commits` | the one place from which a member commits |
//! | `assignment`, `reader` | a partition that is ours |
//! | `inspect` | what can be seen of a cluster, for the doctor |
//!
//! Topics, partitions, offsets, keys and headers are those of Kafka. A group commits the lowest unsettled
//! offset, and with it what is settled above: see [`mark`] and [`member`].

mod assignment;
mod catalog;
mod client;
mod cluster;
mod commits;
mod consumer;
#[cfg(feature = "log")]
mod follow_client;
#[cfg(feature = "log")]
mod follower;
mod groups;
mod growth;
#[cfg(feature = "doctor")]
mod inspect;
mod ledger;
#[cfg(feature = "log")]
mod logs;
mod mark;
mod member;
mod message;
mod names;
mod options;
mod panics;
mod peek;
mod publish;
mod range_reader;
mod reader;
mod refresh;
mod server;
mod statistics;
mod takeover;
mod topic_identity;
mod topics;

#[cfg(feature = "metrics")]
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::Consumer as _;

#[cfg(test)]
pub(crate) use self::inspect::SeenTopic;
#[cfg(feature = "doctor")]
pub(crate) use self::inspect::{Seen, inspect};
pub use self::options::{KafkaOptions, KafkaProtocol, KafkaSasl};

use self::client::PublishWithin;
use self::cluster::blocking;
use self::server::Kafka;
#[cfg(feature = "log")]
use super::log::Logs;
use super::member::GroupMember;
use super::remote::{Remote, Server};
use super::{BrokerError, Start};
#[cfg(feature = "metrics")]
use crate::exposition::Page;
use crate::supervise::supervise;
use crate::topic::TopicName;

/// A cluster that is well answers sooner.
const HEALTHY_WITHIN: Duration = Duration::from_secs(5);

/// A broker on a cluster, for callers that give up on what they publish after `deadline`.
pub(crate) async fn open(
    options: KafkaOptions,
    deadline: Duration,
) -> Result<Remote<Kafka>, BrokerError> {
    panics::silence_expected();
    let server = Kafka::open(options, PublishWithin::of(deadline)).await?;
    let server = Arc::new(server);
    let refreshed = Arc::downgrade(&server);
    tokio::spawn(async move {
        supervise("looking at topics again", || {
            refresh::keep_up(refreshed.clone())
        })
        .await;
    });
    Ok(Remote::new(server))
}

impl Server for Kafka {
    type Member = GroupMember;

    async fn join(
        self: Arc<Self>,
        topic: &TopicName,
        group: &str,
        start: Start,
    ) -> Result<GroupMember, BrokerError> {
        member::join(self, topic, group, start).await
    }

    #[cfg(feature = "log")]
    fn logs(self: &Arc<Self>) -> &dyn Logs {
        self
    }

    async fn health(&self) -> Result<(), BrokerError> {
        self.check_open()?;
        let asker = self.asker.clone();
        let catalog = self.names.catalog();
        let asking = blocking(move || {
            while asker.poll(Duration::ZERO).is_some() {}
            asker.fetch_metadata(Some(&catalog), HEALTHY_WITHIN)
        });
        asking
            .await
            .map(drop)
            .map_err(|error| self.failed("asking for metadata", error))
    }

    #[cfg(feature = "metrics")]
    fn write_metrics(&self, page: &mut Page<'_>) -> fmt::Result {
        self.telling.gauges.write(page)
    }

    async fn close(&self) {
        self.shut_down().await;
    }
}
