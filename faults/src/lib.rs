//! Fault runs: things are broken on purpose, by a plan, and a verdict says whether promises held.
//!
//! `cargo xtask faults NAME [--full] [--seed N]`. A run draws its plan from a seed, so that a
//! failure can be run again: the seed is printed first and last. What happens goes into a journal,
//! on the standard error and into a file, and in the end a [`Verdict`] counts what
//! was kept and what was broken.
//!
//! # Layout
//!
//! - [`frame`]: a run with its seed, its dice and its journal
//! - [`verdict`]: counts, and whether they pass
//! - [`shell`]: commands with a deadline
//! - [`services`]: faults of the servers that tests run on
//! - `life`: one life of a process that is broken
//! - [`delay`]: faults of delayed messages on disk
//! - [`mod@file`]: faults of the bus on disk
//! - [`nats`]: faults of the bus on NATS
//!
//! # Adding a fault run
//!
//! Write a function from a [`Run`] to a verdict, and name it in [`ALL`]. Draw the whole
//! plan from [`Run::dice`] before anything is broken, and announce it; judge
//! messages with [`laneway::testing::history`], whose verdict becomes one of ours:
//!
//! ```
//! use laneway::testing::history::{Attempt, History, Outcome, Rules};
//! use laneway_faults::verdict::Verdict;
//!
//! let history = History::new();
//! history.submitted("order-7", 1);
//! history.acked("order-7", 1);
//! history.started("order-7", 1, Attempt::default()).finish(Outcome::Done);
//! let verdict = Verdict::from(&Rules::exactly_once().check(history.records()));
//! assert!(verdict.passes());
//! ```

pub mod delay;
pub mod file;
pub mod frame;
pub mod nats;
pub mod services;
pub mod shell;
pub mod verdict;

mod life;

use anyhow::Result;

use frame::Run;
use verdict::Verdict;

/// A fault run by name.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What is broken and what must hold, in half a line.
    pub about: &'static str,
    /// Runs it. An error means that it could not be judged, which is not a pass.
    pub run: fn(&mut Run) -> Result<Verdict>,
}

/// Every fault run there is.
pub const ALL: &[Entry] = &[
    Entry {
        name: services::NAME,
        about: services::ABOUT,
        run: services::run,
    },
    Entry {
        name: file::kill::NAME,
        about: file::kill::ABOUT,
        run: file::kill::run,
    },
    Entry {
        name: file::power::NAME,
        about: file::power::ABOUT,
        run: file::power::run,
    },
    Entry {
        name: file::disk::NAME,
        about: file::disk::ABOUT,
        run: file::disk::run,
    },
    Entry {
        name: nats::servers::NAME,
        about: nats::servers::ABOUT,
        run: nats::servers::run,
    },
    Entry {
        name: nats::clients::NAME,
        about: nats::clients::ABOUT,
        run: nats::clients::run,
    },
    Entry {
        name: nats::freeze::NAME,
        about: nats::freeze::ABOUT,
        run: nats::freeze::run,
    },
    Entry {
        name: nats::members::NAME,
        about: nats::members::ABOUT,
        run: nats::members::run,
    },
    Entry {
        name: nats::cluster::NAME,
        about: nats::cluster::ABOUT,
        run: nats::cluster::run,
    },
    Entry {
        name: file::recovery::NAME,
        about: file::recovery::ABOUT,
        run: file::recovery::run,
    },
    Entry {
        name: delay::kill::NAME,
        about: delay::kill::ABOUT,
        run: delay::kill::run,
    },
    Entry {
        name: delay::power::NAME,
        about: delay::power::ABOUT,
        run: delay::power::run,
    },
];
