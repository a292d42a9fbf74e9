//! Benchmarks, side by side with peers: `cargo xtask bench NAME`.
//!
//! A [`Bench`] is a list of [`Scenario`](frame::Scenario)s, and a scenario is a list of contenders that do the same
//! work: ours, a peer, and a floor that shows what the machine can do. Contenders take turns in one
//! run, over several rounds, so that a busy moment of the machine hits all of them alike. What is
//! reported is the median of a contender's rounds, their spread, and the ratio to the scenario's
//! reference.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`frame`] | scenarios, contenders, rounds |
//! | [`results`] | what was measured, and medians and ratios of it |
//! | [`report`], [`chart`] | the table and the picture |
//! | [`machine`] | where it was measured |
//! | [`workload`] | keys and events that contenders are fed with |
//! | [`contenders`] | floors and peers that several benchmarks share |
//! | [`channels`] | the floor |
//! | [`lanes`] | the lanes engine and its peers |
//! | [`bus`] | the bus, in memory and on disk |
//! | [`nats`], [`kafka`] | the bus on NATS and on Kafka |
//! | `served` | what is measured on both |
//! | [`delay`] | delayed messages |
//! | [`cluster`] | delayed messages on many machines |
//! | [`services`] | real servers to be measured against |
//!
//! # Adding a benchmark
//!
//! Write a function that builds it for a [`Scale`], and name it in [`ALL`]:
//!
//! ```
//! use std::time::{Duration, Instant};
//! use laneway_bench::frame::{Bench, Sample, Scale, Scenario, Unit};
//!
//! fn sleeping(scale: Scale) -> Bench {
//!     let scenario = Scenario::new("nap", "one nap of 1 ms", Unit::Seconds)
//!         .contender("tokio", || async {
//!             let started = Instant::now();
//!             tokio::time::sleep(Duration::from_millis(1)).await;
//!             Ok(Sample::time(started.elapsed()))
//!         });
//!     Bench::new("sleeping", scale, vec![scenario])
//!         .figures(|results, figures| figures.set("nap_s", results.median("nap", "tokio")))
//! }
//! # let results = sleeping(Scale::Quick).run(&runs::Progress::hidden());
//! # assert!(results.median("nap", "tokio").unwrap() >= 0.001);
//! ```

pub mod bus;
pub mod channels;
pub mod chart;
pub mod cluster;
pub mod contenders;
pub mod delay;
pub mod frame;
pub mod kafka;
pub mod lanes;
pub mod machine;
pub mod nats;
pub mod report;
pub mod results;
mod served;
pub mod services;
pub mod workload;

use frame::{Bench, Scale};
use services::Service;

/// A benchmark by name, and how to build it.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it shows, in half a line.
    pub about: &'static str,
    /// Builds it.
    pub build: fn(Scale) -> Bench,
    /// A server that it compares with.
    pub service: Option<Service>,
}

impl runs::Entry for Entry {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }
}

/// Every benchmark there is.
pub const ALL: &[Entry] = &[
    Entry {
        name: channels::NAME,
        about: channels::ABOUT,
        build: channels::bench,
        service: None,
    },
    Entry {
        name: lanes::NAME,
        about: lanes::ABOUT,
        build: lanes::bench,
        service: None,
    },
    Entry {
        name: bus::NAME,
        about: bus::ABOUT,
        build: bus::bench,
        service: Some(bus::SERVICE),
    },
    Entry {
        name: nats::NAME,
        about: nats::ABOUT,
        build: nats::bench,
        service: Some(nats::SERVICE),
    },
    Entry {
        name: kafka::NAME,
        about: kafka::ABOUT,
        build: kafka::bench,
        service: Some(kafka::SERVICE),
    },
    Entry {
        name: delay::NAME,
        about: delay::ABOUT,
        build: delay::bench,
        service: Some(delay::SERVICE),
    },
    Entry {
        name: cluster::NAME,
        about: cluster::ABOUT,
        build: cluster::bench,
        // It starts servers of its own.
        service: None,
    },
];
