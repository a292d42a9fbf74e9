//! What waits for the writer: bounded by bytes, and handed over all at once.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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
    /// The thread sleeps until there are so many, so that it is not woken by each. `None` while it
    /// is awake: telling nobody costs as much as telling somebody.
    wanted: Option<usize>,
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
                wanted: None,
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
        let is_enough = state
            .wanted
            .is_some_and(|wanted| state.waiting.len() >= wanted);
        if is_enough {
            state.wanted = None;
        }
        drop(state);
        if is_enough {
            self.filled.notify_one();
        }
        Ok(())
    }

    /// How many entries wait.
    pub(super) fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Waits for an entry without going to sleep, or until the time is up. Being woken can take as long
    /// as a good part of a sync; others who want the core get it.
    pub(super) fn watch(&self, time: Duration) -> bool {
        let began = Instant::now();
        loop {
            let state = self.lock();
            if !state.waiting.is_empty() || state.closed {
                return true;
            }
            drop(state);
            if began.elapsed() >= time {
                return false;
            }
            std::thread::yield_now();
        }
    }

    /// Waits for so many entries, or until the time is up, or until the queue is closed.
    pub(super) fn wait(&self, entries: usize, time: Option<Duration>) -> usize {
        let state = self.lock();
        let too_few = |state: &mut State<T>| {
            let is_short = state.waiting.len() < entries && !state.closed;
            state.wanted = is_short.then_some(entries);
            is_short
        };
        let mut state = match time {
            None => self
                .filled
                .wait_while(state, too_few)
                .unwrap_or_else(PoisonError::into_inner),
            Some(time) => {
                self.filled
                    .wait_timeout_while(state, time, too_few)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
        };
        state.wanted = None;
        state.waiting.len()
    }

    /// Moves all entries over. Answers whether the queue is still open.
    pub(super) fn take(&self, into: &mut VecDeque<T>) -> bool {
        let mut state = self.lock();
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
        assert_eq!(queue.wait(1, None), 2);
        assert!(queue.take(&mut taken));
        assert!(queue.take(&mut taken), "and not stuck");
        queue.push(3).unwrap();
        queue.close();
        assert_eq!(queue.push(4), Err(4));
        assert!(queue.place(1).await.is_none());
        assert_eq!(queue.wait(9, None), 1, "a closed queue is not waited for");
        assert!(!queue.take(&mut taken));
        assert_eq!(taken, [1, 2, 3]);
    }

    #[test]
    fn a_thread_that_watches_sees_the_next_entry_or_gives_up() {
        let queue = Queue::new();
        assert!(!queue.watch(Duration::ZERO));
        std::thread::scope(|scope| {
            scope.spawn(|| queue.push(1).unwrap());
            assert!(queue.watch(Duration::from_secs(30)));
        });
        let mut taken = VecDeque::new();
        queue.take(&mut taken);
        queue.close();
        assert!(queue.watch(Duration::from_secs(30)), "there is no next one");
    }

    #[test]
    fn the_thread_waits_for_as_many_as_it_wants() {
        let queue = Queue::new();
        assert_eq!(queue.wait(2, Some(Duration::ZERO)), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..3).for_each(|entry| queue.push(entry).unwrap()));
            assert_eq!(queue.wait(3, Some(Duration::from_secs(30))), 3);
        });
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
