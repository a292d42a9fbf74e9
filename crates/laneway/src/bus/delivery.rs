//! A record on its way through the lanes.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::broker::Claim;
use crate::envelope::{Carrier, Envelope};
use crate::lanes::{Admission, Job};
use crate::record::{Delivered, Record};
use crate::settle::{Position, Tracker};

use super::marks;
use super::progress::Progress;

/// One record of a partition, decoded.
#[derive(Clone, Debug)]
pub(super) struct Delivery {
    pub(super) record: Arc<Record>,
    pub(super) offset: u64,
    pub(super) content: Content,
    pub(super) partition: Arc<PartitionState>,
    /// What it takes of the room in the lanes.
    pub(super) bytes: usize,
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    /// A domain event.
    Event(Arc<Envelope>),
    /// A domain record that is none: it goes to the dead letters with this reason.
    Undecodable(String),
    /// Somebody asks to release a parked key. In the log like everything else, so that it is in
    /// order with the events of its key.
    Release,
    /// A plain message.
    Message,
}

impl Content {
    /// What a record of a domain topic is.
    pub(super) fn of(record: &Record) -> Self {
        if marks::is_release(&record.headers) {
            return Self::Release;
        }
        let carrier = Carrier {
            headers: Some(&record.headers),
            key: record.key.as_ref().map(|key| key.as_bytes()),
            subject: None,
        };
        match Envelope::decode_from(record.payload.clone(), &carrier) {
            Ok(envelope) => Self::Event(Arc::new(envelope)),
            Err(error) => Self::Undecodable(error.to_string()),
        }
    }
}

impl Delivery {
    pub(super) fn of_domain(delivered: Delivered, partition: Arc<PartitionState>) -> Self {
        let content = Content::of(&delivered.record);
        Self::new(delivered, content, partition)
    }

    pub(super) fn of_plain(delivered: Delivered, partition: Arc<PartitionState>) -> Self {
        Self::new(delivered, Content::Message, partition)
    }

    fn new(delivered: Delivered, content: Content, partition: Arc<PartitionState>) -> Self {
        let Delivered { offset, record } = delivered;
        Self {
            bytes: record.size(),
            record,
            offset,
            content,
            partition,
        }
    }
}

