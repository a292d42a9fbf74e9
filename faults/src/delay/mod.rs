//! Faults of delayed messages on disk: their process is killed, their power is cut.
//!
//! The messages live in a process of its own (`child`), which writes down what it is told and what it
//! delivers (`story`), on a disk that survives. Whoever breaks it judges the story of all its lives.
//!
//! # Layout
//!
//! - `child`: what the process does
//! - `story`: what it writes down, and what must hold
//! - [`kill`], [`power`]: the fault runs

pub mod child;
pub mod kill;
pub mod power;

mod story;
