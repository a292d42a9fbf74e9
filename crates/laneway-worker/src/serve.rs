//! One connection to a center.

use std::sync::Arc;

use laneway_rpc::connection::CenterConnection;
use laneway_rpc::convert::{self, Asked};
use laneway_rpc::proto::{self, ToCenter, to_worker::Frame};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use crate::ledger::PeerId;
use crate::shared::Shared;

/// How many frames are taken from the ledger at a time.
const FRAMES: usize = 256;

/// Serves a connection until it ends. Attempts and outcomes outlive it.
pub(crate) async fn serve(shared: Arc<Shared>, connection: CenterConnection) {
    let CenterConnection {
        peer: center,
        sender,
        mut receiver,
    } = connection;
    // A pair within one process may say nothing about itself.
    let cluster = &shared.options.cluster;
    if !center.cluster.is_empty() && center.cluster != *cluster {
        let (theirs, ours) = (center.cluster, cluster);
        tracing::error!(
            theirs,
            ours,
            center = center.name,
            "a center of another cluster is refused"
        );
        return;
    }
    tracing::info!(center = center.name, "a center has connected");
    let wake = Arc::new(Notify::new());
    let peer = shared.ledger().open_peer(wake.clone());
    let mut is_closed = shared.is_closed.subscribe();
    let reading = async {
        while let Some(frame) = receiver.recv().await {
            if let Some(frame) = frame.frame {
                take(&shared, peer, frame);
            }
        }
        "the center has closed it"
    };
    let why = tokio::select! {
        why = reading => why,
        why = write(&shared, peer, &wake, &sender) => why,
        _ = is_closed.wait_for(|is_closed| *is_closed) => "the worker has stopped",
    };
    shared.ledger().close_peer(peer);
    tracing::info!(
        center = center.name,
        why,
        "the connection to a center has ended"
    );
}

fn take(shared: &Shared, peer: PeerId, frame: Frame) {
    match frame {
        // Said before there was a connection.
        Frame::Hello(_) => {}
        Frame::Hint(hint) => shared.ledger().hint(peer, hint),
        Frame::Unhint(unhint) => shared.ledger().unhint(unhint.shard, unhint.id),
        Frame::Go(go) => shared.take(peer, go),
        Frame::Ask(ask) => match Asked::try_from(ask) {
            Ok(asked) => {
                let counter = shared.counter();
                shared.ledger().ask(peer, asked, counter);
                shared.settled.notify_waiters();
            }
            Err(error) => tracing::warn!(%error, "a question of a center cannot be read"),
        },
        Frame::Logged(logged) => match convert::id("logged.id", &logged.id) {
            Ok(id) => {
                let counter = shared.counter();
                let mut ledger = shared.ledger();
                ledger.logged(logged.shard, id, logged.attempt, counter);
                drop(ledger);
                shared.settled.notify_waiters();
            }
            Err(error) => tracing::warn!(%error, "what a center has logged cannot be read"),
        },
        Frame::Ping(proto::Ping { number }) => {
            let pong = proto::Pong {
                number,
                now_ms: shared.now().as_millis(),
                cpu: shared.load.cpu(),
                memory: shared.load.memory(),
                ..proto::Pong::default()
            };
            shared.ledger().pong(peer, pong);
        }
    }
}

async fn write(
    shared: &Shared,
    peer: PeerId,
    wake: &Notify,
    sender: &mpsc::Sender<ToCenter>,
) -> &'static str {
    loop {
        let Some(frames) = shared.ledger().frames(peer, FRAMES) else {
            return "the center does not read, and sends on";
        };
        if frames.is_empty() {
            tokio::select! {
                () = wake.notified() => {}
                () = sender.closed() => return "the center is gone",
            }
        }
        for frame in frames {
            match timeout(shared.options.stalled_after, sender.send(frame)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return "the center is gone",
                Err(_) => return "the center does not read",
            }
        }
    }
}
