//! A worker and its supervisor.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use tokio::time::Instant;

use super::attempt::message_of;
use super::events::Event;
use super::ready::{Next, WorkerId};
use super::worker_pool::{RunEnd, WorkerPool};
use super::worker_slot::WorkerSlot;
use super::yielding::yield_to_others;

/// Keeps a slot of the pool taken: starts a worker, and another one whenever it panicked, until the
/// pool stops.
///
/// A worker that restarts too often is degraded. It is the lane that panicked which waits then, and
/// not the worker: a resting worker would be taken from all topics, and a topic that panics could send
/// every one of them to rest.
pub(super) async fn supervise(pool: Arc<WorkerPool>, id: WorkerId) {
    let slot = &pool.slots[id.0];
    while let Exit::Panicked = work_caught(&pool, slot).await {
        let of_turn = slot.take_panic();
        let pause = of_turn.map_or_else(|| slot.note_panic(Instant::now()), |panic| panic.pause);
        let count = slot.restarted();
        pool.teller.tell(|| Event::WorkerRestarted {
            worker: id.0,
            restarts: count,
            pause,
        });
        let Some(pause) = pause else { continue };
        tracing::warn!(
            worker = id.0,
            restarts = count,
            ?pause,
            "a worker is degraded"
        );
        // A panic outside of every turn: no lane is to blame, and none can wait for it.
        if of_turn.is_none() {
            tokio::time::sleep(pause).await;
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Exit {
    Stopped,
    Panicked,
}

/// Panics of handlers are caught where they are called and end the worker in an orderly way. This
/// catches what is left: a panic in `key`, or in our own code. The lane was given back when the turn
/// was dropped.
async fn work_caught(pool: &WorkerPool, slot: &WorkerSlot) -> Exit {
    let mut work = Box::pin(work(pool, slot));
    std::future::poll_fn(|cx| {
        match std::panic::catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
            Ok(polled) => polled,
            Err(panic) => {
                tracing::error!(
                    worker = slot.id.0,
                    reason = message_of(panic.as_ref()),
                    "a worker panicked outside of an attempt"
                );
                std::task::Poll::Ready(Exit::Panicked)
            }
        }
    })
    .await
}

async fn work(pool: &WorkerPool, slot: &WorkerSlot) -> Exit {
    // What a worker that panicked had taken ahead.
    pool.empty_stash(slot);
    let mut next = pool.next(slot.id, false);
    loop {
        // IMPORTANT: no `await` between `next` and `run`. A task that yields may have to wait for its
        // thread, which a handler may be blocking, and a lane in hand would wait with it.
        match next {
            Next::Sleep => {
                if pool.is_stopping() {
                    return Exit::Stopped;
                }
                slot.wake.notified().await;
                next = pool.next(slot.id, true);
            }
            Next::Run { topic, lane, wake } => {
                pool.wake(wake);
                // A topic is forgotten only after its last turn, so a lane of it was drained.
                let Some(runner) = pool.runner(topic) else {
                    next = pool.next_after(slot, topic);
                    continue;
                };
                match runner.run(slot, lane).await {
                    RunEnd::Next(following) => next = following,
                    RunEnd::Yields => {
                        yield_to_others().await;
                        next = pool.next(slot.id, false);
                    }
                    RunEnd::Panicked => return Exit::Panicked,
                }
            }
        }
    }
}
