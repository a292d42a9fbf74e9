//! A record on its way through the lanes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::envelope::{Carrier, Envelope};
use crate::lanes::Job;
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

/// A partition that a subscription reads: what is settled of it.
#[derive(Debug)]
pub(super) struct PartitionState {
    pub(super) number: u32,
    pub(super) epoch: u64,
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
        number: u32,
        epoch: u64,
        position: Position,
        commits: Arc<Notify>,
        progress: Progress,
    ) -> Self {
        Self {
            number,
            epoch,
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

    /// The one place where a domain event becomes settled.
    pub(super) fn settle(&self, offset: u64) {
        let moved = self.tracker().done(offset);
        if moved {
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

    /// Whether so much is unsettled that nothing more should be read.
    pub(super) fn is_full(&self) -> bool {
        let tracker = self.tracker();
        tracker.span() >= MOST_UNSETTLED || tracker.ranges() >= MOST_RANGES
    }

    fn tracker(&self) -> MutexGuard<'_, Tracker> {
        self.tracker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How far a partition may be read ahead of its lowest unsettled record. A key that fails for long
/// stops only its own partition, and only after so many others went past it.
const MOST_UNSETTLED: usize = 100_000;

/// How many done stretches above the low-water mark a position may have.
const MOST_RANGES: usize = 10_000;
