//! The connection: made once, and again whenever it is gone.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::jetstream::context::{ContextBuilder, CreateStreamError, CreateStreamErrorKind};
use async_nats::jetstream::{Context, ErrorCode};
use async_nats::{Client, ConnectOptions, Event, rustls};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::error::NatsError;
use super::options::{Identity, NatsConnection, NatsOptions};
use crate::broker::BrokerError;
use crate::broker::log_limiter::LogLimiter;

/// How long the server may take for one request.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Between two tries to connect; doubled from a few milliseconds up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A connection whose other end is gone is noticed after two of these.
const PING_EVERY: Duration = Duration::from_secs(5);

/// How many messages may be on their way to the server without an answer.
const UNANSWERED: usize = 16 * 1024;

/// A cluster does not answer during a leader election, which takes up to nine seconds and more. [`call`] repeats a
/// request after this long, so many times.
const UNHEARD_AFTER: Duration = Duration::from_secs(1);
const UNHEARD: usize = 15;

/// How long a new stream may have to wait for servers that it can be on.
const PLACED_WITHIN: Duration = Duration::from_secs(10);
const PLACE_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Makes a request that can be repeated without harm.
pub(super) async fn call<T, F: Future<Output = T>>(mut request: impl FnMut() -> F) -> T {
    for _ in 0..UNHEARD {
        if let Ok(answer) = timeout(UNHEARD_AFTER, request()).await {
            return answer;
        }
    }
    request().await
}

/// Makes a stream, which a cluster that has just started or misses a server has no place for: its
/// servers are given a while to find each other.
pub(super) async fn retry_placement<T, E, F>(mut make: impl FnMut() -> F) -> Result<T, E>
where
    E: std::error::Error + 'static,
    F: Future<Output = Result<T, E>>,
{
    let deadline = Instant::now() + PLACED_WITHIN;
    loop {
        // A large future, and rarely made.
        match Box::pin(make()).await {
            Err(error) if has_no_room_yet(&error) && Instant::now() < deadline => {
                tracing::debug!(%error, "placing stream failed, retrying");
                sleep(PLACE_AGAIN_AFTER).await;
            }
            result => return result,
        }
    }
}

fn has_no_room_yet(error: &(dyn std::error::Error + 'static)) -> bool {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut streams = causes.filter_map(|cause| cause.downcast_ref::<CreateStreamError>());
    streams.any(|error| match error.kind() {
        CreateStreamErrorKind::JetStream(cause) => matches!(
            cause.error_code(),
            ErrorCode::CLUSTER_NO_PEERS
                | ErrorCode::CLUSTER_NOT_AVAILABLE
                | ErrorCode::CLUSTER_NOT_LEADER
        ),
        _ => false,
    })
}

/// Counts the connections after the first. A task that waits for something on one learns when it is gone.
#[derive(Clone, Debug)]
pub(super) struct Link(watch::Receiver<u64>);

impl Link {
    /// The number of the connection.
    pub(super) fn number(&self) -> u64 {
        *self.0.borrow()
    }

    /// Whether the client is gone, so that there will be no other connection.
    pub(super) fn is_over(&self) -> bool {
        self.0.has_changed().is_err()
    }

    /// Waits until this connection is not the last one any more, or the client is gone.
    pub(super) async fn changed_since(&mut self, number: u64) {
        // An error means the latter.
        let _ = self.0.wait_for(|now| *now > number).await;
    }

    /// Waits for a connection after this one.
    pub(super) async fn renewed_since(&mut self, number: u64) {
        if self.0.wait_for(|now| *now > number).await.is_err() {
            // The client is gone, and there will be no other.
            std::future::pending::<()>().await;
        }
    }
}

/// A connection, and what speaks over it.
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) context: Context,
    pub(super) link: Link,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Publishes, commits, heartbeats and questions. Users are told how it fares.
    Everything,
    /// Reading what any client may have published: a message whose headers the client cannot parse ends the
    /// connection that it comes on, and nothing else may go down with it.
    Reading,
}

impl Purpose {
    fn name(self) -> &'static str {
        match self {
            Self::Everything => "laneway",
            Self::Reading => "laneway readers",
        }
    }
}

/// Connects to the first server that answers.
pub(super) async fn connect(
    options: &NatsOptions,
    purpose: Purpose,
) -> Result<Connection, NatsError> {
    // rustls needs a crypto provider; the application may have installed one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (connections, link) = watch::channel(0);
    let connections = Arc::new(connections);
    // IMPORTANT: the client tells of the first connection, too, and does so after `connect` has returned. What began in
    // between would take it for another connection, and begin anew.
    let is_first = Arc::new(AtomicBool::new(true));
    let is_told = purpose == Purpose::Everything;
    let callback = options.broker.on_connection.clone().filter(|_| is_told);
    let servers = options.server_list();
    let limiter = LogLimiter::default();
    let mut connecting = identified(options).await?;
    connecting = connecting
        .name(purpose.name())
        .ping_interval(PING_EVERY)
        .request_timeout(Some(ANSWER_WITHIN))
        .reconnect_delay_callback(pause)
        .require_tls(options.tls.required)
        .event_callback(move |event| {
            let (connections, callback) = (connections.clone(), callback.clone());
            let is_first = is_first.clone();
            let (servers, limiter) = (servers.clone(), limiter.clone());
            async move {
                if let Some(event) = told(&event, &servers, purpose, &limiter) {
                    if event == NatsConnection::Connected
                        && !is_first.swap(false, Ordering::Relaxed)
                    {
                        connections.send_modify(|number| *number += 1);
                    }
                    if let Some(callback) = callback {
                        callback(event);
                    }
                }
            }
        });
    if let Some(file) = &options.tls.ca {
        connecting = connecting.add_root_certificates(file.clone());
    }
    if let Some((certificate, key)) = &options.tls.certificate {
        connecting = connecting.add_client_certificate(certificate.clone(), key.clone());
    }
    let client = connecting
        .connect(&options.servers[..])
        .await
        .map_err(|error| NatsError::new("connecting", error))?;
    let context = context(&client, options);
    Ok(Connection {
        client,
        context,
        link: Link(link),
    })
}

