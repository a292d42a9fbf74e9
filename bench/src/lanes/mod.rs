//! The lanes engine next to a bare floor and to its peers, in the scenarios that tell them apart.
//!
//! | | keys and events | handler | what it shows |
//! |---|---|---|---|
//! | S1 | 100 keys in turn | waits 1 ms (and 5 ms) | parallel across keys, in order within |
//! | S2 | the same, a burst per key | waits 1 ms | a burst of one key holds up nobody |
//! | S3 | 10,000 keys, zipf | waits 1 ms | the hottest key never waits for a worker |
//! | S4 | one key | nothing | the cost of order alone |
//! | S5 | 10,000 keys | nothing | the cost of a job |
//! | S6 | 100 keys, and one that takes 100 ms | waits 1 ms | a slow key delays only itself |
//! | memory | 1 million keys at once | waits | what a live key costs, and whether it is given back |
//!
//! Everything is on in the engine: bounds, supervision, figures. Every run of it is checked for
//! order, key by key.

mod memory;
mod ours;
mod ruststream;
mod workloads;

use std::sync::Arc;
use std::time::Duration;

use laneway::lanes::LaneBy;

use crate::contenders::{bound, floor, ractor};
use crate::frame::{Bench, Scale, Scenario, Unit};
use crate::results::{Figures, Results};
use crate::workload::{Work, Workload};

/// Its name on the command line.
pub const NAME: &str = "lanes";
/// What it shows.
pub const ABOUT: &str = "the lanes engine next to bare channels, ractor and ruststream";

/// Workers of ours and of ruststream.
const WORKERS: usize = 128;
/// Channels of the floor, actors of ractor, hashed lanes of ours.
const LANES: usize = 256;

const BOUND: &str = "bound";
const KEY: &str = "laneway by key";
const HASH: &str = "laneway by hash";
const FLOOR: &str = "256 channels";
const RACTOR: &str = "256 ractor actors";
const RUSTSTREAM: &str = "ruststream by key";

const MILLISECOND: Work = Work::Wait(Duration::from_millis(1));

/// Builds it.
#[must_use]
pub fn bench(scale: Scale) -> Bench {
    let per_key = scale.pick(100, 500);
    let interleaved = Arc::new(Workload::interleaved(100, per_key));
    let short = Arc::new(Workload::interleaved(100, scale.pick(20, 100)));
    let bursts = Arc::new(workloads::bursts(100, per_key));
    let zipf = Arc::new(workloads::zipf(10_000, scale.pick(10_000, 50_000)));
    Bench::new(
        NAME,
        scale,
        vec![
            waiting("S1", &interleaved, MILLISECOND),
            waiting("S1 5 ms", &short, Work::Wait(Duration::from_millis(5))),
            waiting("S2", &bursts, MILLISECOND),
            waiting("S3", &zipf, MILLISECOND).rounds(scale.pick(1, 3)),
            one_key(scale),
            many_keys(scale),
            slow_key(scale),
            memory::scenario(scale),
        ],
    )
    .figures(figures)
}

/// Handlers that wait, against the time that the busiest key takes alone.
fn waiting(name: &'static str, workload: &Arc<Workload>, work: Work) -> Scenario {
    let busiest = workloads::busiest(workload);
    let about = format!(
        "{} keys, {} events, the busiest key has {busiest}, {work:?}",
        workload.keys.len(),
        workload.events.len()
    );
    let (a, b, c, d) = (
        Arc::clone(workload),
        Arc::clone(workload),
        Arc::clone(workload),
        Arc::clone(workload),
    );
    Scenario::new(name, about, Unit::Seconds)
        .contender(BOUND, move || bound::one_key(busiest, work))
        .contender(KEY, move || {
            ours::run(Arc::clone(&a), LaneBy::Key, move |_| work)
        })
        .contender(FLOOR, move || floor::run(Arc::clone(&b), LANES, work))
        .contender(RACTOR, move || ractor::run(Arc::clone(&c), LANES, work))
        .contender_once(RUSTSTREAM, move || ruststream::run(Arc::clone(&d), work))
        .reference(BOUND)
}

