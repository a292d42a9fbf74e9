//! Faults of delayed messages on disk: their process is killed, their power is cut.
//!
//! The messages live in a process of its own (`child`), which writes down what it is told and what it
//! delivers (`story`), on a disk that survives. Whoever breaks it judges the story of all its lives.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `child` | what the process does |
//! | `story` | what it writes down, and what must hold |
//! | [`kill`], [`power`] | the fault runs |
//! | [`life`] | everything in random order, in this process |

pub mod child;
pub mod kill;
pub mod life;
pub mod power;

mod story;
