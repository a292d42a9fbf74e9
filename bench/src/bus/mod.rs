//! The bus on the embedded brokers: from publish to settled in memory, and durable publishes on disk.
//!
//! - `memory`: from end to end, and the lanes alone under the same load
//! - `file`: durable publishes; `engine` the floors under them; `jetstream` the peer, on a server that
//!   `cargo xtask services` starts
//! - `resident`: memory while millions of events pass
//! - hot keys: as on every broker, in `served::hot`
//! - `load`, `check`, `place`: what is published, whether all of it came in order, where it is written

pub(crate) mod check;
mod engine;
mod file;
mod jetstream;
pub(crate) mod load;
pub(crate) mod memory;
pub(crate) mod place;
mod resident;

use std::time::Duration;

use crate::frame::{Bench, Scale, Scenario, Unit};
use crate::results::{Figures, Results};
use crate::served::hot;
use crate::services::Service;
use engine::Writing;
use load::By;
use place::{InMemory, OnDisk};
use resident::Kept;

/// Its name on the command line.
pub const NAME: &str = "bus";
/// What it shows.
pub const ABOUT: &str = "the bus from publish to settled, in memory and on disk";
/// What it compares with.
pub const SERVICE: Service = jetstream::SERVICE;

const BATCHES: &str = "bus, batches of 100";
const ONE_BY_ONE: &str = "bus, one by one";
const LANES: &str = "lanes alone";
const MEMORY: &str = "memory:";
const FILE: &str = "file:";
const ENGINE: &str = "bare engine";
const ENGINE_ALONE: &str = "bare engine, one thread";
const JETSTREAM: &str = "JetStream, sync always";
const MANY: &str = "256 publishers";

/// Builds it.
#[must_use]
pub fn bench(scale: Scale) -> Bench {
    let mut scenarios = vec![
        in_memory(scale),
        durable("1 publisher", 1, scale),
        durable("16 publishers", 16, scale),
        durable(MANY, 256, scale),
        latency(scale),
        resident(scale),
    ];
    let hot = hot::contend::<InMemory>(hot::scenarios(), MEMORY);
    scenarios.extend(hot::contend::<OnDisk>(hot, FILE));
    Bench::new(NAME, scale, scenarios).figures(figures)
}

fn in_memory(scale: Scale) -> Scenario {
    let per_key = scale.pick(30, 100);
    let about = format!(
        "memory:, 10,000 keys, {per_key} events of 128 bytes each, {} publishers, until all are handled and settled",
        memory::PUBLISHERS
    );
    Scenario::new("memory", about, Unit::PerSecond)
        .contender(BATCHES, move || memory::bus(per_key, By::Batch(100)))
        .contender(ONE_BY_ONE, move || memory::bus(per_key, By::One))
        .contender(LANES, move || memory::lanes(per_key))
        .reference(LANES)
}

fn durable(name: &'static str, publishers: u32, scale: Scale) -> Scenario {
    let time = scale.pick(Duration::from_millis(500), Duration::from_secs(2));
    let about = format!(
        "{publishers} × one durable publish after the other, for {time:?}; the bare engine by a plain group commit of as many publishers, and by one thread that writes batches of {publishers}"
    );
    Scenario::new(name, about, Unit::PerSecond)
        .contender(FILE, move || file::publish(publishers, time))
        .contender(ENGINE, move || engine::group_commit(publishers, time))
        .contender(ENGINE_ALONE, move || engine::batches(publishers, time))
        .contender(JETSTREAM, move || jetstream::publish(publishers, time))
        .reference(ENGINE)
}

fn latency(scale: Scale) -> Scenario {
    let publishes = scale.pick(200, 1000);
    let about = format!("median of {publishes} publishes by one publisher, one after the other");
    Scenario::new("latency", about, Unit::Seconds)
        .contender(FILE, move || file::latency(publishes))
        .contender("fdatasync", move || {
            engine::fdatasync(publishes, Writing::Growing)
        })
        .contender("fdatasync in place", move || {
            engine::fdatasync(publishes, Writing::InPlace)
        })
        .reference("fdatasync")
}

fn resident(scale: Scale) -> Scenario {
    let per_key = scale.pick(100, 1000);
    let events = per_key / 100;
    let about = format!(
        "{events} million events pass (in memory 100,000 a second; on disk they stay): growth of the resident memory from their first half to their second"
    );
    Scenario::new("resident", about, Unit::Bytes)
        .contender_once(MEMORY, move || resident::growth(per_key, Kept::Memory))
        .contender_once(FILE, move || resident::growth(per_key, Kept::File))
        .deadline(Duration::from_mins(20))
}

fn figures(results: &Results, figures: &mut Figures) {
    let mut ratio = |name, scenario, contender, other| {
        figures.set(name, results.ratio(scenario, contender, other));
    };
    ratio("memory_over_lanes", "memory", BATCHES, LANES);
    ratio("file_publish_over_engine", MANY, FILE, ENGINE);
    ratio("file_publish_over_jetstream_sync", MANY, FILE, JETSTREAM);
    ratio("file_latency_over_fdatasync", "latency", FILE, "fdatasync");
    hot::figures(results, figures, &[MEMORY, FILE]);
    let checked = [
        ("memory", BATCHES),
        ("memory", ONE_BY_ONE),
        ("1 publisher", FILE),
        ("16 publishers", FILE),
        (MANY, FILE),
        ("resident", MEMORY),
        ("resident", FILE),
    ];
    let hot = [MEMORY, FILE].map(hot::checked).concat();
    check::figures(results, figures, &[&checked[..], &hot].concat());
}
