//! The connection, made when it is needed and thrown away when it fails. Every wait has an end.

use std::sync::Arc;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, Pipeline, RedisFuture, Value};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::Error;
use crate::options::RedisOptions;
use crate::script::Call;

enum Server {
    One(Box<Client>),
    Cluster(Box<ClusterClient>),
}

#[derive(Clone)]
pub(crate) enum Connection {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// A Redis, connected or not.
pub(crate) struct Redis {
    server: Server,
    options: RedisOptions,
    /// With the number of the connection, so that a call throws away only the one that failed it.
    current: Mutex<(u64, Option<Connection>)>,
}

impl Redis {
    pub(crate) fn new(options: RedisOptions) -> Result<Arc<Self>, Error> {
        #[cfg(feature = "tls")]
        let certificates = {
            // The one TLS provider of the workspace. Another one that was chosen before stays.
            let _ = rustls::crypto::ring::default_provider().install_default();
            redis::TlsCertificates {
                client_tls: None,
                root_cert: options.authorities.clone(),
            }
        };
        let url = options.url.as_str();
        let server = if options.is_cluster {
            let builder = ClusterClientBuilder::new([url])
                .connection_timeout(options.connect_within)
                .response_timeout(options.answer_within)
                .retries(2);
            #[cfg(feature = "tls")]
            let builder = if url.starts_with("rediss:") {
                builder.certs(certificates)
            } else {
                builder
            };
            Server::Cluster(Box::new(builder.build()?))
        } else {
            #[cfg(feature = "tls")]
            let client = if url.starts_with("rediss:") {
                Client::build_with_tls(url, certificates)?
            } else {
                Client::open(url)?
            };
            #[cfg(not(feature = "tls"))]
            let client = Client::open(url)?;
            Server::One(Box::new(client))
        };
        Ok(Arc::new(Self {
            server,
            options,
            current: Mutex::default(),
        }))
    }

    pub(crate) const fn options(&self) -> &RedisOptions {
        &self.options
    }

    async fn connect(&self) -> Result<Connection, Error> {
        Ok(match &self.server {
            Server::One(client) => {
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(self.options.connect_within))
                    .set_response_timeout(Some(self.options.answer_within));
                let connecting = client.get_multiplexed_async_connection_with_config(&config);
                Connection::One(connecting.await?)
            }
            Server::Cluster(client) => Connection::Cluster(client.get_async_connection().await?),
        })
    }

    async fn connection(&self) -> Result<(u64, Connection), Error> {
        let mut current = self.current.lock().await;
        if let (number, Some(connection)) = &*current {
            return Ok((*number, connection.clone()));
        }
        let connected = timeout(self.options.connect_within, self.connect()).await;
        let connection = connected.map_err(|_| Error::TimedOut)??;
        current.0 += 1;
        current.1 = Some(connection.clone());
        Ok((current.0, connection))
    }

    async fn give_up(&self, number: u64) {
        let mut current = self.current.lock().await;
        if current.0 == number {
            current.1 = None;
        }
    }

    /// Waits for a call, with the connection that it may need first, at most as long as the longer of both may take.
    async fn within<R>(
        &self,
        call: impl AsyncFnOnce(Connection) -> redis::RedisResult<R>,
    ) -> Result<R, Error> {
        let options = &self.options;
        let until = Instant::now() + options.connect_within.max(options.answer_within);
        let waiting = timeout_at(until, self.connection()).await;
        let (number, connection) = waiting.map_err(|_| Error::TimedOut)??;
        let answer = timeout_at(until, call(connection)).await;
        let answer = answer.map_err(|_| Error::TimedOut);
        let answer = answer.and_then(|answer| answer.map_err(Error::from));
        let is_lost = match &answer {
            Ok(_) => false,
            Err(Error::Redis(error)) => {
                error.is_io_error()
                    || error.is_unrecoverable_error()
                    || error.code() == Some("READONLY")
            }
            Err(_) => true,
        };
        if is_lost {
            self.give_up(number).await;
        }
        answer
    }

    pub(crate) async fn ask<R: FromRedisValue>(&self, command: &Cmd) -> Result<R, Error> {
        let ask = async |mut connection: Connection| command.query_async(&mut connection).await;
        self.within(ask).await
    }

    pub(crate) async fn run(&self, call: &Call) -> Result<Vec<String>, Error> {
        let run = async |mut connection: Connection| call.invoke(&mut connection).await;
        self.within(run).await
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::One(connection) => connection.req_packed_command(cmd),
            Self::Cluster(connection) => connection.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::One(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Cluster(connection) => connection.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::One(connection) => connection.get_db(),
            Self::Cluster(connection) => connection.get_db(),
        }
    }
}
