//! The broker on NATS `JetStream`, `nats://…`.
//!
//! | file | what it is |
//! |---|---|
//! | `options`, `url` | how it is set up |
//! | `connect` | the connection |
//! | `names` | what things are called on the server |
//! | `server` | what all parts share; topics |
//! | `topics` | a topic as a stream |
//! | `message` | a record as a message |
//! | `publish` | publishing |
//! | `bucket` | entries that are changed by compare-and-set |
//! | `record` | what is kept of a group in a partition |
//! | `ledger` | what groups have settled, and how far they are behind |
//! | `member`, `presence`, `share` | a member of a group, who else is there, and who gets what |
//! | `claim`, `reader` | a partition that is ours |
//! | `look` | what can be seen of a server, for the doctor |
//!
//! A topic is a stream, a partition is a subject of it, an offset is a sequence of the stream. Nothing
//! is acknowledged to the server: see [`member`] and [`record`] for why order survives all the same.

mod bucket;
mod claim;
mod connect;
mod error;
mod ledger;
mod look;
mod member;
mod message;
mod names;
mod options;
mod presence;
mod publish;
mod reader;
mod record;
mod server;
mod share;
mod topics;
mod url;

use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use tokio::time::timeout;

pub(crate) use self::look::{Seen, look};
pub use self::options::{NatsConnection, NatsOptions, NatsOptionsError};

use self::server::Server;
use super::forward::forward_to_server;
use super::{BoxFuture, Broker, BrokerError, Lag, Member, Offsets, Start};
use crate::record::{Delivered, Record};
use crate::settle::Position;
use crate::topic::{Growth, Strategy, Topic, TopicName};

/// What was written and not sent gets this long when the bus is closed.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);

/// A broker on a server, or on several of them.
pub(crate) struct Nats(Arc<Server>);

impl Nats {
    pub(crate) async fn open(options: NatsOptions) -> Result<Self, BrokerError> {
        Ok(Self(Arc::new(Server::open(options).await?)))
    }
}

impl Broker for Nats {
    forward_to_server!();

    fn health(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            self.0.check_open()?;
            if self.0.client.connection_state() != State::Connected {
                return Err(self.0.failed("connecting", "there is no connection"));
            }
            let asked = self.0.context.query_account().await;
            asked
                .map(drop)
                .map_err(|error| self.0.failed("asking for the account", error))
        })
    }

    fn close(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            self.0.close();
            let _ = timeout(FLUSH_WITHIN, self.0.client.flush()).await;
            let _ = self.0.client.drain().await;
            Ok(())
        })
    }
}
