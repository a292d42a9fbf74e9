//! Which embedded engine should carry the log? `README.md` has the answer; this is the measurement.
//!
//! Each subcommand measures one thing of one engine in a fresh process and prints a line of JSON.
//! `suite` runs them all in rounds, engine after engine, and prints the medians.

mod body;
mod disk;
mod engine;
mod load;
mod phases;
mod suite;

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use engine::Choice;

/// Measures embedded engines as carriers of an event log.
#[derive(Parser)]
enum Command {
    /// Durable appends by group commit: publishers wait for their ack, one writer commits.
    Appends {
        #[command(flatten)]
        place: Place,
        #[arg(long)]
        publishers: usize,
        #[arg(long, default_value_t = 128)]
        size: usize,
        #[arg(long, default_value_t = 4.0)]
        seconds: f64,
    },
    /// Appends records in fsynced batches of 1000.
    Fill {
        #[command(flatten)]
        place: Place,
        #[arg(long)]
        records: u64,
        #[arg(long, default_value_t = 128)]
        size: usize,
        /// Don't close: print, then wait to be killed.
        #[arg(long)]
        hold: bool,
    },
    /// Opens what is there and reads the last record of each stream.
    Open {
        #[command(flatten)]
        place: Place,
        #[arg(long)]
        records: u64,
    },
    /// Reads all from a cursor, in order, a thousand at a time.
    Scan {
        #[command(flatten)]
        place: Place,
    },
    /// Appends small batches and reads each one right after its commit.
    Tail {
        #[command(flatten)]
        place: Place,
    },
    /// Drops the oldest half.
    Retain {
        #[command(flatten)]
        place: Place,
        #[arg(long)]
        records: u64,
    },
    /// Appends, and drops all but the newest on the way.
    Churn {
        #[command(flatten)]
        place: Place,
        #[arg(long)]
        records: u64,
        #[arg(long)]
        keep: u64,
    },
    /// Publishes until it is killed or fails; tells each ack on standard output.
    Write {
        #[command(flatten)]
        place: Place,
        #[arg(long)]
        publishers: usize,
        #[arg(long, default_value_t = 128)]
        size: usize,
        /// After a failed commit close, open again and go on.
        #[arg(long)]
        reopen: bool,
    },
    /// Opens what is there, checks every record and tells how many each stream holds.
    Verify {
        #[command(flatten)]
        place: Place,
        #[arg(long, default_value_t = 128)]
        size: usize,
    },
    /// Runs everything that needs no root, in rounds, and prints the medians.
    Suite {
        #[arg(long)]
        directory: PathBuf,
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        #[arg(long, default_value_t = 1_000_000)]
        records: u64,
        /// Of these only; otherwise all.
        #[arg(long)]
        engine: Vec<Choice>,
        /// Measure only these: appends, fill, tail, churn.
        #[arg(long)]
        only: Vec<String>,
    },
}

/// Which engine, and where.
#[derive(clap::Args)]
pub(crate) struct Place {
    #[arg(long)]
    pub(crate) engine: Choice,
    #[arg(long)]
    pub(crate) directory: PathBuf,
    /// Topic-partitions that records are spread over.
    #[arg(long, default_value_t = 8)]
    pub(crate) streams: u16,
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Appends {
            place,
            publishers,
            size,
            seconds,
        } => load::appends(&place, publishers, size, seconds),
        Command::Fill {
            place,
            records,
            size,
            hold,
        } => phases::fill(&place, records, size, hold),
        Command::Open { place, records } => phases::open(&place, records),
        Command::Scan { place } => phases::scan(&place),
        Command::Tail { place } => phases::tail(&place),
        Command::Retain { place, records } => phases::retain(&place, records),
        Command::Churn {
            place,
            records,
            keep,
        } => phases::churn(&place, records, keep),
        Command::Write {
            place,
            publishers,
            size,
            reopen,
        } => load::write(place, publishers, size, reopen),
        Command::Verify { place, size } => phases::verify(&place, size),
        Command::Suite {
            directory,
            rounds,
            records,
            engine,
            only,
        } => suite::run(&directory, rounds, records, &engine, &only),
    }
}