impl NatsOptions {
    /// Connects a client as a bus does, for what else a program keeps on the same servers. It reconnects by itself.
    ///
    /// # Errors
    /// When no server answers, or none lets this user in.
    pub async fn client(&self) -> Result<Client, BrokerError> {
        let connected = connect(self, Purpose::Everything).await;
        let connection = connected.map_err(|error| error.at(&self.server_list()))?;
        Ok(connection.client)
    }
}

fn context(client: &Client, options: &NatsOptions) -> Context {
    let builder = ContextBuilder::new()
        .timeout(ANSWER_WITHIN)
        .max_ack_inflight(UNANSWERED);
    match (&options.broker.domain, &options.broker.prefix) {
        (Some(domain), _) => builder.domain(domain).build(client.clone()),
        (None, Some(prefix)) => builder.api_prefix(prefix).build(client.clone()),
        (None, None) => builder.build(client.clone()),
    }
}

async fn identified(options: &NatsOptions) -> Result<ConnectOptions, NatsError> {
    let connecting = ConnectOptions::new();
    Ok(match &options.broker.identity {
        Identity::Anonymous => connecting,
        Identity::User(user) => {
            connecting.user_and_password(user.name.clone(), user.password.clone())
        }
        Identity::Token(token) => connecting.token(token.clone()),
        Identity::Nkey(file) => connecting.nkey(seed(file).await?),
        Identity::Credentials(file) => {
            let read = connecting.credentials_file(file).await;
            read.map_err(|error| NatsError::new("reading creds", named(file, &error)))?
        }
    })
}

/// The seed in a file, which may have comments.
async fn seed(file: &Path) -> Result<String, NatsError> {
    let path = file.to_owned();
    let reading = tokio::task::spawn_blocking(move || std::fs::read_to_string(path));
    let text = match reading.await {
        Ok(Ok(text)) => text,
        Ok(Err(error)) => return Err(NatsError::new("reading nkey", named(file, &error))),
        Err(error) => return Err(NatsError::new("reading nkey", error)),
    };
    let mut lines = text.lines().map(str::trim);
    lines
        .find(|line| line.starts_with('S'))
        .map(str::to_owned)
        .ok_or_else(|| NatsError::new("reading nkey", named(file, &"there is no seed in it")))
}

fn named(file: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{}: {error}", file.display())
}

/// How long to wait before the next try.
fn pause(attempts: usize) -> Duration {
    let doublings = u32::try_from(attempts)
        .unwrap_or(u32::MAX)
        .saturating_sub(1);
    let pause = Duration::from_millis(10).saturating_mul(2_u32.saturating_pow(doublings));
    let pause = if attempts == 0 { Duration::ZERO } else { pause };
    pause.min(LONGEST_PAUSE)
}

/// Tells the log what happened; answers what users are told.
fn told(
    event: &Event,
    servers: &str,
    purpose: Purpose,
    limiter: &LogLimiter,
) -> Option<NatsConnection> {
    if purpose == Purpose::Reading {
        // If the server is gone, the other connection says so.
        tracing::debug!(servers, %event, "NATS reader connection event");
        return match event {
            Event::Connected => Some(NatsConnection::Connected),
            _ => None,
        };
    }
    match event {
        Event::Connected => {
            tracing::info!(servers, "connected to NATS");
            Some(NatsConnection::Connected)
        }
        Event::Disconnected => {
            tracing::warn!(servers, "disconnected from NATS, reconnecting");
            Some(NatsConnection::Disconnected)
        }
        Event::ServerError(_) | Event::ClientError(_) | Event::SlowConsumer(_) => {
            // Each try to connect that fails is one.
            if let Some(suppressed) = limiter.allow("connection") {
                tracing::warn!(servers, %event, suppressed, "NATS connection error");
            }
            Some(NatsConnection::Error(event.to_string()))
        }
        Event::LameDuckMode | Event::Draining | Event::Closed => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_second() {
        let pauses: Vec<_> = (0..5).map(|n| pause(n).as_millis()).collect();
        assert_eq!(pauses, [0, 10, 20, 40, 80]);
        assert_eq!(pause(50), LONGEST_PAUSE);
        assert_eq!(pause(usize::MAX), LONGEST_PAUSE);
    }
}
