//! Connections to receivers: to addresses that have passed the guard and nowhere else, within bounds of time and memory.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower_service::Service;

use super::guard::Checked;
use super::keep_alive;

/// How large the head of an answer may be. Every call may hold as much, for as long as its receiver takes to send it.
const MAX_HEAD: u32 = 32 << 10;

/// Sends requests, and follows no redirects and no proxies: both would lead around the guard. What it sends again is what
/// was certainly not sent, on a connection that the receiver had closed.
pub(super) type Http = legacy::Client<Connector, Full<Bytes>>;

/// Makes connections. All of it, name and TLS included, within a limit.
#[derive(Clone)]
pub(super) struct Connector {
    inner: HttpsConnector<HttpConnector<Checked>>,
    limit: Duration,
}

impl Connector {
    pub(super) fn new(resolver: Checked, tls: rustls::ClientConfig, limit: Duration) -> Self {
        const PROBE: Duration = Duration::from_secs(15);
        let mut tcp = HttpConnector::new_with_resolver(resolver);
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(PROBE));
        tcp.set_keepalive_interval(Some(PROBE));
        tcp.set_keepalive_retries(Some(3));
        #[cfg(target_os = "linux")]
        tcp.set_tcp_user_timeout(Some(2 * PROBE));
        let inner = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(tcp);
        Self { inner, limit }
    }

    /// A client that keeps at most so many idle connections for each host.
    pub(super) fn client(self, most_idle: usize) -> Http {
        legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(keep_alive::IDLE)
            .pool_max_idle_per_host(most_idle)
            .http1_max_buf_size(MAX_HEAD as usize)
            .http2_max_header_list_size(MAX_HEAD)
            .build(self)
    }
}

impl Service<Uri> for Connector {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let limit = self.limit;
        let connecting = self.inner.call(to);
        Box::pin(async move {
            let connected = timeout(limit, connecting).await;
            connected.unwrap_or_else(|_| {
                let late = format!("no connection within {limit:?}");
                Err(io::Error::new(io::ErrorKind::TimedOut, late).into())
            })
        })
    }
}
