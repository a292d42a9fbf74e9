//! An assigned partition: what is settled of it, and what may start.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::progress::Progress;
use crate::broker::Assignment;
use crate::broker::ownership::{Ownership, OwnershipCell};
use crate::lanes::Admission;
use crate::settle::{Position, Tracker};

/// The lanes of a partition whose lease is not valid wait this long before one of them asks again.
const UNTIL_VALID: Duration = Duration::from_millis(20);

/// A partition that a subscription reads: what is settled of it, and what may still start.
pub(super) struct PartitionState {
    pub(super) number: u32,
    pub(super) epoch: u64,
    pub(super) assignment: Arc<dyn Assignment>,
    /// Whether the broker never gives it to another process: then attempts are not counted.
    is_lasting: bool,
    /// The most bytes that a position of it may take.
    room: Option<usize>,
    /// The bus's side of the ownership; the broker's is the lease of `assignment`.
    ownership: OwnershipCell,
    /// Attempts that run; counted unless it is lasting.
    running: AtomicUsize,
    /// `running` has become 0.
    idle: Notify,
    tracker: Mutex<Tracker>,
    /// What the broker knows. Held during a commit, so that an older one never lands after a newer.
    pub(super) committed: tokio::sync::Mutex<Position>,
    /// Plain messages that were taken and are not finished.
    open: AtomicUsize,
    /// Something was settled: the reader may have room.
    pub(super) settled: Notify,
    /// Something was settled: the committer has work.
    commits: Arc<Notify>,
    progress: Progress,
}

impl PartitionState {
    pub(super) fn new(
        assignment: Arc<dyn Assignment>,
        commits: Arc<Notify>,
        progress: Progress,
    ) -> Self {
        let position = assignment.position().clone();
        Self {
            number: assignment.partition(),
            epoch: assignment.epoch(),
            is_lasting: assignment.lease().is_lasting(),
            room: assignment.room(),
            assignment,
            ownership: OwnershipCell::held(),
            running: AtomicUsize::new(0),
            idle: Notify::new(),
            tracker: Mutex::new(Tracker::resume(position.clone())),
            committed: tokio::sync::Mutex::new(position),
            open: AtomicUsize::new(0),
            settled: Notify::new(),
            commits,
            progress,
        }
    }

    /// A record was read; answers whether it has to be handled. `follows`: whether the one before it has
    /// the same key.
    pub(super) fn deliver(&self, offset: u64, follows: bool) -> bool {
        self.tracker.lock().deliver_after(offset, follows)
    }

    /// The one place where a domain event becomes settled. After [`release`](Self::release) and
    /// [`lose`](Self::lose) it does nothing: the event is the next owner's.
    pub(super) fn settle(&self, offset: u64) {
        if self.has_ended() {
            return;
        }
        let moved = self.tracker.lock().done(offset);
        // Where room is counted in bytes, everything that is done makes some.
        if moved || self.room.is_some() {
            self.settled.notify_one();
        }
        self.commits.notify_one();
    }

    /// The one place where plain messages become settled: when they are taken.
    pub(super) fn take(&self, offsets: impl ExactSizeIterator<Item = u64>) {
        self.open.fetch_add(offsets.len(), Ordering::SeqCst);
        let mut tracker = self.tracker.lock();
        for offset in offsets {
            tracker.done(offset);
        }
    }

    /// A plain message that was taken is over.
    pub(super) fn finished(&self) {
        self.progress.coming();
        if self.open.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.progress.made();
        }
    }

    /// Plain messages that were taken are not ours to handle: they could not be committed.
    pub(super) fn hand_back(&self, messages: usize) {
        self.progress.coming();
        self.open.fetch_sub(messages, Ordering::SeqCst);
        self.progress.made();
    }

    /// How many plain messages were taken and are not over.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    pub(super) fn position(&self) -> Position {
        self.tracker.lock().position()
    }

    /// Whether so much is unsettled that the record at this offset should not be taken yet.
    pub(super) fn is_full(&self, offset: u64, window: usize) -> bool {
        let tracker = self.tracker.lock();
        let fits = |room| tracker.most_bytes_with(offset) <= room;
        tracker.span() >= window || !self.room.is_none_or(fits)
    }

    /// Whether an attempt may begin now.
    pub(super) fn admission(&self) -> Admission {
        if self.ownership.get() != Ownership::Held {
            // Also if it is lasting: its reader may have panicked, and then it is assigned anew.
            Admission::Never
        } else if self.is_lasting || self.assignment.lease().is_valid() {
            Admission::Now
        } else {
            // All lanes of the partition wait together: there may be tens of thousands.
            Admission::Held {
                group: u64::from(self.number),
                every: UNTIL_VALID,
            }
        }
    }

    /// Begins an attempt; `None` once the partition is draining.
    pub(super) fn begin(&self) -> Option<Running<'_>> {
        if !self.is_lasting {
            self.running.fetch_add(1, Ordering::SeqCst);
        }
        // IMPORTANT: `begin` counts the attempt before it reads `ownership`, and `drain` advances `ownership` before it
        // reads the count. All four are sequentially consistent, so either `begin` sees `Draining` and starts nothing,
        // or `drain` sees the attempt and waits for it.
        let running = Running(self);
        (self.ownership.get() == Ownership::Held).then_some(running)
    }

    /// Runs an attempt; `None` if the partition is released or lost before it ends.
    pub(super) async fn while_ours<T>(&self, attempt: impl Future<Output = T>) -> Option<T> {
        if self.is_lasting {
            return Some(attempt.await);
        }
        tokio::select! {
            biased;
            _ = self.ownership.wait_for(Ownership::is_over) => None,
            result = attempt => Some(result),
        }
    }

    /// Lets no further attempt begin; resolves when none runs.
    pub(super) async fn drain(&self) {
        self.ownership.advance(Ownership::Draining);
        self.unwound().await;
    }

    /// Resolves when no attempt runs. One that was cancelled runs until it is dropped, which its worker does when it is
    /// polled next.
    pub(super) async fn unwound(&self) {
        loop {
            let mut idle = std::pin::pin!(self.idle.notified());
            // IMPORTANT: `enable` registers the waiter before the count is read, so that the last attempt wakes it.
            idle.as_mut().enable();
            if self.running.load(Ordering::SeqCst) == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Cancels what still runs, and lets nothing more be settled. What is settled is to be committed next, and then
    /// the assignment to be released.
    pub(super) fn release(&self) {
        self.ownership.advance(Ownership::Released);
    }

    /// Cancels what runs, and lets nothing more be settled: another member may own the partition, and handles again
    /// what was not committed.
    pub(super) fn lose(&self) {
        self.ownership.advance(Ownership::Lost);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ownership.get().is_over()
    }
}

impl fmt::Debug for PartitionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionState")
            .field("number", &self.number)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

/// An attempt that runs.
pub(super) struct Running<'a>(&'a PartitionState);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let partition = self.0;
        if !partition.is_lasting && partition.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            partition.idle.notify_waiters();
        }
    }
}
