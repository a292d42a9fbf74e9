//! What `src/sync.rs` is to the engine, with shuttle in charge of who runs when.
//!
//! The core files bring their unit tests along, and these run outside of an exploration. There the
//! scheduler has no say, and the locks and atomics are plain ones.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

pub(crate) use std::sync::atomic::Ordering;

fn is_exploring() -> bool {
    shuttle::current::try_get_current_task().is_some()
}

/// Somebody else may run here.
fn scheduling_point() {
    if is_exploring() {
        shuttle::thread::yield_now();
    }
}

#[derive(Debug)]
pub(crate) struct Mutex<T> {
    turn: shuttle::sync::Mutex<()>,
    inner: std::sync::Mutex<T>,
}

/// The fields are dropped in this order: the lock is free before the next one is let in.
pub(crate) struct MutexGuard<'a, T> {
    inner: std::sync::MutexGuard<'a, T>,
    _turn: Option<shuttle::sync::MutexGuard<'a, ()>>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            turn: shuttle::sync::Mutex::new(()),
            inner: std::sync::Mutex::new(value),
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    let turn = is_exploring().then(|| mutex.turn.lock().unwrap_or_else(PoisonError::into_inner));
    MutexGuard {
        inner: mutex.inner.lock().unwrap_or_else(PoisonError::into_inner),
        _turn: turn,
    }
}

#[derive(Debug)]
pub(crate) struct AtomicU64(std::sync::atomic::AtomicU64);

impl AtomicU64 {
    pub(crate) fn new(value: u64) -> Self {
        Self(std::sync::atomic::AtomicU64::new(value))
    }

    pub(crate) fn load(&self, order: Ordering) -> u64 {
        scheduling_point();
        self.0.load(order)
    }

    pub(crate) fn compare_exchange_weak(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        scheduling_point();
        self.0.compare_exchange_weak(current, new, success, failure)
    }

    pub(crate) fn store(&self, value: u64, order: Ordering) {
        scheduling_point();
        self.0.store(value, order);
    }

    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        scheduling_point();
        self.0.fetch_add(value, order)
    }
}
