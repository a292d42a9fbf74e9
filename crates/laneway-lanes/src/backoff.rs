//! Where lanes wait: a heap of times and lanes, those that are held together, and one task that looks
//! after both.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::held::Held;
use super::ready::TopicId;
use super::shards::LaneId;

/// An emptied heap keeps room for so many lanes: when a database is away, everything backs off.
const KEEP_LANES: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Backoff {
    heap: Mutex<BinaryHeap<Reverse<(Instant, TopicId, LaneId)>>>,
    held: Mutex<Held>,
    /// Whether a lane is asking for its group: read before every attempt, so it costs one load.
    asking: AtomicBool,
    /// Something is due earlier than the attendant believes, or the pool stops.
    earlier: Notify,
    stopped: AtomicBool,
}

impl Backoff {
    pub(super) fn back_off(&self, until: Instant, topic: TopicId, lane: LaneId) {
        let mut heap = self.heap();
        let is_first = heap
            .peek()
            .is_none_or(|Reverse((first, ..))| until < *first);
        heap.push(Reverse((until, topic, lane)));
        drop(heap);
        if is_first {
            self.earlier.notify_one();
        }
    }

    /// The lane waits with its group until one of them is admitted.
    pub(super) fn hold(&self, topic: TopicId, group: u64, lane: LaneId, every: Duration) {
        let mut held = self.held();
        let before = held.next();
        held.hold(topic, group, lane, (Instant::now(), every));
        let is_first = before.is_none_or(|before| held.next().is_some_and(|next| next < before));
        self.asking.store(held.is_asking(), Ordering::SeqCst);
        drop(held);
        if is_first {
            self.earlier.notify_one();
        }
    }

    /// A lane was admitted, or never will be. If it was asking for its group, answers the others.
    pub(super) fn answered(&self, topic: TopicId, lane: LaneId) -> VecDeque<LaneId> {
        if !self.asking.load(Ordering::SeqCst) {
            return VecDeque::new();
        }
        let mut held = self.held();
        let others = held.answered(topic, lane);
        self.asking.store(held.is_asking(), Ordering::SeqCst);
        others
    }

    /// Forgets the lanes of a topic that is gone.
    pub(super) fn forget(&self, topic: TopicId) {
        self.held().forget(topic);
        self.heap().retain(|Reverse((_, other, _))| *other != topic);
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.earlier.notify_one();
    }

    /// Calls `release` for each lane that is due, until the pool stops.
    pub(super) async fn attend(&self, release: impl Fn(TopicId, LaneId)) {
        while !self.stopped.load(Ordering::Relaxed) {
            let next = loop {
                let mut heap = self.heap();
                match heap.peek() {
                    Some(Reverse((due, ..))) if *due <= Instant::now() => {
                        let Some(Reverse((_, topic, lane))) = heap.pop() else {
                            continue;
                        };
                        if heap.is_empty() && heap.capacity() > KEEP_LANES {
                            *heap = BinaryHeap::new();
                        }
                        drop(heap);
                        release(topic, lane);
                    }
                    Some(Reverse((due, ..))) => break Some(*due),
                    None => break None,
                }
            };
            for (topic, lane) in self.due_to_ask() {
                release(topic, lane);
            }
            let next = next.into_iter().chain(self.held().next()).min();
            match next {
                Some(due) => tokio::select! {
                    () = sleep_until(due) => {}
                    () = self.earlier.notified() => {}
                },
                None => self.earlier.notified().await,
            }
        }
    }

    fn due_to_ask(&self) -> Vec<(TopicId, LaneId)> {
        let mut held = self.held();
        let due = held.due(Instant::now());
        if !due.is_empty() {
            // IMPORTANT: before they are released, or a quick one would not find that it was asking.
            self.asking.store(true, Ordering::SeqCst);
        }
        due
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heap(&self) -> MutexGuard<'_, BinaryHeap<Reverse<(Instant, TopicId, LaneId)>>> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
