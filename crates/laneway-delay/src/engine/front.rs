//! The front of the line, as the engine and the store share it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::horizon::Horizon;
use super::routes::Routes;
use crate::Timestamp;
use crate::clock::Clock;
use crate::store::{Line, Place, Waiting};

/// The near part of the line, and those who are due.
pub(super) struct Front {
    clock: Arc<dyn Clock>,
    state: Mutex<FrontState>,
    /// Rung when the engine should look sooner than it meant to.
    pub(super) bell: Notify,
}

pub(super) struct FrontState {
    pub(super) horizon: Horizon,
    pub(super) routes: Routes,
    /// When the engine means to look next.
    pub(super) sleeps_until: Option<Timestamp>,
    /// The first place of each batch that is on its way.
    flying: HashMap<Flight, Place>,
    next_flight: Flight,
}

/// Names a batch that is on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Flight(u64);

impl Front {
    pub(super) fn new(clock: Arc<dyn Clock>, horizon: Horizon, routes: Routes) -> Self {
        Self {
            clock,
            state: Mutex::new(FrontState {
                horizon,
                routes,
                sleeps_until: None,
                flying: HashMap::new(),
                next_flight: Flight::default(),
            }),
            bell: Notify::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, FrontState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something that the engine should look at.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut FrontState) -> T) -> T {
        let result = change(&mut self.lock());
        self.bell.notify_one();
        result
    }
}

impl FrontState {
    /// A batch sets off. It counts as known until it has landed.
    pub(super) fn set_off(&mut self, batch: &[Waiting]) -> Flight {
        let flight = self.next_flight;
        self.next_flight = Flight(flight.0 + 1);
        if let Some(first) = batch.iter().map(|waiting| waiting.place).min() {
            self.flying.insert(flight, first);
        }
        flight
    }

    pub(super) fn land(&mut self, flight: Flight) {
        self.flying.remove(&flight);
    }
}

impl Line for Front {
    fn admit(&self, waiting: &[Waiting]) {
        let mut state = self.lock();
        for waiting in waiting {
            state.horizon.admit(waiting);
        }
        let first = waiting.iter().map(|waiting| waiting.place.at).min();
        let is_sooner = match (first, state.sleeps_until) {
            (Some(first), Some(until)) => first < until,
            (first, None) => first.is_some(),
            (None, _) => false,
        };
        drop(state);
        if is_sooner {
            self.bell.notify_one();
        }
    }

    fn floor(&self) -> Place {
        let now = Place::at(self.clock.now());
        let state = self.lock();
        let flying = state.flying.values().min().copied();
        let known = [Some(state.horizon.floor()), state.routes.floor(), flying];
        known.into_iter().flatten().fold(now, Place::min)
    }
}
