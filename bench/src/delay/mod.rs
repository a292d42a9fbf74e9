//! Delayed messages on disk: how fast they are taken, how late they are, what they cost while they wait.
//!
//! - `rig`: a store, a bus that they are delivered to, and the messages
//! - `arrivals`: when they came, and how late that was
//! - `ingest`: how fast they are accepted, durably
//! - `late`: how late they are at a steady rate, and how fast many are that are due at once
//! - `beside`: how late callbacks are while names do not resolve, hosts refuse, callers are in a hurry, a bus hangs, or
//!   a row cannot be read
//! - `http`: the same through the server, by requests and callbacks
//! - `pending`: memory, restart, withdraw and extend with millions that wait
//! - `peers`: others who keep messages until they are due

mod arrivals;
mod beside;
pub(crate) mod http;
mod ingest;
mod late;
mod peers;
mod pending;
mod rig;

use std::future::Future;
use std::time::Duration;

use anyhow::Result;

use crate::frame::{Bench, Sample, Scale, Scenario, Unit};
use crate::results::{Figures, Results};
use crate::services::Service;

pub(crate) use self::rig::now_micros;

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

/// Messages that are due one after the other.
#[derive(Clone, Copy, Debug)]
struct Steady {
    per_second: u64,
    seconds: u64,
}

impl Steady {
    fn count(self) -> u64 {
        self.per_second * self.seconds
    }

    /// When one of them is due, from the first on, in whole milliseconds.
    fn after(self, number: u64) -> Duration {
        Duration::from_millis((number * 1000).div_ceil(self.per_second))
    }
}

/// The first of those over HTTP builds the server.
const BUILD: Duration = Duration::from_mins(20);

const INGEST: &str = "ingest, batches";
const SINGLE: &str = "ingest, one by one";
const LATE: &str = "late";
const BURST: &str = "burst";
const PENDING: &str = "pending";
const HTTP_BATCH: &str = "http, batches";
const HTTP_SINGLE: &str = "http, one by one";
const HTTP_LATE: &str = "http, late";
const HTTP_STUCK: &str = "http, stuck host";

const HANGING: &str = "http, hanging hosts";
const DISTINCT: &str = "http, distinct hosts";
const UNRESOLVED: &str = "unresolved names";
const HUNG_BUS: &str = "hung bus";
const REFUSING: [(&str, &str, u64); 3] = [
    ("1 refusing host", "refusing_hosts_1_p99_ms", 1),
    ("1,000 refusing hosts", "refusing_hosts_1000_p99_ms", 1_000),
    (
        "50,000 refusing hosts",
        "refusing_hosts_50000_p99_ms",
        50_000,
    ),
];
const SHORT: &str = "short time-outs";
const UNREADABLE: &str = "unreadable row";
const LARGE: &str = "http, large";

/// The topic of messages that go to hosts.
const TOPIC_OF_CALLBACKS: &str = "callbacks";

/// Servers of peers: nothing is asked of those that are started, but their programs are here then.
pub const SERVICE: Service = Service {
    variable: "LANEWAY_TEST_NATS",
    arguments: &["--only", "nats,redis"],
};

/// Builds it.
#[must_use]
pub fn bench(scale: Scale) -> Bench {
    let mut scenarios = vec![
        ingest_batch(scale),
        ingest_single(scale),
        late(scale),
        burst(scale),
        pending(scale),
        http_batch(scale),
        http_single(scale),
        http_late(scale),
        http_stuck(scale),
        hanging(scale),
        distinct(scale),
        unresolved(scale),
        hung_bus(scale),
        short_timeouts(scale),
        unreadable_row(scale),
        large(scale),
    ];
    scenarios.extend(REFUSING.map(|(name, _, hosts)| refusing(scale, name, hosts)));
    Bench::new(NAME, scale, scenarios).figures(figures)
}

fn ingest_batch(scale: Scale) -> Scenario {
    let count = scale.pick(200_000, 500_000);
    let time = scale.pick(Duration::from_secs(1), Duration::from_secs(3));
    let about = format!(
        "messages of 128 bytes, due in a week, in batches of 500 by 4 clients; ours {count}, synced before they are accepted; peers for {time:?}"
    );
    let ours = Scenario::new(INGEST, about, Unit::PerSecond)
        .contender(OURS, move || ingest::batches(count))
        .rounds(scale.pick(2, 3));
    peers::ingest(ours, time)
}

