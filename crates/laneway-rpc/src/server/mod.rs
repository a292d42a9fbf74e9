//! The side that listens.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `io` | connections that are closed with the server, and when they are silent |
//! | `services` | what is answered: streams of centers, and calls |

mod io;
mod services;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;

use self::io::Io;
use crate::connection::CenterConnection;
use crate::error::of_transport;
use crate::proto::center_server::CenterServer;
use crate::proto::worker_server::WorkerServer;
use crate::settings::{PING_INTERVAL, PING_TIMEOUT};
use crate::{CenterCalls, Error, Settings};

/// The longest that a call may take, also if its caller names no deadline.
const LONGEST_CALL: Duration = Duration::from_mins(1);

/// Calls that run at once over one connection; the next ones wait. A call may wait for a verdict, so there are many.
const MAX_CALLS: u32 = 4096;

/// After a failed accept: no descriptor may be left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// What a listener serves.
#[derive(Clone, Default)]
pub struct Services {
    /// Takes the streams that centers open to this worker, after the handshake. A stream for which there is no room within 2 s is
    /// refused.
    pub workers: Option<mpsc::Sender<CenterConnection>>,
    /// Answers calls.
    pub center: Option<Arc<dyn CenterCalls>>,
}

impl std::fmt::Debug for Services {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Services")
            .field("workers", &self.workers.is_some())
            .field("center", &self.center.is_some())
            .finish()
    }
}

/// How far a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Serving,
    /// Nothing new is taken; streams end behind what was sent.
    Draining,
    /// Connections are cut.
    Closed,
}

/// A listener that serves. When it is dropped, all its connections are cut.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    phase: watch::Sender<Phase>,
    task: JoinHandle<()>,
}

/// Serves on a listener.
///
/// # Errors
/// [`Error::Invalid`], if the certificates cannot be used, or the listener has no address.
///
/// # Panics
/// Outside of a runtime.
pub fn serve(
    listener: TcpListener,
    settings: &Settings,
    services: Services,
) -> Result<Server, Error> {
    let address = listener.local_addr();
    let address = address.map_err(|error| Error::invalid("the listener", &error))?;
    let mut builder = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .max_concurrent_streams(MAX_CALLS)
        .timeout(LONGEST_CALL);
    if let Some(tls) = &settings.tls {
        let configured = builder.tls_config(tls.server());
        builder = configured
            .map_err(|error| Error::invalid("the certificates", &of_transport(&error)))?;
    }
    let (phase, phases) = watch::channel(Phase::Serving);
    let workers = services.workers.map(|accepted| {
        let workers = services::Workers::new(settings.clone(), accepted, phases.clone());
        WorkerServer::new(workers)
            .max_decoding_message_size(settings.max_message)
            .max_encoding_message_size(settings.max_message)
    });
    let center = services.center.map(|center| {
        CenterServer::new(services::Calls::new(settings.hello.clone(), center))
            .max_decoding_message_size(settings.max_message)
            .max_encoding_message_size(settings.max_message)
    });
    let router = builder
        .add_optional_service(workers)
        .add_optional_service(center);
    let (accepted, connections) = mpsc::channel(1);
    tokio::spawn(accept(listener, accepted, phases.clone()));
    let draining = until(phases, Phase::Draining);
    let task = tokio::spawn(async move {
        let connections = ReceiverStream::new(connections);
        let served = router.serve_with_incoming_shutdown(connections, draining);
        if let Err(error) = served.await {
            tracing::error!(%error, "serving failed");
        }
    });
    Ok(Server {
        address,
        phase,
        task,
    })
}

impl Server {
    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes nothing new, lets calls finish and frames that were sent go out, for `grace` at most; then cuts all connections.
    pub async fn close(mut self, grace: Duration) {
        self.phase.send_replace(Phase::Draining);
        let is_done = tokio::time::timeout(grace, &mut self.task).await.is_ok();
        if !is_done {
            tracing::warn!(?grace, "connections did not end in time and are cut");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.phase.send_replace(Phase::Closed);
        self.task.abort();
    }
}

/// Accepts connections until the server drains.
async fn accept(
    listener: TcpListener,
    accepted: mpsc::Sender<Result<Io, std::io::Error>>,
    phases: watch::Receiver<Phase>,
) {
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let _ = stream.set_nodelay(true);
                    let closed = until(phases.clone(), Phase::Closed);
                    if accepted.send(Ok(Io::new(stream, closed))).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection failed, retrying");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        () = until(phases.clone(), Phase::Draining) => {}
    }
}

/// Resolves when the server is that far, or gone.
pub(crate) async fn until(mut phases: watch::Receiver<Phase>, phase: Phase) {
    let _ = phases.wait_for(|now| *now >= phase).await;
}