impl Job for Delivery {
    fn key(&self) -> Option<&str> {
        match &self.content {
            Content::Event(envelope) => Some(envelope.aggregate_id().as_str()),
            Content::Undecodable(_) | Content::Release => self.record.key.as_deref(),
            Content::Message => None,
        }
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A partition that a subscription reads: what is settled of it, and what may still start.
pub(super) struct PartitionState {
    pub(super) number: u32,
    pub(super) epoch: u64,
    pub(super) claim: Arc<dyn Claim>,
    /// Whether nobody else can ever have it: then there is nothing to look out for.
    is_lasting: bool,
    /// The most bytes that a position of it may take.
    room: Option<usize>,
    phase: AtomicU8,
    /// Attempts that run; counted unless it is lasting.
    running: AtomicUsize,
    /// The last attempt has ended, or the phase has changed.
    changed: Notify,
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
    pub(super) fn new(claim: Arc<dyn Claim>, commits: Arc<Notify>, progress: Progress) -> Self {
        let position = claim.position().clone();
        Self {
            number: claim.partition(),
            epoch: claim.epoch(),
            is_lasting: claim.tenure().is_lasting(),
            room: claim.room(),
            claim,
            phase: AtomicU8::new(OURS),
            running: AtomicUsize::new(0),
            changed: Notify::new(),
            tracker: Mutex::new(Tracker::resume(position.clone())),
            committed: tokio::sync::Mutex::new(position),
            open: AtomicUsize::new(0),
            settled: Notify::new(),
            commits,
            progress,
        }
    }

    /// A record was read; answers whether it has to be handled.
    pub(super) fn deliver(&self, offset: u64) -> bool {
        self.tracker().deliver(offset)
    }

    /// The one place where a domain event becomes settled. What is not ours any more does not.
    pub(super) fn settle(&self, offset: u64) {
        if self.has_ended() {
            return;
        }
        let moved = self.tracker().done(offset);
        // Where room is counted in bytes, everything that is done makes some.
        if moved || self.room.is_some() {
            self.settled.notify_one();
        }
        self.commits.notify_one();
    }

    /// The one place where plain messages become settled: when they are taken.
    pub(super) fn take(&self, offsets: impl ExactSizeIterator<Item = u64>) {
        self.open.fetch_add(offsets.len(), Ordering::SeqCst);
        let mut tracker = self.tracker();
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

    /// How many plain messages were taken and are not over.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    pub(super) fn position(&self) -> Position {
        self.tracker().position()
    }

    /// Whether so much is unsettled that the record at this offset should not be taken yet.
    pub(super) fn is_full(&self, offset: u64) -> bool {
        let tracker = self.tracker();
        let fits = |room| tracker.most_bytes_with(offset) <= room;
        tracker.span() >= MOST_UNSETTLED
            || tracker.ranges() >= MOST_RANGES
            || !self.room.is_none_or(fits)
    }

    /// Whether an attempt may begin now.
    pub(super) fn admission(&self) -> Admission {
        if self.is_lasting {
            Admission::Now
        } else if self.phase.load(Ordering::SeqCst) != OURS {
            Admission::Never
        } else if self.claim.tenure().is_sure() {
            Admission::Now
        } else {
            Admission::Later(UNTIL_SURE)
        }
    }

    /// An attempt begins, unless the partition is being let go.
    pub(super) fn begin(&self) -> Option<Running<'_>> {
        if !self.is_lasting {
            self.running.fetch_add(1, Ordering::SeqCst);
        }
        // Counted before looking: whoever lets it go looks at the count afterwards.
        let running = Running(self);
        (self.is_lasting || self.phase.load(Ordering::SeqCst) == OURS).then_some(running)
    }

    /// Runs an attempt for as long as the partition is ours.
    pub(super) async fn while_ours<T>(&self, attempt: impl Future<Output = T>) -> Option<T> {
        if self.is_lasting {
            return Some(attempt.await);
        }
        tokio::select! {
            biased;
            () = self.ended() => None,
            result = attempt => Some(result),
        }
    }

    /// Starts nothing more; resolves when nothing runs.
    pub(super) async fn let_go(&self) {
        self.phase.fetch_max(LETTING_GO, Ordering::SeqCst);
        self.wait_until(|| self.running.load(Ordering::SeqCst) == 0)
            .await;
    }

    /// Cancels what runs; nothing is settled any more.
    pub(super) fn end(&self) {
        self.phase.store(ENDED, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.phase.load(Ordering::SeqCst) == ENDED
    }

    async fn ended(&self) {
        self.wait_until(|| self.has_ended()).await;
    }

    async fn wait_until(&self, is: impl Fn() -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Listens from here on, so that nothing is missed between looking and waiting.
            changed.as_mut().enable();
            if is() {
                return;
            }
            changed.await;
        }
    }

    fn tracker(&self) -> MutexGuard<'_, Tracker> {
        self.tracker.lock().unwrap_or_else(PoisonError::into_inner)
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
            partition.changed.notify_waiters();
        }
    }
}

const OURS: u8 = 0;
/// Nothing new starts; what runs may finish.
const LETTING_GO: u8 = 1;
/// Nothing of it runs, nothing is settled.
const ENDED: u8 = 2;

/// So long a lane waits before it looks again whether the broker has confirmed that we own it.
const UNTIL_SURE: Duration = Duration::from_millis(20);

/// How far a partition may be read ahead of its lowest unsettled record. A key that fails for long
/// stops only its own partition, and only after so many others went past it.
const MOST_UNSETTLED: usize = 100_000;

/// How many done stretches above the low-water mark a position may have.
const MOST_RANGES: usize = 10_000;
