//! Which deliveries are done: a low-water mark, and the done ones above it.
//!
//! Handlers of one partition finish out of order. What may be told to the broker at any time is a
//! [`Position`]: everything below `low` is done, and of what is above it some ranges are done too.
//! A reader that starts from a position reads from `low` on and skips those ranges, so nothing is
//! lost and nothing that is known to be done runs again.
//!
//! `low` is the lowest unfinished of the offsets that were *delivered*. Offsets that never come
//! (compacted away, or taken by a transaction marker) are not waited for.
//!
//! # Why a position never splits a key
//!
//! A key's events finish in order, and [`Tracker::position`] is one look at one tracker. So if a
//! position says that an event is done, it says so of all earlier ones of its key, and a reader that
//! starts from it never runs an event again after skipping a later one of the same key.

mod position;
#[cfg(test)]
mod tests;
mod tracker;

pub use self::position::{Position, PositionError};
pub use self::tracker::Tracker;