fn ingest_single(scale: Scale) -> Scenario {
    let time = scale.pick(Duration::from_secs(1), Duration::from_secs(3));
    let about = format!("64 × one message after the other, for {time:?}; synced before accepted");
    Scenario::new(SINGLE, about, Unit::PerSecond)
        .contender(OURS, move || ingest::singles(64, time))
        .rounds(scale.pick(2, 3))
}

fn late(scale: Scale) -> Scenario {
    let steady = Steady {
        per_second: 10_000,
        seconds: scale.pick(3, 10),
    };
    let about = format!(
        "10,000 due per second for {} s: 99 of 100 are handled within; ours through a topic of a bus on disk",
        steady.seconds
    );
    let ours = Scenario::new(LATE, about, Unit::Seconds)
        .contender_once(OURS, move || late::steady(steady));
    peers::late(ours, steady)
}

fn burst(scale: Scale) -> Scenario {
    let count = 200_000;
    let about = format!(
        "{count} due at once, until all are handled; ours through a topic of a bus on disk, beanstalkd from its first on, BullMQ with {}",
        peers::BULLMQ_BURST
    );
    let ours = Scenario::new(BURST, about, Unit::PerSecond)
        .contender(OURS, move || late::burst(count))
        .rounds(scale.pick(1, 2));
    peers::burst(ours, count)
}

fn pending(scale: Scale) -> Scenario {
    let count = scale.pick(1_000_000, 10_000_000);
    let about = format!(
        "{count} messages due in a week: growth of the resident memory for each, with what does not depend on how many there are"
    );
    Scenario::new(PENDING, about, Unit::Bytes)
        .contender_once(OURS, move || pending::waiting(count))
        .deadline(Duration::from_mins(20))
}

fn http_batch(scale: Scale) -> Scenario {
    let time = scale.pick(Duration::from_secs(1), Duration::from_secs(3));
    let about =
        format!("over HTTP: requests of 500 on 4 connections, for {time:?}; synced before 202");
    Scenario::new(HTTP_BATCH, about, Unit::PerSecond)
        .contender(OURS, move || http::batches(4, time))
        .rounds(scale.pick(2, 3))
        .deadline(BUILD)
}

fn http_single(scale: Scale) -> Scenario {
    let time = scale.pick(Duration::from_secs(1), Duration::from_secs(3));
    let about = format!(
        "over HTTP: one message a request on 64 connections, for {time:?}; synced before 202"
    );
    Scenario::new(HTTP_SINGLE, about, Unit::PerSecond)
        .contender(OURS, move || http::singles(64, time))
        .rounds(scale.pick(2, 3))
        .deadline(BUILD)
}

/// Messages that are due at a steady rate, and how late they are.
fn steadily<F>(
    scale: Scale,
    name: &'static str,
    per_second: u64,
    what: &str,
    measure: impl Fn(Steady) -> F + 'static,
) -> Scenario
where
    F: Future<Output = Result<Sample>> + Send + 'static,
{
    let steady = Steady {
        per_second,
        seconds: scale.pick(3, 10),
    };
    let about = format!(
        "{per_second} due per second for {} s, by callbacks to {what}: 99 of 100 arrive within",
        steady.seconds
    );
    Scenario::new(name, about, Unit::Seconds).contender_once(OURS, move || measure(steady))
}

fn http_late(scale: Scale) -> Scenario {
    steadily(scale, HTTP_LATE, 3_000, "one host", http::callbacks).deadline(BUILD)
}

fn http_stuck(scale: Scale) -> Scenario {
    let what = "ten hosts of which one never answers, and does not count";
    steadily(scale, HTTP_STUCK, 1_000, what, http::beside_a_stuck_host).deadline(BUILD)
}

fn hanging(scale: Scale) -> Scenario {
    let what = "ten hosts, while 100 others take 128 callbacks each and never answer";
    let measure = |steady| http::beside_hanging_hosts(steady, 100);
    steadily(scale, HANGING, 1_000, what, measure).deadline(BUILD)
}

fn distinct(scale: Scale) -> Scenario {
    let count = scale.pick(50_000, 100_000);
    let about = format!("{count} callbacks due at one moment, each to another host");
    Scenario::new(DISTINCT, about, Unit::PerSecond)
        .contender_once(OURS, move || http::distinct_hosts(count))
        .deadline(BUILD)
}

/// Callbacks to one name at a steady rate, beside something else.
fn beside<F>(
    scale: Scale,
    name: &'static str,
    what: &str,
    measure: impl Fn(Steady) -> F + 'static,
) -> Scenario
where
    F: Future<Output = Result<Sample>> + Send + 'static,
{
    let what = format!("one name, while {what}");
    steadily(scale, name, 1_000, &what, measure)
}

