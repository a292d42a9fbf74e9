use std::net::SocketAddr;
use std::time::{Duration, Instant};

use laneway_rpc::connect_worker;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::support::{PATIENCE, listener, number, ping, settings, worker};

/// Forwards one connection to `to`, until it is told to freeze: from then on it swallows nothing and sends nothing.
async fn proxy(to: SocketAddr, frozen: watch::Receiver<bool>) -> SocketAddr {
    let listener = listener().await;
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (from, _) = listener.accept().await.unwrap();
        let to = TcpStream::connect(to).await.unwrap();
        let (from_read, from_write) = from.into_split();
        let (to_read, to_write) = to.into_split();
        let there = forward(from_read, to_write, frozen.clone());
        let back = forward(to_read, from_write, frozen);
        tokio::join!(there, back);
    });
    address
}

async fn forward(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut frozen: watch::Receiver<bool>,
) {
    let mut bytes = vec![0; 4096];
    loop {
        let read = tokio::select! {
            read = from.read(&mut bytes) => read.unwrap_or(0),
            () = is_frozen(&mut frozen) => std::future::pending().await,
        };
        if read == 0 || to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

async fn is_frozen(frozen: &mut watch::Receiver<bool>) {
    let _ = frozen.wait_for(|frozen| *frozen).await;
}

#[tokio::test]
async fn both_ends_notice_that_nothing_comes_through() {
    let (server, mut connections) = worker(&settings("worker")).await;
    let (freeze, frozen) = watch::channel(false);
    let address = proxy(server.address(), frozen).await.to_string();
    let mut center = connect_worker(&address, &settings("center")).await.unwrap();
    let mut worker = connections.recv().await.unwrap();
    center.sender.send(ping(1)).await.unwrap();
    assert_eq!(number(worker.receiver.recv().await), 1);

    // For longer than a ping and its answer may take, nothing is sent, and the connection stays.
    let idle = Duration::from_secs(4);
    assert!(timeout(idle, center.receiver.recv()).await.is_err());
    center.sender.send(ping(2)).await.unwrap();
    assert_eq!(number(worker.receiver.recv().await), 2);

    let since = Instant::now();
    freeze.send_replace(true);
    let center_end = timeout(PATIENCE, async {
        assert_eq!(center.receiver.recv().await, None);
        center.sender.closed().await;
        since.elapsed()
    });
    let worker_end = timeout(PATIENCE, async {
        assert_eq!(worker.receiver.recv().await, None);
        worker.sender.closed().await;
        since.elapsed()
    });
    let (center_end, worker_end) = tokio::join!(center_end, worker_end);
    for noticed in [center_end.unwrap(), worker_end.unwrap()] {
        assert!(noticed > Duration::from_secs(1), "{noticed:?}");
        // About three seconds, and what a busy machine takes. The kernel would take many minutes.
        assert!(noticed < PATIENCE / 2, "{noticed:?}");
    }
}
