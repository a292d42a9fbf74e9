//! What a store shares with its [`Committer`](super::Committer).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::oneshot;

use super::CommitLimits;
use super::queue::{Queue, QueuePermit};
use crate::disk::Disk;

/// Why nothing can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// The disk is full. It passes.
    Full,
    /// The process has no free descriptor. It passes.
    NoDescriptor,
    /// The system did not write, for another reason. It may pass.
    Unavailable(String),
    /// A sync failed, or the engine did. It stays until the process is started again.
    Failed(String),
    /// The store is closed.
    Closed,
}

impl StoreError {
    /// Whether it goes on by itself when its cause is gone.
    #[must_use]
    pub fn passes(&self) -> bool {
        matches!(self, Self::Full | Self::NoDescriptor | Self::Unavailable(_))
    }
}

/// What requests meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Open,
    /// There is too little room for new data. All else is done.
    ShortOfRoom,
    /// Nothing is done.
    Refusing(StoreError),
}

type Ack = oneshot::Sender<Result<(), StoreError>>;

struct Inner {
    state: State,
    /// Callers that wait for the end. `None` when it was reached.
    closing: Option<Vec<Ack>>,
}

/// See [`Commits::busy`].
pub(super) struct Busy<'a> {
    since: Option<&'a Mutex<Option<Instant>>>,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        if let Some(since) = self.since {
            *since.lock() = None;
        }
    }
}

/// The queue to a [`Committer`](super::Committer), the engine that it writes to, and how it is.
pub struct Commits<E, R> {
    path: PathBuf,
    disk: Box<dyn Disk>,
    limits: CommitLimits,
    pub(super) queue: Queue<R>,
    /// `None` once the store is closed.
    engine: RwLock<Option<E>>,
    inner: Mutex<Inner>,
    /// Since when the thread is at work on the disk.
    busy_since: Mutex<Option<Instant>>,
}

impl<E, R> Commits<E, R> {
    /// Shares an engine that was opened.
    pub fn new(path: PathBuf, disk: Box<dyn Disk>, limits: CommitLimits, engine: E) -> Self {
        Self {
            path,
            disk,
            limits,
            queue: Queue::new(limits.queue),
            engine: RwLock::new(Some(engine)),
            inner: Mutex::new(Inner {
                state: State::Open,
                closing: Some(Vec::new()),
            }),
            busy_since: Mutex::new(None),
        }
    }

    /// Where the store is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The disk below it.
    #[must_use]
    pub fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    pub(super) fn limits(&self) -> CommitLimits {
        self.limits
    }

    /// The engine; `None` once the store is closed. Waits while it is opened again.
    pub fn engine(&self) -> RwLockReadGuard<'_, Option<E>> {
        self.engine.read()
    }

    /// The same, for a change of the engine itself. Waits for a batch that is being committed.
    pub fn engine_mut(&self) -> RwLockWriteGuard<'_, Option<E>> {
        self.engine.write()
    }

    /// How many requests wait for their turn.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Waits for room in the queue.
    ///
    /// # Errors
    /// When the store takes nothing any more.
    pub async fn permit(&self, bytes: usize) -> Result<QueuePermit, StoreError> {
        let permit = self.queue.permit(bytes).await;
        permit.ok_or_else(|| self.refusal())
    }

    /// Hands over a request.
    ///
    /// # Errors
    /// When the store takes nothing any more.
    pub fn push(&self, request: R) -> Result<(), StoreError> {
        self.queue.push(request).map_err(|_| self.refusal())
    }

    /// Why nothing at all is done now.
    #[must_use]
    pub fn failure(&self) -> Option<StoreError> {
        match &self.inner.lock().state {
            State::Open | State::ShortOfRoom => None,
            State::Refusing(failure) => Some(failure.clone()),
        }
    }

    /// Why not all is done now: [`failure`](Self::failure), too little room for new data, or a write or sync that the disk does not
    /// answer ([`CommitLimits::slow_after`]).
    #[must_use]
    pub fn health(&self) -> Option<StoreError> {
        let state = self.state();
        match state {
            State::Open => self.is_slow().map(|time| {
                let seconds = time.as_secs_f64();
                StoreError::Unavailable(format!("the disk has not answered for {seconds:.0} s"))
            }),
            State::ShortOfRoom => Some(StoreError::Full),
            State::Refusing(failure) => Some(failure),
        }
    }

    /// For how long the thread waits for the disk, if that is too long.
    fn is_slow(&self) -> Option<Duration> {
        let since = *self.busy_since.lock();
        let time = since?.elapsed();
        (time >= self.limits.slow_after).then_some(time)
    }

    /// The thread is at work on the disk until this is dropped. Work within other work counts from the beginning of that.
    pub(super) fn busy(&self) -> Busy<'_> {
        let mut since = self.busy_since.lock();
        let is_outer = since.is_none();
        since.get_or_insert_with(Instant::now);
        Busy {
            since: is_outer.then_some(&self.busy_since),
        }
    }

    /// What a request is answered with that got no answer.
    #[must_use]
    pub fn refusal(&self) -> StoreError {
        self.failure().unwrap_or(StoreError::Closed)
    }

    /// Takes no requests any more, finishes those that wait, and closes. All that was written is durable then.
    ///
    /// # Errors
    /// When something could not be written.
    pub async fn close(&self) -> Result<(), StoreError> {
        let answer = {
            let mut inner = self.inner.lock();
            let Some(closing) = &mut inner.closing else {
                return match &inner.state {
                    State::Refusing(failure) if *failure != StoreError::Closed => {
                        Err(failure.clone())
                    }
                    _ => Ok(()),
                };
            };
            let (ack, answer) = oneshot::channel();
            closing.push(ack);
            answer
        };
        self.queue.close();
        answer.await.unwrap_or_else(|_| Err(self.refusal()))
    }

    /// The same, without waiting.
    pub fn close_soon(&self) {
        self.queue.close();
    }

    pub(super) fn state(&self) -> State {
        self.inner.lock().state.clone()
    }

    pub(super) fn set_state(&self, state: State) {
        self.inner.lock().state = state;
    }

    /// Notes that no [`Committer`](super::Committer) is there any more. Returns those who wait for that.
    pub(super) fn end(&self, failure: StoreError) -> Vec<Ack> {
        let mut inner = self.inner.lock();
        if inner.state != State::Refusing(StoreError::Closed) {
            inner.state = State::Refusing(failure);
        }
        inner.closing.take().unwrap_or_default()
    }
}