fn unresolved(scale: Scale) -> Scenario {
    let what = "100 callbacks go to each of 100 names that do not resolve";
    beside(scale, UNRESOLVED, what, |steady| {
        beside::unresolved_names(steady, 100)
    })
}

fn hung_bus(scale: Scale) -> Scenario {
    let what = "a bus takes 1,000 messages for each of 100 topics and never answers";
    beside(scale, HUNG_BUS, what, |steady| {
        beside::hung_bus(steady, 100)
    })
}

fn refusing(scale: Scale, name: &'static str, hosts: u64) -> Scenario {
    let what = format!("50,000 callbacks go to {hosts} that refuse connections");
    beside(scale, name, &what, move |steady| {
        beside::refusing_hosts(steady, hosts)
    })
}

fn short_timeouts(scale: Scale) -> Scenario {
    let what = "as many others to it, answered after 20 ms, are given up after 1 ms";
    beside(scale, SHORT, what, beside::short_timeouts)
}

fn unreadable_row(scale: Scale) -> Scenario {
    let what = "a block of messages that are due, too, cannot be read from the disk";
    beside(scale, UNREADABLE, what, beside::unreadable_row)
}

fn large(scale: Scale) -> Scenario {
    let count = scale.pick(200, 1_000);
    let about = format!(
        "{count} messages of 1 MB are listed, extended, delivered to the bus and withdrawn, each of it at once: the most memory that the server has meanwhile"
    );
    Scenario::new(LARGE, about, Unit::Bytes)
        .contender_once(OURS, move || http::large(count))
        .deadline(BUILD)
}

fn figures(results: &Results, figures: &mut Figures) {
    let best = |scenario, names: [&str; 3], best: fn(f64, f64) -> f64| {
        let medians = names
            .iter()
            .filter_map(|name| results.median(scenario, name));
        medians.reduce(best)
    };
    let over = |scenario, peer: Option<f64>| Some(results.median(scenario, OURS)? / peer?);
    for (name, scenario) in [
        ("ingest_batch_s", INGEST),
        ("ingest_single_s", SINGLE),
        ("burst_s", BURST),
        ("rss_per_pending", PENDING),
        ("http_batch_s", HTTP_BATCH),
        ("http_single_s", HTTP_SINGLE),
        ("distinct_hosts_s", DISTINCT),
    ] {
        figures.set(name, results.median(scenario, OURS));
    }
    for (name, scenario) in [
        ("late_p99_ms", LATE),
        ("callback_late_p99_ms", HTTP_LATE),
        ("beside_stuck_host_p99_ms", HTTP_STUCK),
        ("hanging_hosts_100_p99_ms", HANGING),
        ("unresolved_names_p99_ms", UNRESOLVED),
        ("hung_bus_callback_p99_ms", HUNG_BUS),
        ("short_timeouts_p99_ms", SHORT),
        ("unreadable_row_p99_ms", UNREADABLE),
    ]
    .into_iter()
    .chain(REFUSING.map(|(scenario, name, _)| (name, scenario)))
    {
        let p99 = results.median(scenario, OURS);
        figures.set(name, p99.map(|seconds| seconds * 1e3));
    }
    let large = results.median(LARGE, OURS);
    figures.set("list_1mb_rss_mib", large.map(|bytes| bytes / 1_048_576.0));
    figures.set(
        "ingest_over_best_peer",
        over(INGEST, best(INGEST, peers::SYNCED, f64::max)),
    );
    figures.set(
        "late_over_best_peer",
        over(LATE, best(LATE, peers::USUAL, f64::min)),
    );
    figures.set(
        "burst_over_best_peer",
        over(BURST, best(BURST, peers::USUAL, f64::max)),
    );
    let p50 = results.count(LATE, OURS, P50);
    figures.set("late_p50_ms", p50.map(|micros| micros as f64 / 1e3));
    let restart = results.count(PENDING, OURS, RESTART);
    figures.set("restart_s", restart.map(|millis| millis as f64 / 1e3));
    for (name, count) in [("withdraw_s", WITHDRAWN), ("extend_s", EXTENDED)] {
        let count = results.count(PENDING, OURS, count);
        figures.set(name, count.map(|count| count as f64));
    }
    for name in [EARLY, LOST] {
        let counts: Option<Vec<u64>> = [LATE, BURST, HTTP_LATE, HTTP_STUCK]
            .iter()
            .map(|scenario| results.count(scenario, OURS, name))
            .collect();
        figures.set_count(name, counts.map(|counts| counts.iter().sum()));
    }
}