fn one_key(scale: Scale) -> Scenario {
    let events = scale.pick(200_000, 1_000_000);
    let workload = Arc::new(Workload::interleaved(1, events));
    let (a, b, c) = (
        Arc::clone(&workload),
        Arc::clone(&workload),
        Arc::clone(&workload),
    );
    let few = Arc::new(Workload::interleaved(1, events / 10));
    Scenario::new(
        "S4",
        format!("1 key, {events} events, nothing to do"),
        Unit::PerSecond,
    )
    .contender(KEY, move || {
        ours::run(Arc::clone(&a), LaneBy::Key, |_| Work::Nothing)
    })
    .contender(FLOOR, move || {
        floor::run(Arc::clone(&b), LANES, Work::Nothing)
    })
    .contender(RACTOR, move || {
        ractor::run(Arc::clone(&c), LANES, Work::Nothing)
    })
    .contender_once(RUSTSTREAM, move || {
        ruststream::run(Arc::clone(&few), Work::Nothing)
    })
    .reference(RACTOR)
}

fn many_keys(scale: Scale) -> Scenario {
    let per_key = scale.pick(30, 200);
    let workload = Arc::new(Workload::interleaved(10_000, per_key));
    let (a, b, c, d) = (
        Arc::clone(&workload),
        Arc::clone(&workload),
        Arc::clone(&workload),
        Arc::clone(&workload),
    );
    let few = Arc::new(Workload::interleaved(10_000, per_key / 10));
    Scenario::new(
        "S5",
        format!("10,000 keys, {per_key} events each, nothing to do"),
        Unit::PerSecond,
    )
    .contender(KEY, move || {
        ours::run(Arc::clone(&a), LaneBy::Key, |_| Work::Nothing)
    })
    .contender(HASH, move || {
        ours::run(Arc::clone(&b), LaneBy::hash(256), |_| Work::Nothing)
    })
    .contender(FLOOR, move || {
        floor::run(Arc::clone(&c), LANES, Work::Nothing)
    })
    .contender(RACTOR, move || {
        ractor::run(Arc::clone(&d), LANES, Work::Nothing)
    })
    .contender_once(RUSTSTREAM, move || {
        ruststream::run(Arc::clone(&few), Work::Nothing)
    })
    .reference(RACTOR)
}

/// The time until all keys but the slow one are done.
fn slow_key(scale: Scale) -> Scenario {
    let workload = Arc::new(Workload::interleaved(101, 100));
    let work = |key: u32| match key {
        0 => Work::Wait(Duration::from_millis(100)),
        _ => MILLISECOND,
    };
    let a = Arc::clone(&workload);
    Scenario::new(
        "S6",
        "101 keys, 100 events each; one key takes 100 ms an event: time until the others are done",
        Unit::Seconds,
    )
    .contender(BOUND, move || bound::one_key(100, MILLISECOND))
    .contender(KEY, move || ours::others(Arc::clone(&a), LaneBy::Key, work))
    .contender_once(HASH, move || {
        ours::others(Arc::clone(&workload), LaneBy::hash(256), work)
    })
    .reference(BOUND)
    .rounds(scale.pick(1, 5))
}

fn figures(results: &Results, figures: &mut Figures) {
    for (figure, scenario) in [
        ("s1_over_bound", "S1"),
        ("s1_5ms_over_bound", "S1 5 ms"),
        ("s2_over_bound", "S2"),
        ("s3_over_bound", "S3"),
    ] {
        figures.set(figure, results.ratio(scenario, KEY, BOUND));
    }
    figures.set("s6_others_s", results.median("S6", KEY));
    figures.set("s5_key_over_ractor", results.ratio("S5", KEY, RACTOR));
    figures.set("s5_hash_over_ractor", results.ratio("S5", HASH, RACTOR));
    figures.set("s5_hash_over_floor", results.ratio("S5", HASH, FLOOR));
    figures.set("s4_key_over_ractor", results.ratio("S4", KEY, RACTOR));
    figures.set("s4_key_per_s", results.median("S4", KEY));
    figures.set("s5_key_per_s", results.median("S5", KEY));
    figures.set("s5_hash_per_s", results.median("S5", HASH));
    figures.set(
        "mem_per_live_key_bytes",
        results.median(memory::NAME, memory::LIVE),
    );
    figures.set_count(
        "mem_per_key_afterwards_bytes",
        results.count(memory::NAME, memory::LIVE, memory::AFTERWARDS),
    );
    let violations = [
        ("S1", KEY),
        ("S1 5 ms", KEY),
        ("S2", KEY),
        ("S3", KEY),
        ("S4", KEY),
        ("S5", KEY),
        ("S5", HASH),
        ("S6", KEY),
        ("S6", HASH),
    ]
    .iter()
    .map(|(scenario, contender)| results.count(scenario, contender, "order_violations"))
    .sum();
    figures.set_count("order_violations", violations);
}
