//! The connection: made once, and again whenever it is gone.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::{ContextBuilder, CreateStreamError, CreateStreamErrorKind};
use async_nats::jetstream::{Context, ErrorCode};
use async_nats::{Client, ConnectOptions, Event, rustls};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::error::Trouble;
use super::options::{Identity, NatsConnection, NatsOptions};

/// How long the server may take for one request.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Between two tries to connect; doubled from a few milliseconds up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A connection whose other end is gone is noticed after two of these.
const PING_EVERY: Duration = Duration::from_secs(5);

/// How many messages may be on their way to the server without an answer.
const UNANSWERED: usize = 16 * 1024;

/// In a cluster nobody answers while it is being decided who should, which takes up to nine seconds and
/// more if they disagree. What is asked then is asked again after this long, so many times.
const UNHEARD_AFTER: Duration = Duration::from_secs(1);
const UNHEARD: usize = 15;

/// How long a new stream may have to wait for servers that it can be on.
const PLACED_WITHIN: Duration = Duration::from_secs(10);
const PLACE_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Asks something that can be asked again without harm.
pub(super) async fn ask<T, F: Future<Output = T>>(mut question: impl FnMut() -> F) -> T {
    for _ in 0..UNHEARD {
        if let Ok(answer) = timeout(UNHEARD_AFTER, question()).await {
            return answer;
        }
    }
    question().await
}

/// Makes a stream, which a cluster that has just started or misses a server has no place for: its
/// servers are given a while to find each other.
pub(super) async fn place<T, E, F>(mut make: impl FnMut() -> F) -> Result<T, E>
where
    E: std::error::Error + 'static,
    F: Future<Output = Result<T, E>>,
{
    let deadline = Instant::now() + PLACED_WITHIN;
    loop {
        // A large future, and rarely made.
        match Box::pin(make()).await {
            Err(error) if has_no_place_yet(&error) && Instant::now() < deadline => {
                tracing::debug!(%error, "making a stream is tried again");
                sleep(PLACE_AGAIN_AFTER).await;
            }
            result => return result,
        }
    }
}

fn has_no_place_yet(error: &(dyn std::error::Error + 'static)) -> bool {
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

/// Counts the connections that there were. Whoever waits for something on one learns when it is gone.
#[derive(Clone, Debug)]
pub(super) struct Link(watch::Receiver<u64>);

impl Link {
    /// The number of the connection.
    pub(super) fn number(&self) -> u64 {
        *self.0.borrow()
    }

    /// Waits for a connection after this one.
    pub(super) async fn renewed_since(&mut self, number: u64) {
        if self.0.wait_for(|now| *now > number).await.is_err() {
            // The client is gone, and there will be no other.
            std::future::pending::<()>().await;
        }
    }
}

/// Connects to the first server that answers.
pub(super) async fn connect(options: &NatsOptions) -> Result<(Client, Context, Link), Trouble> {
    // TLS needs to know who does the mathematics. Somebody may have said so already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (connections, link) = watch::channel(0);
    let connections = Arc::new(connections);
    let callback = options.on_connection.clone();
    let servers = options.server_list();
    let mut connecting = identified(options).await?;
    connecting = connecting
        .name("laneway")
        .ping_interval(PING_EVERY)
        .request_timeout(Some(ANSWER_WITHIN))
        .reconnect_delay_callback(pause)
        .require_tls(options.tls)
        .event_callback(move |event| {
            let (connections, callback) = (connections.clone(), callback.clone());
            let servers = servers.clone();
            async move {
                if let Some(event) = told(&event, &servers) {
                    if event == NatsConnection::Connected {
                        connections.send_modify(|number| *number += 1);
                    }
                    if let Some(callback) = callback {
                        callback(event);
                    }
                }
            }
        });
    if let Some(file) = &options.ca {
        connecting = connecting.add_root_certificates(file.clone());
    }
    if let Some((certificate, key)) = &options.certificate {
        connecting = connecting.add_client_certificate(certificate.clone(), key.clone());
    }
    let client = connecting
        .connect(&options.servers[..])
        .await
        .map_err(|error| Trouble::new("connecting", error))?;
    let context = context(&client, options);
    Ok((client, context, Link(link)))
}

fn context(client: &Client, options: &NatsOptions) -> Context {
    let builder = ContextBuilder::new()
        .timeout(ANSWER_WITHIN)
        .max_ack_inflight(UNANSWERED);
    match (&options.domain, &options.prefix) {
        (Some(domain), _) => builder.domain(domain).build(client.clone()),
        (None, Some(prefix)) => builder.api_prefix(prefix).build(client.clone()),
        (None, None) => builder.build(client.clone()),
    }
}

async fn identified(options: &NatsOptions) -> Result<ConnectOptions, Trouble> {
    let connecting = ConnectOptions::new();
    Ok(match &options.identity {
        Identity::Nobody => connecting,
        Identity::User { name, password } => {
            connecting.user_and_password(name.clone(), password.clone())
        }
        Identity::Token(token) => connecting.token(token.clone()),
        Identity::Nkey(file) => connecting.nkey(seed(file).await?),
        Identity::Credentials(file) => {
            let read = connecting.credentials_file(file).await;
            read.map_err(|error| Trouble::new("reading creds", named(file, &error)))?
        }
    })
}

/// The seed in a file, which may have comments.
async fn seed(file: &Path) -> Result<String, Trouble> {
    let path = file.to_owned();
    let reading = tokio::task::spawn_blocking(move || std::fs::read_to_string(path));
    let text = match reading.await {
        Ok(Ok(text)) => text,
        Ok(Err(error)) => return Err(Trouble::new("reading nkey", named(file, &error))),
        Err(error) => return Err(Trouble::new("reading nkey", error)),
    };
    let mut lines = text.lines().map(str::trim);
    lines
        .find(|line| line.starts_with('S'))
        .map(str::to_owned)
        .ok_or_else(|| Trouble::new("reading nkey", named(file, &"there is no seed in it")))
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
fn told(event: &Event, servers: &str) -> Option<NatsConnection> {
    match event {
        Event::Connected => {
            tracing::info!(servers, "connected to NATS");
            Some(NatsConnection::Connected)
        }
        Event::Disconnected => {
            tracing::warn!(servers, "the connection to NATS is gone; it is tried again");
            Some(NatsConnection::Disconnected)
        }
        Event::ServerError(_) | Event::ClientError(_) | Event::SlowConsumer(_) => {
            tracing::warn!(servers, %event, "trouble with NATS");
            Some(NatsConnection::Trouble(event.to_string()))
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
