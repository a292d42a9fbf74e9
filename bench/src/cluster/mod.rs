//! The delay service on many machines, as processes on this one: two receives, two centers, three workers, and the servers
//! of a stack (NATS alone, or Kafka and `ZooKeeper`).
//!
//! - `rig`: the processes
//! - `client`: submits, and asks
//! - `receiver`: where callbacks go
//! - `ingest`: how fast messages are accepted
//! - `late`: how late callbacks are, and what each role costs for each of them
//! - `takeover`: how long callbacks wait when a worker or a center is killed
//! - `log`: whether an owner of the past began anything meanwhile
//! - `cold`: how long it takes until all shards have owners again when no view is left
//! - `growth`: what more workers and more centers bring

mod client;
mod cold;
mod growth;
mod ingest;
mod late;
mod log;
mod receiver;
mod rig;
mod takeover;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures_util::future::BoxFuture;
use laneway_faults::cluster::Stack;
use tokio::sync::Mutex;

use self::rig::Rig;
use crate::frame::{Bench, Sample, Scale, Scenario, Unit};
use crate::results::{Figures, Results};

/// Its name on the command line.
pub const NAME: &str = "cluster";
/// What it shows.
pub const ABOUT: &str = "delayed messages on many machines: accepted, on time, taken over";

const OURS: &str = "laneway";

const INGEST: &str = "ingest, batches";
const SINGLE: &str = "ingest, one by one";
const LATE: &str = "late";
const WORKER: &str = "takeover, worker";
const CENTER: &str = "takeover, center";
const COLD: &str = "takeover, cold";

const EARLY: &str = "early";
const LOST: &str = "lost";
const DOUBLE: &str = "double_owner";
const P50: &str = "p50_us";
const P50_MILLIS: &str = "p50_ms";
const TAKEN: &str = "taken_per_s";
const TOLERATED: &str = "session_ms";
/// CPU time for each message, by role.
const COSTS: [&str; 3] = ["receive_cpu_us", "center_cpu_us", "worker_cpu_us"];

/// What the first measurement builds, and a million messages, take their time.
const LIMIT: Duration = Duration::from_mins(40);

/// The processes of one stack, which its scenarios share.
type Shared = Arc<Mutex<Option<Rig>>>;

/// Builds it.
#[must_use]
pub fn bench(scale: Scale) -> Bench {
    let shared = Shared::default();
    let of = |stack| scenarios(scale, stack, &shared);
    let scenarios = Stack::ALL.into_iter().flat_map(of).collect();
    Bench::new(NAME, scale, scenarios).figures(figures)
}

/// `nats: late`: all of one stack can be asked for by the part before the colon.
fn named(stack: Stack, what: &str) -> String {
    format!("{}: {what}", stack.name())
}

fn scenarios(scale: Scale, stack: Stack, shared: &Shared) -> Vec<Scenario> {
    let ingest = scale.pick(Duration::from_secs(2), Duration::from_secs(5));
    let steady = late::Steady {
        per_second: 2_000,
        seconds: scale.pick(5, 20),
    };
    let (workers, centers) = scale.pick((3, 2), (10, 5));
    let pending = scale.pick(20_000, 1_000_000);
    let about = |what: &str, unit| (what.to_owned(), unit);
    let mut all = vec![
        scenario(
            stack,
            shared,
            INGEST,
            about(
                &format!(
                    "requests of 500 messages of 128 bytes, due in a week, on 4 connections to two receives, for {ingest:?}; taken: until the centers had them in the log"
                ),
                Unit::PerSecond,
            ),
            scale.pick(1, 3),
            move |rig| Box::pin(ingest::batches(rig, ingest)),
        ),
        scenario(
            stack,
            shared,
            SINGLE,
            about(
                &format!("one message a request on 64 connections to two receives, for {ingest:?}"),
                Unit::PerSecond,
            ),
            scale.pick(1, 3),
            move |rig| Box::pin(ingest::singles(rig, ingest)),
        ),
        scenario(
            stack,
            shared,
            LATE,
            about(
                &format!(
                    "2,000 callbacks due per second for {} s: 99 of 100 come within; CPU time of all processes of a role for each message, from its submit on",
                    steady.seconds
                ),
                Unit::Seconds,
            ),
            scale.pick(1, 3),
            move |rig| Box::pin(late::steady(rig, steady)),
        ),
        once(
            stack,
            shared,
            WORKER,
            about(
                &format!(
                    "{workers} times a worker of three is killed (kill -9) at 300 due per second: 99 of 100 times the latest callback comes within"
                ),
                Unit::Seconds,
            ),
            move |rig| Box::pin(takeover::workers(rig, workers)),
        ),
        once(
            stack,
            shared,
            CENTER,
            about(
                &format!(
                    "{centers} times a center of two is killed (kill -9) at 300 due per second: 99 of 100 times the latest callback comes within; the session is a part of it"
                ),
                Unit::Seconds,
            ),
            move |rig| Box::pin(takeover::centers(rig, centers)),
        ),
        once(
            stack,
            shared,
            COLD,
            about(
                &format!(
                    "with {pending} pending both centers are killed (kill -9) and start without their views: until all shards have owners; what is left of the session is a part of it"
                ),
                Unit::Seconds,
            ),
            move |rig| Box::pin(cold::takeover(rig, pending)),
        ),
    ];
    if scale == Scale::Full {
        all.extend(growth_of(stack, shared));
    }
    all
}

