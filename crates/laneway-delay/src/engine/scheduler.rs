//! The near part of the due index, as the engine and the store share it.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::horizon::Horizon;
use super::postponed::Postponed;
use super::routes::{Routes, Turn};
use crate::Timestamp;
use crate::clock::Clock;
use crate::store::{DueIndex, DueKey, Scheduled};

/// The near part of the due index, and the messages that are due.
pub(super) struct Scheduler {
    clock: Arc<dyn Clock>,
    state: Mutex<SchedulerState>,
    /// Rung when the engine should look sooner than it meant to.
    pub(super) wake: Notify,
}

pub(super) struct SchedulerState {
    pub(super) horizon: Horizon,
    /// The messages that are due. Each of them counts as known until it has [finished](Routes::finish).
    pub(super) routes: Routes,
    /// Who is due, and is not to be tried now. They count as known.
    pub(super) postponed: Postponed,
    /// What was decided to do and is not begun yet.
    pub(super) turns: Vec<Turn>,
    /// When the engine means to look next.
    pub(super) sleeps_until: Option<Timestamp>,
}

impl Scheduler {
    pub(super) fn new(
        clock: Arc<dyn Clock>,
        horizon: Horizon,
        routes: Routes,
        postponed: Postponed,
    ) -> Self {
        Self {
            clock,
            state: Mutex::new(SchedulerState {
                horizon,
                routes,
                postponed,
                turns: Vec::new(),
                sleeps_until: None,
            }),
            wake: Notify::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SchedulerState> {
        self.state.lock()
    }

    /// Changes something that the engine should look at.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut SchedulerState) -> T) -> T {
        let result = change(&mut self.lock());
        self.wake.notify_one();
        result
    }

    /// Messages are settled: they are not in their places any more, and their payloads are not held.
    pub(super) fn finish(&self, settled: &[Scheduled]) {
        let mut state = self.lock();
        let mut is_roomier = false;
        for waiting in settled {
            state.routes.finish(waiting.due_key);
            is_roomier |= state.routes.give_back(waiting);
        }
        drop(state);
        if is_roomier {
            self.wake.notify_one();
        }
    }
}

impl DueIndex for Scheduler {
    fn admit(&self, waiting: &[Scheduled]) {
        let mut state = self.lock();
        for waiting in waiting {
            state.horizon.admit(waiting);
        }
        let first = waiting.iter().map(|waiting| waiting.due_key.at).min();
        let is_sooner = match (first, state.sleeps_until) {
            (Some(first), Some(until)) => first < until,
            (first, None) => first.is_some(),
            (None, _) => false,
        };
        drop(state);
        if is_sooner {
            self.wake.notify_one();
        }
    }

    fn floor(&self) -> DueKey {
        let now = DueKey::at(self.clock.now());
        let state = self.lock();
        let known = [Some(state.horizon.floor()), state.routes.floor()];
        known.into_iter().flatten().fold(now, DueKey::min)
    }
}
