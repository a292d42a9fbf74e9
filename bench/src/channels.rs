//! What a bare loop over tokio channels carries: the floor under every engine that keeps keys in
//! order, next to the actor crate `ractor`.

use std::sync::Arc;
use std::time::Duration;

use crate::contenders::{bound, floor, ractor};
use crate::frame::{Bench, Scale, Scenario, Unit};
use crate::results::{Figures, Results};
use crate::workload::{Work, Workload};

/// Its name on the command line.
pub const NAME: &str = "channels";
/// What it shows.
pub const ABOUT: &str = "what bare tokio channels carry, and what fixed lanes cost";

const LANES: usize = 256;

/// Builds it.
#[must_use]
pub fn bench(scale: Scale) -> Bench {
    Bench::new(NAME, scale, vec![no_op(scale), waiting(scale)]).figures(figures)
}

/// Handlers that do nothing: the cost of getting an event to its handler.
fn no_op(scale: Scale) -> Scenario {
    let per_key = scale.pick(30, 200);
    let workload = Arc::new(Workload::interleaved(10_000, per_key));
    let about = format!("10,000 keys, {per_key} events each, handler does nothing");
    let floor = |lanes: usize| {
        let workload = Arc::clone(&workload);
        move || floor::run(Arc::clone(&workload), lanes, Work::Nothing)
    };
    let peer = Arc::clone(&workload);
    Scenario::new("no-op", about, Unit::PerSecond)
        .contender("256 channels", floor(LANES))
        .contender("1 channel", floor(1))
        .contender("256 ractor actors", move || {
            ractor::run(Arc::clone(&peer), LANES, Work::Nothing)
        })
        .reference("256 ractor actors")
}

/// Handlers that wait: how much later than necessary fixed lanes are done, because keys that share
/// a lane wait for each other.
fn waiting(scale: Scale) -> Scenario {
    let per_key = scale.pick(20, 100);
    let work = Work::Wait(Duration::from_millis(5));
    let workload = Arc::new(Workload::interleaved(100, per_key));
    let about = format!("100 keys, {per_key} events each, handler waits 5 ms");
    let peer = Arc::clone(&workload);
    Scenario::new("waiting", about, Unit::Seconds)
        .contender("bound", move || bound::one_key(per_key as usize, work))
        .contender("256 channels", move || {
            floor::run(Arc::clone(&workload), LANES, work)
        })
        .contender("256 ractor actors", move || {
            ractor::run(Arc::clone(&peer), LANES, work)
        })
        .reference("bound")
}

fn figures(results: &Results, figures: &mut Figures) {
    let floor = "256 channels";
    let peer = "256 ractor actors";
    figures.set("floor_per_s", results.median("no-op", floor));
    figures.set("one_channel_per_s", results.median("no-op", "1 channel"));
    figures.set("ractor_per_s", results.median("no-op", peer));
    figures.set("floor_over_ractor", results.ratio("no-op", floor, peer));
    figures.set("floor_over_bound", results.ratio("waiting", floor, "bound"));
    figures.set("ractor_over_bound", results.ratio("waiting", peer, "bound"));
}
