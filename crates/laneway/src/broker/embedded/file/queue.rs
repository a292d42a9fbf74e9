//! What waits for the writer: bounded by bytes, and handed over all at once.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The bytes of all that waits or is being written.
const ROOM: usize = 32 << 20;

/// What the smallest entry takes, so that entries are bounded, too.
const LEAST: usize = 512;

/// A queue from many tasks to one thread.
pub(super) struct Queue<T> {
    room: Arc<Semaphore>,
    state: Mutex<State<T>>,
    filled: Condvar,
}

struct State<T> {
    waiting: VecDeque<T>,
    closed: bool,
}

/// A place in the queue. Whoever is done with the entry drops it.
#[derive(Debug)]
pub(super) struct Place(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Self {
            room: Arc::new(Semaphore::new(ROOM)),
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                closed: false,
            }),
            filled: Condvar::new(),
        }
    }

    /// Waits for room; `None` if the queue is closed.
    pub(super) async fn place(&self, bytes: usize) -> Option<Place> {
        // An entry larger than all room takes all of it.
        let permits = u32::try_from(bytes.clamp(LEAST, ROOM)).ok()?;
        let permit = self.room.clone().acquire_many_owned(permits).await.ok()?;
        Some(Place(permit))
    }

    /// Adds an entry; gives it back if the queue is closed.
    pub(super) fn push(&self, entry: T) -> Result<(), T> {
        let mut state = self.lock();
        if state.closed {
            return Err(entry);
        }
        state.waiting.push_back(entry);
        drop(state);
        self.filled.notify_one();
        Ok(())
    }

    /// Moves all entries over, waiting for the first one for as long as `patience` says. Answers
    /// whether the queue is still open.
    pub(super) fn take(&self, into: &mut VecDeque<T>, patience: Option<Duration>) -> bool {
        let state = self.lock();
        let empty = |state: &mut State<T>| state.waiting.is_empty() && !state.closed;
        let mut state = match patience {
            None => self
                .filled
                .wait_while(state, empty)
                .unwrap_or_else(PoisonError::into_inner),
            Some(patience) => {
                self.filled
                    .wait_timeout_while(state, patience, empty)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
        };
        into.append(&mut state.waiting);
        !state.closed
    }

    /// Refuses everything from now on; what waits is still handed over.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.room.close();
        self.filled.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn entries_come_in_order_and_a_closed_queue_takes_none() {
        let queue = Queue::new();
        queue.push(1).unwrap();
        queue.push(2).unwrap();
        let mut taken = VecDeque::new();
        assert!(queue.take(&mut taken, None));
        assert!(
            queue.take(&mut taken, Some(Duration::ZERO)),
            "and not stuck"
        );
        queue.push(3).unwrap();
        queue.close();
        assert_eq!(queue.push(4), Err(4));
        assert!(queue.place(1).await.is_none());
        assert!(!queue.take(&mut taken, None));
        assert_eq!(taken, [1, 2, 3]);
    }

    #[tokio::test]
    async fn room_is_bounded_and_comes_back() {
        let queue = Queue::<()>::new();
        let large = queue.place(usize::MAX).await.unwrap();
        assert!(queue.place(1).now_or_never().is_none());
        drop(large);
        let small = || tokio::task::unconstrained(queue.place(1)).now_or_never();
        let held: Vec<_> = std::iter::from_fn(|| small().flatten()).collect();
        assert_eq!(held.len(), ROOM / LEAST);
    }
}