fn growth_of(stack: Stack, shared: &Shared) -> [Scenario; 2] {
    let build = |name: &str, what: String, sizes: [(&'static str, growth::Size); 2]| {
        let mut scenario = Scenario::new(named(stack, name).leak(), what, Unit::PerSecond);
        for (contender, size) in sizes {
            let shared = shared.clone();
            scenario = scenario.contender_once(contender, move || {
                let shared = shared.clone();
                with_rig(stack, shared, move |rig| Box::pin(growth::burst(rig, size)))
            });
        }
        scenario.reference(sizes[0].0).deadline(LIMIT)
    };
    let slow = Duration::from_millis(50);
    [
        build(
            "growth, workers",
            "10,000 callbacks due at once that take 50 ms each, with two centers".to_owned(),
            [
                ("1 worker", growth::Size::new(2, 1, slow)),
                ("3 workers", growth::Size::new(2, 3, slow)),
            ],
        ),
        build(
            "growth, centers",
            "10,000 callbacks due at once that are answered at once, with three workers".to_owned(),
            [
                ("1 center", growth::Size::new(1, 3, Duration::ZERO)),
                ("2 centers", growth::Size::new(2, 3, Duration::ZERO)),
            ],
        ),
    ]
}

fn scenario(
    stack: Stack,
    shared: &Shared,
    name: &str,
    (about, unit): (String, Unit),
    rounds: usize,
    measure: impl Fn(&mut Rig) -> BoxFuture<'_, Result<Sample>> + Copy + Send + Sync + 'static,
) -> Scenario {
    let shared = shared.clone();
    Scenario::new(named(stack, name).leak(), about, unit)
        .contender(OURS, move || with_rig(stack, shared.clone(), measure))
        .rounds(rounds)
        .deadline(LIMIT)
}

fn once(
    stack: Stack,
    shared: &Shared,
    name: &str,
    (about, unit): (String, Unit),
    measure: impl Fn(&mut Rig) -> BoxFuture<'_, Result<Sample>> + Copy + Send + Sync + 'static,
) -> Scenario {
    let shared = shared.clone();
    Scenario::new(named(stack, name).leak(), about, unit)
        .contender_once(OURS, move || with_rig(stack, shared.clone(), measure))
        .deadline(LIMIT)
}

/// Measures with the processes of a stack, which are started unless they are there. Those of another one end before.
async fn with_rig(
    stack: Stack,
    shared: Shared,
    measure: impl FnOnce(&mut Rig) -> BoxFuture<'_, Result<Sample>>,
) -> Result<Sample> {
    let mut shared = shared.lock().await;
    if shared.as_ref().is_none_or(|rig| rig.stack() != stack) {
        // Before the next one starts: they would share the machine.
        *shared = None;
        *shared = Some(Rig::start(stack).await?);
    }
    let Some(rig) = shared.as_mut() else {
        anyhow::bail!("there are no processes");
    };
    let sample = measure(rig).await;
    if sample.is_err() {
        *shared = None;
    }
    sample
}

fn figures(results: &Results, figures: &mut Figures) {
    // The worst one of the stacks that were measured, and each of them.
    let mut tell = |name: &str, worst: fn(f64, f64) -> f64, of: &dyn Fn(Stack) -> Option<f64>| {
        let all = Stack::ALL.into_iter().filter_map(of);
        figures.set(name, all.reduce(worst));
        for stack in Stack::ALL {
            if let Some(value) = of(stack) {
                figures.set(&format!("{}_{name}", stack.name()), Some(value));
            }
        }
    };
    let median = |stack, what: &str| results.median(&named(stack, what), OURS);
    let count = |stack, what: &str, name: &str| {
        let count = results.count(&named(stack, what), OURS, name)?;
        Some(count as f64)
    };
    tell("ingest_s", f64::min, &|stack| median(stack, INGEST));
    tell("ingest_single_s", f64::min, &|stack| median(stack, SINGLE));
    tell("late_p50_ms", f64::max, &|stack| {
        let rounds = results.rounds(&named(stack, LATE), OURS)? as f64;
        Some(count(stack, LATE, P50)? / rounds / 1e3)
    });
    tell("late_p99_ms", f64::max, &|stack| {
        Some(median(stack, LATE)? * 1e3)
    });
    for name in COSTS {
        tell(name, f64::max, &|stack| {
            let rounds = results.rounds(&named(stack, LATE), OURS)? as f64;
            Some(count(stack, LATE, name)? / rounds)
        });
    }
    tell("takeover_worker_p50_s", f64::max, &|stack| {
        Some(count(stack, WORKER, P50_MILLIS)? / 1e3)
    });
    tell("takeover_worker_p99_s", f64::max, &|stack| {
        median(stack, WORKER)
    });
    tell("takeover_center_p50_s", f64::max, &|stack| {
        Some(count(stack, CENTER, P50_MILLIS)? / 1e3)
    });
    tell("takeover_center_over_session_s", f64::max, &|stack| {
        let session = count(stack, CENTER, TOLERATED)? / 1e3;
        Some((median(stack, CENTER)? - session).max(0.0))
    });
    tell("cold_takeover_s", f64::max, &|stack| median(stack, COLD));
    for name in [LOST, EARLY, DOUBLE] {
        let sum = |stack| {
            let counts = [LATE, WORKER, CENTER].map(|what| count(stack, what, name));
            counts.into_iter().flatten().reduce(|sum, one| sum + one)
        };
        tell(name, |one, other| one + other, &sum);
    }
}
