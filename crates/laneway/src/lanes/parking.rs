//! Where failed lanes wait: a heap of times and lanes, and one task that looks after it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::ready::TopicId;
use super::shards::LaneId;

/// An emptied heap keeps room for so many lanes: when a database is away, everything is parked.
const KEEP_LANES: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Parking {
    heap: Mutex<BinaryHeap<Reverse<(Instant, TopicId, LaneId)>>>,
    /// Something is due earlier than the attendant believes, or the crew stops.
    earlier: Notify,
    stopped: AtomicBool,
}

impl Parking {
    pub(super) fn park(&self, until: Instant, topic: TopicId, lane: LaneId) {
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

    /// Forgets the lanes of a topic that is gone.
    pub(super) fn forget(&self, topic: TopicId) {
        self.heap().retain(|Reverse((_, other, _))| *other != topic);
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.earlier.notify_one();
    }

    /// Calls `release` for each lane that is due, until the crew stops.
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
            match next {
                Some(due) => tokio::select! {
                    () = sleep_until(due) => {}
                    () = self.earlier.notified() => {}
                },
                None => self.earlier.notified().await,
            }
        }
    }

    fn heap(&self) -> std::sync::MutexGuard<'_, BinaryHeap<Reverse<(Instant, TopicId, LaneId)>>> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
