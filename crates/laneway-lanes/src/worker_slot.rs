//! A slot of a pool: what other tasks can see of the worker that has it. The worker that follows one that panicked has the same.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::clock::Clock;
use super::events::Event;
use super::options::RestartLimit;
use super::ready::WorkerId;
use super::restarts::Restarts;
use super::stash::Stash;
use super::stats::{WorkerState, WorkerStats};

#[derive(Debug)]
#[repr(align(128))]
pub(super) struct WorkerSlot {
    pub(super) id: WorkerId,
    /// Ends the sleep of an idle worker.
    pub(super) wake: Notify,
    pub(super) stash: Stash,
    /// Counters with one writer at a time: the worker. A plain store is enough.
    processed: AtomicU64,
    failed: AtomicU64,
    restarts: AtomicU64,
    /// Panics of its workers; touched only when there is one, and by those who ask.
    panics: Mutex<Panics>,
    /// When the running attempt began, on the engine's clock; 0 while none runs.
    since: AtomicU64,
    /// The attempt that was last reported as stuck, by its beginning.
    reported: AtomicU64,
    /// What the running attempt works on. Written before the handler is called: one that blocks its
    /// thread could not tell afterwards.
    subject: Mutex<Subject>,
    /// Chance for sampling; written by the worker only.
    dice: AtomicU64,
}

#[derive(Debug)]
struct Panics {
    restarts: Restarts,
    /// Set by a turn that panicked, for the supervisor.
    by_turn: Option<PanicOfTurn>,
    degraded_until: Option<Instant>,
}

/// A panic in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PanicOfTurn {
    /// How long the lane waits, if it has to.
    pub(super) pause: Option<Duration>,
}

#[derive(Debug, Default)]
struct Subject {
    topic: Option<Arc<str>>,
    has_key: bool,
    key: String,
}

impl WorkerSlot {
    pub(super) fn new(id: WorkerId, limit: RestartLimit) -> Self {
        Self {
            id,
            wake: Notify::new(),
            stash: Stash::new(),
            processed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
            panics: Mutex::new(Panics {
                restarts: Restarts::new(limit),
                by_turn: None,
                degraded_until: None,
            }),
            since: AtomicU64::new(0),
            reported: AtomicU64::new(0),
            subject: Mutex::default(),
            dice: AtomicU64::new(0x9E37_79B9_7F4A_7C15 ^ (id.0 as u64 + 1)),
        }
    }

    pub(super) fn works_on_topic(&self, topic: &Arc<str>) {
        let mut subject = self.subject();
        subject.topic = Some(topic.clone());
    }

    pub(super) fn works_on_key(&self, key: Option<&str>) {
        let mut subject = self.subject();
        subject.has_key = key.is_some();
        subject.key.clear();
        subject.key.push_str(key.unwrap_or_default());
    }

    pub(super) fn begins(&self, now: u64) {
        self.since.store(now, Ordering::Relaxed);
    }

    pub(super) fn rests(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    pub(super) fn count(&self, processed: u64, failed: u64) {
        bump(&self.processed, processed);
        bump(&self.failed, failed);
    }

    pub(super) fn restarted(&self) -> u64 {
        bump(&self.restarts, 1)
    }

    /// The worker panicked. Answers how long the lane that caused it has to wait; for so long the
    /// worker counts as degraded.
    pub(super) fn note_panic(&self, now: Instant) -> Option<Duration> {
        let mut panics = self.panics();
        let pause = panics.restarts.record(now);
        panics.degraded_until = pause.map(|pause| now + pause);
        pause
    }

    /// As [`note_panic`](Self::note_panic), by the turn that panicked, whose lane will wait.
    pub(super) fn note_panic_of_turn(&self, now: Instant) -> Option<Duration> {
        let pause = self.note_panic(now);
        self.panics().by_turn = Some(PanicOfTurn { pause });
        pause
    }

    /// What the turn that panicked noted; `None` if the panic was outside of every turn.
    pub(super) fn take_panic(&self) -> Option<PanicOfTurn> {
        self.panics().by_turn.take()
    }

    fn is_degraded(&self) -> bool {
        let until = self.panics().degraded_until;
        until.is_some_and(|until| Instant::now() < until)
    }

    fn panics(&self) -> std::sync::MutexGuard<'_, Panics> {
        self.panics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True once in `one_in` (a power of two), at random: a fixed step could fall in with a pattern
    /// in the keys.
    pub(super) fn samples(&self, one_in: u64) -> bool {
        let mut x = self.dice.load(Ordering::Relaxed);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.dice.store(x, Ordering::Relaxed);
        x & (one_in - 1) == 0
    }

    pub(super) fn stats(&self, clock: &Clock, topic: Option<Arc<str>>) -> WorkerStats {
        WorkerStats {
            topic,
            worker: self.id.0,
            processed: self.processed.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            restarts: self.restarts.load(Ordering::Relaxed),
            state: if self.is_degraded() {
                WorkerState::Degraded
            } else {
                self.runs_for(clock)
                    .map_or(WorkerState::Idle, WorkerState::Running)
            },
        }
    }

    /// How long the running attempt has been running, if one is.
    pub(super) fn runs_for(&self, clock: &Clock) -> Option<Duration> {
        let since = self.since.load(Ordering::Relaxed);
        (since != 0).then(|| clock.since(since))
    }

    /// The event for an attempt that has been running for longer than `limit`, once for each.
    pub(super) fn newly_stuck(&self, clock: &Clock, limit: Duration) -> Option<Event> {
        let since = self.since.load(Ordering::Relaxed);
        if since == 0
            || clock.since(since) < limit
            || self.reported.load(Ordering::Relaxed) == since
        {
            return None;
        }
        let (topic, key) = self.subject_named()?;
        // It may have ended just now, and what was read may be the next one's.
        if self.since.load(Ordering::Relaxed) != since {
            return None;
        }
        self.reported.store(since, Ordering::Relaxed);
        Some(Event::HandlerStuck {
            topic,
            key,
            worker: self.id.0,
            running_for: clock.since(since),
        })
    }

    /// What the worker runs now, if it runs anything.
    pub(super) fn running(&self) -> Option<(Arc<str>, Option<String>)> {
        if self.since.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.subject_named()
    }

    fn subject_named(&self) -> Option<(Arc<str>, Option<String>)> {
        let subject = self.subject();
        let topic = subject.topic.clone()?;
        Some((topic, subject.has_key.then(|| subject.key.clone())))
    }

    fn subject(&self) -> std::sync::MutexGuard<'_, Subject> {
        self.subject.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bump(counter: &AtomicU64, by: u64) -> u64 {
    let next = counter.load(Ordering::Relaxed) + by;
    counter.store(next, Ordering::Relaxed);
    next
}
