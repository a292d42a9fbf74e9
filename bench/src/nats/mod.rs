//! The bus on NATS `JetStream`, next to bare `async-nats` on the same server.
//!
//! - `place`: the server
//! - `bare`: what the bus does, as a program does it that has none

mod bare;
mod place;

use std::time::Duration;

use crate::bus::check;
use crate::contenders::bound;
use crate::frame::{Bench, Scale, Scenario, Unit};
use crate::results::{Figures, Results};
use crate::served::{UNANSWERED, hot, latency, ours};
use crate::services::Service;
use crate::workload::Work;
use bare::Message;
use place::Server;

/// Its name on the command line.
pub const NAME: &str = "nats";
/// What it shows.
pub const ABOUT: &str = "the bus on NATS JetStream, next to bare async-nats";
/// The server that all of it runs on.
pub const SERVICE: Service = Service {
    variable: place::VARIABLE,
    arguments: &["--only", "nats", "--nats-sync", "default"],
};

const BUS: &str = "bus";
const BARE: &str = "bare async-nats";
const PAYLOAD: &str = "bare, without headers";
const BOUND: &str = "one key alone";
const P50: &str = "p50";
const P99: &str = "p99";

const CONSUME: &str = "consume";
const PUBLISH: &str = "publish";
const WAITING: &str = "S1";
const SINGLE: &str = "1 aggregate";
const MULTI: &str = "100 aggregates";
const LATENCY: &str = "latency";

const MILLISECOND: Work = Work::Wait(Duration::from_millis(1));

/// Builds it.
#[must_use]
pub fn bench(scale: Scale) -> Bench {
    let mut scenarios = vec![
        consume(scale),
        publish(scale),
        waiting(),
        both(SINGLE, 1, 10_000),
        both(MULTI, 100, 500),
        steady(scale),
    ];
    scenarios.extend(hot::contend::<Server>(hot::scenarios(), BUS));
    Bench::new(NAME, scale, scenarios).figures(figures)
}

fn consume(scale: Scale) -> Scenario {
    let per_key = scale.pick(10, 30);
    let about = format!(
        "10,000 keys, {per_key} events each, there already: a handler that does nothing, against a loop that pulls the same messages, decodes and acks each"
    );
    Scenario::new(CONSUME, about, Unit::PerSecond)
        .contender(BUS, move || {
            ours::consume::<Server>(10_000, per_key, Work::Nothing)
        })
        .contender(BARE, move || bare::consume(10_000, per_key))
        .reference(BARE)
}

fn publish(scale: Scale) -> Scenario {
    let per_key = scale.pick(10, 30);
    let about = format!(
        "10,000 keys, {per_key} events each, {UNANSWERED} not yet acknowledged at a time; bare sends the same messages, headers and all"
    );
    Scenario::new(PUBLISH, about, Unit::PerSecond)
        .contender(BUS, move || ours::publish::<Server>(10_000, per_key))
        .contender(BARE, move || bare::publish(10_000, per_key, Message::Whole))
        .contender(PAYLOAD, move || {
            bare::publish(10_000, per_key, Message::Payload)
        })
        .reference(BARE)
}

fn waiting() -> Scenario {
    let about = "100 keys, 500 events each, there already, a handler that waits 1 ms";
    Scenario::new(WAITING, about, Unit::Seconds)
        .contender(BUS, || ours::consume::<Server>(100, 500, MILLISECOND))
        .contender(BOUND, || bound::one_key(500, MILLISECOND))
        .reference(BOUND)
}

/// As jxt-core measures it.
fn both(name: &'static str, keys: u32, per_key: u32) -> Scenario {
    let about =
        format!("{keys} × {per_key} events, from the first publish until the last is handled");
    Scenario::new(name, about, Unit::PerSecond)
        .contender(BUS, move || ours::both::<Server>(keys, per_key))
}

fn steady(scale: Scale) -> Scenario {
    let time = scale.pick(Duration::from_secs(1), Duration::from_secs(5));
    let rate = latency::RATE;
    let about = format!("from publish to handled, {rate} events a second for {time:?}");
    Scenario::new(LATENCY, about, Unit::Seconds)
        .contender(P50, move || latency::percentile::<Server>(time, 50))
        .contender(P99, move || latency::percentile::<Server>(time, 99))
}

fn figures(results: &Results, figures: &mut Figures) {
    figures.set("consume_over_bare", results.ratio(CONSUME, BUS, BARE));
    figures.set("publish_over_bare", results.ratio(PUBLISH, BUS, BARE));
    figures.set(
        "publish_over_bare_without_headers",
        results.ratio(PUBLISH, BUS, PAYLOAD),
    );
    figures.set("s1_over_bound", results.ratio(WAITING, BUS, BOUND));
    figures.set("single_events_s", results.median(SINGLE, BUS));
    figures.set("multi_events_s", results.median(MULTI, BUS));
    let p99 = results.median(LATENCY, P99);
    figures.set("latency_p99_ms", p99.map(|seconds| seconds * 1000.0));
    let checked = [
        (CONSUME, BUS),
        (WAITING, BUS),
        (SINGLE, BUS),
        (MULTI, BUS),
        (LATENCY, P50),
        (LATENCY, P99),
    ];
    hot::figures(results, figures, &[BUS]);
    check::figures(
        results,
        figures,
        &[&checked[..], &hot::checked(BUS)].concat(),
    );
}
