//! Delayed messages on disk: how fast they are taken, how late they are, what they cost while they wait.
//!
//! - `rig`: a store, a bus that they are delivered to, and the messages
//! - `ingest`: how fast they are accepted, durably
//! - `late`: how late they are at a steady rate, and how fast many are that are due at once
//! - `http`: the same through the server, by requests and callbacks
//! - `pending`: memory, restart, withdraw and extend with millions that wait

mod http;
mod ingest;
mod late;
mod pending;
mod rig;

use std::time::Duration;

use crate::frame::{Bench, Scale, Scenario, Unit};
use crate::results::{Figures, Results};

/// Its name on the command line.
pub const NAME: &str = "delay";
/// What it shows.
pub const ABOUT: &str = "delayed messages: accepted, on time, and waiting by the million";

const OURS: &str = "laneway";
const EARLY: &str = "early";
const LOST: &str = "lost";
const P50: &str = "p50_us";
const RESTART: &str = "restart_ms";
const WITHDRAWN: &str = "withdrawn_per_s";
const EXTENDED: &str = "extended_per_s";

/// The first of those over HTTP builds the server.
const BUILD: Duration = Duration::from_mins(20);

/// Builds it.
#[must_use]
pub fn bench(scale: Scale) -> Bench {
    let scenarios = vec![
        ingest_batch(scale),
        ingest_single(scale),
        late(scale),
        burst(scale),
        pending(scale),
        http_batch(scale),
        http_single(scale),
        http_late(scale),
    ];
    Bench::new(NAME, scale, scenarios).figures(figures)
}

fn ingest_batch(scale: Scale) -> Scenario {
    let count = scale.pick(200_000, 1_000_000);
    let about = format!(
        "{count} messages of 128 bytes, due in a week, in batches of 500 by 4 tasks; synced before they are accepted"
    );
    Scenario::new("ingest, batches", about, Unit::PerSecond)
        .contender(OURS, move || ingest::batches(count))
        .rounds(scale.pick(2, 3))
}

fn ingest_single(scale: Scale) -> Scenario {
    let time = scale.pick(Duration::from_secs(1), Duration::from_secs(4));
    let about = format!("64 × one message after the other, for {time:?}; synced before accepted");
    Scenario::new("ingest, one by one", about, Unit::PerSecond)
        .contender(OURS, move || ingest::singles(64, time))
        .rounds(scale.pick(2, 3))
}

fn late(scale: Scale) -> Scenario {
    let seconds = scale.pick(3, 20);
    let about = format!(
        "10,000 due per second for {seconds} s, to a topic of a bus on disk: 99 of 100 handlers start within"
    );
    Scenario::new("late", about, Unit::Seconds).contender_once(OURS, move || late::steady(seconds))
}

fn burst(scale: Scale) -> Scenario {
    let about = "200,000 due at once, to a topic of a bus on disk, until all are handled";
    Scenario::new("burst", about, Unit::PerSecond)
        .contender(OURS, late::burst)
        .rounds(scale.pick(1, 3))
}

fn pending(scale: Scale) -> Scenario {
    let count = scale.pick(1_000_000, 10_000_000);
    let about = format!(
        "{count} messages due in a week: growth of the resident memory for each, with what does not depend on how many there are"
    );
    Scenario::new("pending", about, Unit::Bytes)
        .contender_once(OURS, move || pending::waiting(count))
        .deadline(Duration::from_mins(20))
}

fn http_batch(scale: Scale) -> Scenario {
    let time = scale.pick(Duration::from_secs(1), Duration::from_secs(4));
    let about =
        format!("over HTTP: requests of 500 on 4 connections, for {time:?}; synced before 202");
    Scenario::new("http, batches", about, Unit::PerSecond)
        .contender(OURS, move || http::batches(4, time))
        .rounds(scale.pick(2, 3))
        .deadline(BUILD)
}

fn http_single(scale: Scale) -> Scenario {
    let time = scale.pick(Duration::from_secs(1), Duration::from_secs(4));
    let about = format!(
        "over HTTP: one message a request on 64 connections, for {time:?}; synced before 202"
    );
    Scenario::new("http, one by one", about, Unit::PerSecond)
        .contender(OURS, move || http::singles(64, time))
        .rounds(scale.pick(2, 3))
        .deadline(BUILD)
}

fn http_late(scale: Scale) -> Scenario {
    let seconds = scale.pick(3, 20);
    let about = format!(
        "3,000 due per second for {seconds} s, by callbacks to one host: 99 of 100 arrive within"
    );
    Scenario::new("http, late", about, Unit::Seconds)
        .contender_once(OURS, move || http::callbacks(seconds))
        .deadline(BUILD)
}

fn figures(results: &Results, figures: &mut Figures) {
    figures.set("ingest_batch_s", results.median("ingest, batches", OURS));
    figures.set(
        "ingest_single_s",
        results.median("ingest, one by one", OURS),
    );
    let p50 = results.count("late", OURS, P50);
    figures.set("late_p50_ms", p50.map(|micros| micros as f64 / 1e3));
    let p99 = results.median("late", OURS);
    figures.set("late_p99_ms", p99.map(|seconds| seconds * 1e3));
    figures.set("burst_s", results.median("burst", OURS));
    figures.set("rss_per_pending", results.median("pending", OURS));
    let restart = results.count("pending", OURS, RESTART);
    figures.set("restart_s", restart.map(|millis| millis as f64 / 1e3));
    for (name, count) in [("withdraw_s", WITHDRAWN), ("extend_s", EXTENDED)] {
        let count = results.count("pending", OURS, count);
        figures.set(name, count.map(|count| count as f64));
    }
    for (name, scenario) in [
        ("http_batch_s", "http, batches"),
        ("http_single_s", "http, one by one"),
    ] {
        figures.set(name, results.median(scenario, OURS));
    }
    let p99 = results.median("http, late", OURS);
    figures.set("callback_late_p99_ms", p99.map(|seconds| seconds * 1e3));
    for name in [EARLY, LOST] {
        let counts: Option<Vec<u64>> = ["late", "burst", "http, late"]
            .iter()
            .map(|scenario| results.count(scenario, OURS, name))
            .collect();
        figures.set_count(name, counts.map(|counts| counts.iter().sum()));
    }
}
