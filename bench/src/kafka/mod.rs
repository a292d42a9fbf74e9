//! The bus on Kafka, next to bare rdkafka and to Confluent's Parallel Consumer on the same broker.
//!
//! - `place`: the cluster
//! - `bare`: what the bus does, as a program does it that has none

mod bare;
mod place;

use std::time::Duration;

use crate::bus::check;
use crate::contenders::bound;
use crate::frame::{Bench, Scale, Scenario, Unit};
use crate::results::{Figures, Results};
use crate::served::{UNANSWERED, hot, latency, ours, slow};
use crate::services::Service;
use crate::workload::Work;
use place::On;

/// Its name on the command line.
pub const NAME: &str = "kafka";
/// What it shows.
pub const ABOUT: &str = "the bus on Kafka, next to bare rdkafka and the Parallel Consumer";
/// The broker that all of it runs on.
pub const SERVICE: Service = Service {
    variable: place::VARIABLE,
    arguments: &["--only", "kafka"],
};

const BUS: &str = "bus";
const BARE: &str = "bare rdkafka";
const PARALLEL: &str = "Parallel Consumer";
const BOUND: &str = "one key alone";
const P50: &str = "p50";
const P99: &str = "p99";

const CONSUME: &str = "consume";
const PUBLISH: &str = "publish";
const WAITING: &str = "S1";
const WAITING_ON_ONE: &str = "S1, 1 partition";
const SLOW: &str = "S6";
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
        waiting(scale),
        waiting_on_one(),
        slow_key(),
        both(SINGLE, 1, 10_000),
        both(MULTI, 100, 500),
        steady(scale),
    ];
    scenarios.extend(hot::contend::<On<1>>(hot::scenarios(), BUS));
    Bench::new(NAME, scale, scenarios).figures(figures)
}

fn consume(scale: Scale) -> Scenario {
    let per_key = scale.pick(10, 30);
    let about = format!(
        "10,000 keys, {per_key} events each, there already, on 8 partitions: a handler that does nothing, against a loop that polls and decodes the same messages and commits every thousand; both from joining the group on; and against the Parallel Consumer (KEY, 128), from its first event on"
    );
    Scenario::new(CONSUME, about, Unit::PerSecond)
        .contender(BUS, move || {
            ours::consume::<On<8>>(10_000, per_key, Work::Nothing)
        })
        .contender(BARE, move || bare::consume(10_000, per_key))
        .contender(PARALLEL, move || {
            bare::parallel_consumer(10_000, per_key, Work::Nothing)
        })
        .reference(BARE)
        .rounds(scale.pick(3, 5))
}

fn publish(scale: Scale) -> Scenario {
    let per_key = scale.pick(10, 30);
    let about = format!(
        "10,000 keys, {per_key} events each, {UNANSWERED} not yet acknowledged at a time; bare sends the same messages, headers and all"
    );
    Scenario::new(PUBLISH, about, Unit::PerSecond)
        .contender(BUS, move || ours::publish::<On<8>>(10_000, per_key))
        .contender(BARE, move || bare::publish(10_000, per_key))
        .reference(BARE)
}

fn waiting(scale: Scale) -> Scenario {
    let about = "100 keys, 500 events each, there already, a handler that waits 1 ms, 8 partitions";
    Scenario::new(WAITING, about, Unit::Seconds)
        .contender(BUS, || ours::consume::<On<8>>(100, 500, MILLISECOND))
        .contender(BOUND, || bound::one_key(500, MILLISECOND))
        .contender(PARALLEL, || bare::parallel_consumer(100, 500, MILLISECOND))
        .reference(BOUND)
        .rounds(scale.pick(3, 5))
}

fn waiting_on_one() -> Scenario {
    let about = "the same on 1 partition";
    Scenario::new(WAITING_ON_ONE, about, Unit::Seconds)
        .contender(BUS, || ours::consume::<On<1>>(100, 500, MILLISECOND))
        .contender(BOUND, || bound::one_key(500, MILLISECOND))
        .reference(BOUND)
}

fn slow_key() -> Scenario {
    let about = "100 keys × 100 events of 1 ms, and one key whose events take 100 ms: until the others are done";
    Scenario::new(SLOW, about, Unit::Seconds).contender(BUS, slow::others::<On<8>>)
}

/// As jxt-core measures it.
fn both(name: &'static str, keys: u32, per_key: u32) -> Scenario {
    let about =
        format!("{keys} × {per_key} events, from the first publish until the last is handled");
    Scenario::new(name, about, Unit::PerSecond)
        .contender(BUS, move || ours::both::<On<8>>(keys, per_key))
}

fn steady(scale: Scale) -> Scenario {
    let time = scale.pick(Duration::from_secs(1), Duration::from_secs(5));
    let rate = latency::RATE;
    let about = format!("from publish to handled, {rate} events a second for {time:?}");
    Scenario::new(LATENCY, about, Unit::Seconds)
        .contender(P50, move || latency::percentile::<On<8>>(time, 50))
        .contender(P99, move || latency::percentile::<On<8>>(time, 99))
}

fn figures(results: &Results, figures: &mut Figures) {
    figures.set("consume_over_bare", results.ratio(CONSUME, BUS, BARE));
    figures.set("publish_over_bare", results.ratio(PUBLISH, BUS, BARE));
    figures.set("s1_over_bound", results.ratio(WAITING, BUS, BOUND));
    figures.set(
        "s1_one_partition_over_bound",
        results.ratio(WAITING_ON_ONE, BUS, BOUND),
    );
    figures.set("s6_others_s", results.median(SLOW, BUS));
    figures.set(
        "over_parallel_consumer_noop",
        results.ratio(CONSUME, BUS, PARALLEL),
    );
    // Both are times: how many times as long the other one takes.
    figures.set(
        "over_parallel_consumer_1ms",
        results.ratio(WAITING, PARALLEL, BUS),
    );
    figures.set("single_events_s", results.median(SINGLE, BUS));
    figures.set("multi_events_s", results.median(MULTI, BUS));
    let p99 = results.median(LATENCY, P99);
    figures.set("latency_p99_ms", p99.map(|seconds| seconds * 1000.0));
    let checked = [
        (CONSUME, BUS),
        (WAITING, BUS),
        (WAITING_ON_ONE, BUS),
        (SLOW, BUS),
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
