//! What waits for the [`Committer`](super::Committer): bounded by bytes, and handed over all at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What the smallest entry takes, so that entries are bounded, too.
const LEAST: usize = 512;

/// A queue from many tasks to one thread.
pub(super) struct Queue<T> {
    room: Arc<Semaphore>,
    /// The bytes of all that waits or is being written.
    bytes: usize,
    state: Mutex<State<T>>,
    filled: Condvar,
}

struct State<T> {
    waiting: VecDeque<T>,
    /// The thread sleeps until there are so many, so that it is not woken by each. `None` while it
    /// is awake: a wake-up that wakes no thread costs as much as one that does.
    wanted: Option<usize>,
    closed: bool,
}

/// Room in the queue for one entry, until it is dropped: when the entry is answered.
#[derive(Debug)]
pub struct QueuePermit(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

impl<T> Queue<T> {
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            room: Arc::new(Semaphore::new(bytes)),
            bytes,
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                wanted: None,
                closed: false,
            }),
            filled: Condvar::new(),
        }
    }

    /// Waits for room; `None` if the queue is closed.
    pub(super) async fn permit(&self, bytes: usize) -> Option<QueuePermit> {
        // An entry larger than all room takes all of it.
        let permits = u32::try_from(bytes.clamp(LEAST, self.bytes)).ok()?;
        let permit = self.room.clone().acquire_many_owned(permits).await.ok()?;
        Some(QueuePermit(permit))
    }

    /// Adds an entry; gives it back if the queue is closed.
    pub(super) fn push(&self, entry: T) -> Result<(), T> {
        let mut state = self.state.lock();
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
        self.state.lock().waiting.len()
    }

    /// Waits for an entry without going to sleep, or until the time is up. Being woken can take as long
    /// as a good part of a sync; others who want the core get it.
    pub(super) fn watch(&self, time: Duration) -> bool {
        let began = Instant::now();
        loop {
            let state = self.state.lock();
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
        let mut state = self.state.lock();
        let too_few = |state: &mut State<T>| {
            let is_short = state.waiting.len() < entries && !state.closed;
            state.wanted = is_short.then_some(entries);
            is_short
        };
        match time {
            None => self.filled.wait_while(&mut state, too_few),
            Some(time) => drop(self.filled.wait_while_for(&mut state, too_few, time)),
        }
        state.wanted = None;
        state.waiting.len()
    }

    /// Moves all entries over. Answers whether the queue is still open.
    pub(super) fn take(&self, into: &mut VecDeque<T>) -> bool {
        let mut state = self.state.lock();
        into.append(&mut state.waiting);
        !state.closed
    }

    /// Refuses everything from now on; what waits is still handed over.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.room.close();
        self.filled.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 1 << 20;

    /// A permit for a small entry, if there is one at once.
    fn now(queue: &Queue<()>) -> Option<QueuePermit> {
        let mut permit = Box::pin(tokio::task::unconstrained(queue.permit(1)));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match permit.as_mut().poll(&mut context) {
            std::task::Poll::Ready(permit) => permit,
            std::task::Poll::Pending => None,
        }
    }

    #[tokio::test]
    async fn entries_come_in_order_and_a_closed_queue_takes_none() {
        let queue = Queue::new(ROOM);
        queue.push(1).unwrap();
        queue.push(2).unwrap();
        let mut taken = VecDeque::new();
        assert_eq!(queue.wait(1, None), 2);
        assert!(queue.take(&mut taken));
        assert!(queue.take(&mut taken), "and not stuck");
        queue.push(3).unwrap();
        queue.close();
        assert_eq!(queue.push(4), Err(4));
        assert!(queue.permit(1).await.is_none());
        assert_eq!(queue.wait(9, None), 1, "a closed queue is not waited for");
        assert!(!queue.take(&mut taken));
        assert_eq!(taken, [1, 2, 3]);
    }

    #[test]
    fn a_thread_that_watches_sees_the_next_entry_or_gives_up() {
        let queue = Queue::new(ROOM);
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
        let queue = Queue::new(ROOM);
        assert_eq!(queue.wait(2, Some(Duration::ZERO)), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..3).for_each(|entry| queue.push(entry).unwrap()));
            assert_eq!(queue.wait(3, Some(Duration::from_secs(30))), 3);
        });
    }

    #[tokio::test]
    async fn room_is_bounded_and_comes_back() {
        let queue = Queue::<()>::new(ROOM);
        let large = queue.permit(usize::MAX).await.unwrap();
        assert!(now(&queue).is_none());
        drop(large);
        let held: Vec<_> = std::iter::from_fn(|| now(&queue)).collect();
        assert_eq!(held.len(), ROOM / LEAST);
    }
}
