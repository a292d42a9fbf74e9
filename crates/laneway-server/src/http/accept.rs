//! The accept loop: how many connections, how long a request head may take, how it all stops.
//!
//! `axum::serve` has no limit on connections and waits without end for a client that connects and
//! says nothing. So the loop is our own, around hyper's HTTP/1.1 connection.
//!
//! HTTP/2 without TLS is left out on purpose: the code that tells the two apart by their first
//! bytes waits for those bytes without a time-out.

use std::error::Error;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::Connections;
use super::stall::Stall;

/// A request head larger than this is answered with 431.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// How long to wait when a connection cannot be accepted: long enough not to spin when the process
/// is out of file descriptors, short enough to go unnoticed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What one client can ask of the server, and all of them together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Connections that are open at the same time.
    pub(crate) max_connections: u32,
    /// From the first byte that could come to the end of the request head; also between requests.
    pub(crate) header_timeout: Duration,
    /// For as long as a client takes nothing of its answer.
    pub(crate) write_timeout: Duration,
    /// From the signal to stop until connections that are still open are cut.
    pub(crate) shutdown_timeout: Duration,
}

/// How the server stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// No connection is open any more.
    Drained,
    /// The time was up, and this many connections were still busy.
    Cut { connections: usize },
}

/// Serves until `stop` resolves, then finishes what is in flight.
pub(crate) async fn run(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    metrics: Connections,
    stop: impl Future<Output = ()>,
) -> Stopped {
    let slots = Arc::new(Semaphore::new(limits.max_connections as usize));
    let graceful = GracefulShutdown::new();
    let http = builder(limits);
    let mut stop = pin!(stop);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop => break,
            accepted = accept(&listener, &slots) => accepted,
        };
        let (stream, slot) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        let stream = TokioIo::new(Stall::new(stream, limits.write_timeout));
        let connection = graceful.watch(http.serve_connection(stream, service));
        let open = metrics.opened();
        tokio::spawn(async move {
            // Held until the connection is closed, however it ends.
            let _held = (slot, &open);
            if let Err(error) = connection.await {
                if timed_out(&error) {
                    open.timed_out();
                }
                debug!(%error, "connection ended");
            }
        });
    }
    // New clients are refused at once, and can go elsewhere, instead of waiting in the queue.
    drop(listener);
    if timeout(limits.shutdown_timeout, graceful.shutdown())
        .await
        .is_ok()
    {
        return Stopped::Drained;
    }
    let connections = limits.max_connections as usize - slots.available_permits();
    Stopped::Cut { connections }
}

/// Takes a slot first, so that a full server leaves new clients in the kernel's queue.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await;
    let slot = slot.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    // Answers are small and whole: waiting to fill a packet would only delay them.
    stream.set_nodelay(true)?;
    Ok((stream, slot))
}

fn builder(limits: Limits) -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(MAX_HEAD_BYTES);
    http
}

/// Whether the client was too slow: to send its request head, or to take its answer.
fn timed_out(error: &hyper::Error) -> bool {
    let cause = error.source().and_then(|source| source.downcast_ref());
    let stalled = cause.is_some_and(|cause: &io::Error| cause.kind() == io::ErrorKind::TimedOut);
    stalled || error.is_timeout()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::Notify;
    use tokio::task::JoinHandle;

    use super::*;

    const PATIENCE: Duration = Duration::from_mins(1);

    /// A server with one route that answers when it is told to.
    struct Slow {
        address: SocketAddr,
        began: Arc<Notify>,
        release: Arc<Notify>,
        stop: Arc<Notify>,
        server: JoinHandle<Stopped>,
    }

    impl Slow {
        async fn start(limits: Limits) -> Self {
            let [began, release, stop] = [(); 3].map(|()| Arc::new(Notify::new()));
            let handler = {
                let (began, release) = (Arc::clone(&began), Arc::clone(&release));
                move || async move {
                    began.notify_one();
                    release.notified().await;
                    "done"
                }
            };
            let router = Router::new().route("/slow", get(handler));
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
            let address = listener.local_addr().expect("bound");
            let stopping = Arc::clone(&stop);
            let server = tokio::spawn(async move {
                let stop = async move { stopping.notified().await };
                run(listener, router, limits, Connections::default(), stop).await
            });
            Self {
                address,
                began,
                release,
                stop,
                server,
            }
        }

        async fn request(&self) -> TcpStream {
            let mut stream = TcpStream::connect(self.address).await.expect("listening");
            let request = b"GET /slow HTTP/1.1\r\nhost: test\r\n\r\n";
            stream.write_all(request).await.expect("sent");
            stream
        }

        async fn stopped(self) -> Stopped {
            let server = timeout(PATIENCE, self.server).await;
            server.expect("stops in time").expect("no panic")
        }
    }

    fn limits(max_connections: u32, shutdown_timeout: Duration) -> Limits {
        Limits {
            max_connections,
            header_timeout: PATIENCE,
            write_timeout: PATIENCE,
            shutdown_timeout,
        }
    }

    async fn answer(mut stream: TcpStream) -> String {
        let mut answer = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut answer))
            .await
            .expect("answered in time")
            .expect("readable");
        answer
    }

    #[tokio::test]
    async fn a_request_in_flight_is_answered_before_the_server_stops() {
        let server = Slow::start(limits(8, PATIENCE)).await;
        let stream = server.request().await;
        server.began.notified().await;
        server.stop.notify_one();
        server.release.notify_one();
        let answer = answer(stream).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.ends_with("done"), "{answer}");
        assert_eq!(server.stopped().await, Stopped::Drained);
    }

    #[tokio::test]
    async fn a_request_that_takes_too_long_is_cut_and_counted() {
        let server = Slow::start(limits(8, Duration::from_millis(20))).await;
        let _stream = server.request().await;
        server.began.notified().await;
        server.stop.notify_one();
        assert_eq!(server.stopped().await, Stopped::Cut { connections: 1 });
    }

    #[tokio::test]
    async fn a_full_server_takes_the_next_connection_when_one_is_closed() {
        let server = Slow::start(limits(1, PATIENCE)).await;
        let first = server.request().await;
        server.began.notified().await;
        let second = server.request().await;
        // The second request cannot begin while the first one holds the only slot.
        let began = timeout(Duration::from_millis(50), server.began.notified()).await;
        assert!(began.is_err(), "two connections at a time");
        server.release.notify_one();
        server.stop_after_answers(first, second).await;
    }

    impl Slow {
        async fn stop_after_answers(self, first: TcpStream, second: TcpStream) {
            // Read the first answer and hang up: that frees the slot.
            let mut first = first;
            let mut head = [0; 15];
            first.read_exact(&mut head).await.expect("answered");
            assert_eq!(&head, b"HTTP/1.1 200 OK");
            drop(first);
            let began = timeout(PATIENCE, self.began.notified()).await;
            began.expect("the second one gets its turn");
            self.release.notify_one();
            self.stop.notify_one();
            assert!(answer(second).await.ends_with("done"));
            assert_eq!(self.stopped().await, Stopped::Drained);
        }
    }
}
