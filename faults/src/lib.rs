//! Fault runs: things are broken on purpose, by a plan, and a verdict says whether promises held.
//!
//! `cargo xtask faults NAME [--full] [--seed N]`. A run draws its plan from a seed, so that a
//! failure can be run again: the seed is printed first and last. What happens goes into a journal,
//! on the standard error and into a file, and in the end a [`Verdict`] counts what
//! was kept and what was broken.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`frame`] | a run with its seed, its dice and its journal |
//! | [`verdict`] | counts, and whether they pass |
//! | [`shell`] | commands with a deadline |
//! | `life` | one life of a process that is broken |
//! | `clock` | its wall clock |
//! | [`lives`] | simulations that live through everything |
//! | [`cluster`] | faults of delayed messages on many machines |
//! | [`delay`] | faults of delayed messages on disk |
//! | [`mod@file`] | faults of the bus on disk |
//! | [`group`] | faults of a bus that processes share |
//! | [`nats`], [`kafka`], `zookeeper` | what it runs on |
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

pub mod cluster;
pub mod delay;
pub mod file;
pub mod frame;
pub mod group;
pub mod kafka;
pub mod lives;
pub mod nats;
pub mod shell;
pub mod verdict;

mod clock;
mod life;
mod zookeeper;

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

impl runs::Entry for Entry {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }
}

/// Every fault run there is.
pub const ALL: &[Entry] = &[
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
        name: lives::NAME,
        about: lives::ABOUT,
        run: lives::run,
    },
    Entry {
        name: "nats-server",
        about: "kill -9 of a NATS server: nothing lost, order kept, on again soon",
        run: group::servers::run::<nats::Nats>,
    },
    Entry {
        name: "nats-client",
        about: "kill -9 of publishers and members on NATS: nothing lost, order kept",
        run: group::clients::run::<nats::Nats>,
    },
    Entry {
        name: "nats-freeze",
        about: "a frozen member on NATS: taken over, and starts nothing when it wakes up",
        run: group::freeze::run::<nats::Nats>,
    },
    Entry {
        name: "nats-members",
        about: "members on NATS that come, go, fail and panic: nothing lost, order kept",
        run: group::members::run::<nats::Nats>,
    },
    Entry {
        name: "nats-cluster",
        about: "kill -9 of one of three NATS servers: nothing lost, order kept",
        run: group::cluster::run::<nats::Nats>,
    },
    Entry {
        name: "kafka-server",
        about: "kill -9 of a Kafka server: nothing lost, order kept, on again soon",
        run: group::servers::run::<kafka::Kafka>,
    },
    Entry {
        name: "kafka-client",
        about: "kill -9 of publishers and members on Kafka: nothing lost, order kept",
        run: group::clients::run::<kafka::Kafka>,
    },
    Entry {
        name: "kafka-freeze",
        about: "a frozen member on Kafka: taken over, and starts nothing when it wakes up",
        run: group::freeze::run::<kafka::Kafka>,
    },
    Entry {
        name: "kafka-freeze-deciding",
        about: "the same where brokers decide who has what (KIP-848)",
        run: group::freeze::run::<kafka::Deciding>,
    },
    Entry {
        name: "kafka-members",
        about: "members on Kafka that come, go, fail and panic: nothing lost, order kept",
        run: group::members::run::<kafka::Kafka>,
    },
    Entry {
        name: "kafka-cluster",
        about: "kill -9 of one of three Kafka servers: nothing lost, order kept",
        run: group::cluster::run::<kafka::Kafka>,
    },
    Entry {
        name: "kafka-poison",
        about: "an event on Kafka that never ends or succeeds: the others pass it, nothing runs twice",
        run: group::poison::run::<kafka::Kafka>,
    },
    Entry {
        name: cluster::NAME,
        about: cluster::ABOUT,
        run: cluster::run,
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
