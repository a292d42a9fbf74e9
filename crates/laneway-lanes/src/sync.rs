//! The locks and atomics of the scheduling core.
//!
//! `capacity`, `ready`, `shards` and `stash` take theirs from here and from nowhere else, so that
//! `tests/lanes_interleavings.rs` can compile the same files against shuttle's and explore their
//! interleavings. That is why they are those of the standard library, and not `parking_lot`'s as in the other crates:
//! shuttle has the same interface.

pub(super) use std::sync::atomic::{AtomicU64, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard};

/// Locks, and goes on if another holder panicked: nothing of a user's ever runs under these locks,
/// and every change below them is complete before the next call that could panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
