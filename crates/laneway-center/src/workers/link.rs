//! The stream to one worker: hello, pings, frames in and out.

use std::collections::BTreeMap;
use std::time::Duration;

use laneway_cluster::record::Instance;
use laneway_delay::Timestamp;
use laneway_registry::InstanceId;
use laneway_rpc::connection::WorkerConnection;
use laneway_rpc::proto::{self, to_center, to_worker};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::directory::instance;
use super::in_flight::is_mark;
use super::{Connect, ConnectError, Workers};
use crate::shard::Event;

/// How long opening a stream may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(3);

/// The first and the longest wait before the next try.
const WAITS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Pings that wait for their turn.
const URGENT: usize = 4;

/// Keeps a stream to a worker, until the registry has it no more.
pub(super) async fn keep(
    workers: &Workers,
    id: InstanceId,
    address: &str,
    connector: &dyn Connect,
) {
    let mut wait = WAITS.0;
    let mut lost: Option<Instant> = None;
    loop {
        if workers.is_removed(id) {
            workers.forget(id);
            return;
        }
        // A worker that is to be declared dead is not waited for by a connect that hangs.
        let within = lost.map_or(CONNECT_WITHIN, |lost| {
            let left = workers.settings.grace.saturating_sub(lost.elapsed());
            left.max(Duration::from_millis(100))
        });
        match timeout(within, greet(workers, id, address, connector)).await {
            Ok(Ok(connection)) => {
                (wait, lost) = (WAITS.0, None);
                let is_silent = talk(workers, id, connection).await;
                workers.disconnected(id);
                if is_silent {
                    workers.died(id);
                } else {
                    lost = Some(Instant::now());
                }
            }
            Ok(Err(GreetError::OtherProcess)) => {
                tracing::debug!(address, "another process answers where a worker was");
                workers.disconnected(id);
                workers.died(id);
                lost = None;
            }
            Ok(Err(error)) => {
                tracing::debug!(address, %error, "a worker cannot be reached, retrying");
                workers.disconnected(id);
            }
            Err(_) => workers.disconnected(id),
        }
        let is_off_the_list = workers.is_off_the_list(id);
        let grace = workers.settings.grace;
        if lost.is_some_and(|lost| is_off_the_list || lost.elapsed() >= grace) {
            workers.died(id);
            lost = None;
        }
        if is_off_the_list && workers.forget(id) {
            return;
        }
        sleep(wait).await;
        let most = if lost.is_some() { grace / 4 } else { WAITS.1 };
        wait = (wait * 2).min(most.max(WAITS.0));
    }
}

/// Why there is no stream to the worker of an entry.
#[derive(Debug, thiserror::Error)]
enum GreetError {
    /// A process that was started later has its address. It is listed by an entry of its own.
    #[error("another process answers there")]
    OtherProcess,
    #[error("it belongs to cluster {0:?}")]
    OtherCluster(String),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Hello(#[from] laneway_rpc::convert::Invalid),
}

/// A stream to the worker that an entry of the registry stands for.
///
/// IMPORTANT: to no other process, although a worker that is started again has the address of the one before it. Taken for that one
/// it would keep it alive here for ever, and would be asked for attempts that it cannot answer for.
async fn greet(
    workers: &Workers,
    id: InstanceId,
    address: &str,
    connector: &dyn Connect,
) -> Result<WorkerConnection, GreetError> {
    let connection = connector.connect(address, &workers.own).await?;
    let hello = &connection.peer;
    if hello.cluster != workers.cluster {
        return Err(GreetError::OtherCluster(hello.cluster.clone()));
    }
    let found = laneway_rpc::convert::instance("hello.instance", &hello.instance)?;
    if found != instance(id) {
        return Err(GreetError::OtherProcess);
    }
    Ok(connection)
}

/// Until the stream ends. Whether the worker was silent for too long, or was removed.
async fn talk(workers: &Workers, id: InstanceId, connection: WorkerConnection) -> bool {
    let instance = instance(id);
    let WorkerConnection {
        sender,
        mut receiver,
        ..
    } = connection;
    let (frames, mut outgoing) = mpsc::unbounded_channel::<proto::ToWorker>();
    // Before all that waits: what a worker has still to be sent says nothing about whether it lives.
    let (urgent, mut urgent_outgoing) = mpsc::channel::<proto::ToWorker>(URGENT);
    // In a task of its own: a worker that does not read must not keep its pongs and outcomes from being read.
    let writer = tokio::spawn({
        let sender = sender.clone();
        async move {
            loop {
                let frame = tokio::select! {
                    biased;
                    Some(frame) = urgent_outgoing.recv() => frame,
                    Some(frame) = outgoing.recv() => frame,
                    else => return,
                };
                if sender.send(frame).await.is_err() {
                    return;
                }
            }
        }
    });
    let writer = AbortOnDrop(writer);
    workers.connected(id, instance, frames);
    let mut pings = interval(workers.settings.ping);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sent: BTreeMap<u64, Timestamp> = BTreeMap::new();
    let mut number = 0_u64;
    let mut heard = Instant::now();
    loop {
        tokio::select! {
            frame = receiver.recv() => {
                let Some(frame) = frame else { return false };
                heard = Instant::now();
                match frame.frame {
                    Some(to_center::Frame::Pong(pong)) if is_mark(pong.number) => {
                        workers.arrived(id, pong.number);
                    }
                    Some(to_center::Frame::Pong(pong)) => {
                        if let Some(at) = sent.remove(&pong.number) {
                            workers.ponged(id, at, &pong);
                        }
                        sent = sent.split_off(&pong.number);
                    }
                    Some(to_center::Frame::Credit(credit)) => workers.credited(id, credit.more),
                    Some(frame) => take(workers, instance, frame),
                    None => {}
                }
            }
            _ = pings.tick() => {
                if heard.elapsed() >= workers.settings.silence || workers.is_removed(id) {
                    return true;
                }
                if writer.0.is_finished() {
                    return false;
                }
                number += 1;
                sent.insert(number, workers.clock.now());
                let ping = to_worker::Frame::Ping(proto::Ping { number });
                let ping = proto::ToWorker { frame: Some(ping) };
                // While earlier ones wait, another one would say nothing more.
                let _ = urgent.try_send(ping);
            }
        }
    }
}

fn take(workers: &Workers, worker: Instance, frame: to_center::Frame) {
    match frame {
        to_center::Frame::Outcome(outcome) => {
            let shard = outcome.shard;
            workers.deliver(shard, Event::Outcome { worker, outcome });
        }
        to_center::Frame::Status(status) => {
            let shard = status.shard;
            workers.deliver(shard, Event::Status { worker, status });
        }
        to_center::Frame::Refused(refused) => {
            let shard = refused.shard;
            workers.deliver(shard, Event::Refused { worker, refused });
        }
        to_center::Frame::Hello(_) | to_center::Frame::Credit(_) | to_center::Frame::Pong(_) => {}
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
