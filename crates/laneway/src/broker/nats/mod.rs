//! The broker on NATS `JetStream`, `nats://…`.
//!
//! | file | what it is |
//! |---|---|
//! | `options` | how it is set up |
//! | `connect` | the connections: one to read over, one for all else |
//! | `names` | what things are called on the server |
//! | `server` | what all parts share; topics |
//! | `topics` | a topic as a stream |
//! | `message` | a record as a message |
//! | `publish` | publishing |
//! | `bucket` | entries that are changed by compare-and-set |
//! | `record` | what is kept of a group in a partition |
//! | `ledger` | what groups have settled, and how far they are behind |
//! | `member`, `peers`, `rebalance` | a member of a group, who else is there, and who gets what |
//! | `assignment`, `reader` | a partition that is ours |
//! | `subject_reader` | reads the subject of a partition |
//! | `logs`, `trim_mark`, `follower` | logs of raw records, what was trimmed of them, and reading them without a group |
//! | `raw` | a message as the server has it, whatever bytes its headers are |
//! | `error` | calls to the server that failed |
//! | `inspect` | what can be seen of a server, for the doctor |
//!
//! A topic is a stream, a partition is a subject of it, an offset is a sequence of the stream. Nothing
//! is acknowledged to the server: see [`member`] and [`record`] for why order survives all the same.

mod assignment;
mod bucket;
mod connect;
mod error;
#[cfg(feature = "log")]
mod follower;
#[cfg(feature = "doctor")]
mod inspect;
mod ledger;
#[cfg(feature = "log")]
mod logs;
mod member;
mod message;
mod names;
mod options;
mod peers;
mod publish;
mod raw;
mod reader;
mod rebalance;
mod record;
mod server;
mod subject_reader;
mod topics;
#[cfg(feature = "log")]
mod trim_mark;

use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use tokio::time::timeout;

#[cfg(feature = "doctor")]
pub(crate) use self::inspect::{Seen, inspect};
pub use self::options::{NatsConnection, NatsOptions};

use self::server::Nats;
#[cfg(feature = "log")]
use super::log::Logs;
use super::member::GroupMember;
use super::remote::{Remote, Server};
use super::{BrokerError, Start};
use crate::topic::TopicName;

/// What was written and not sent gets this long when the bus is closed.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);

/// A broker on a server, or on several of them.
pub(crate) async fn open(options: NatsOptions) -> Result<Remote<Nats>, BrokerError> {
    let server = Nats::open(options).await?;
    Ok(Remote::new(Arc::new(server)))
}

impl Server for Nats {
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
        if self.client.connection_state() != State::Connected {
            return Err(self.failed("connecting", "there is no connection"));
        }
        let asked = self.context.query_account().await;
        asked
            .map(drop)
            .map_err(|error| self.failed("asking for the account", error))
    }

    async fn close(&self) {
        self.refuse_calls();
        let _ = timeout(FLUSH_WITHIN, self.client.flush()).await;
        self.hang_up().await;
    }
}
