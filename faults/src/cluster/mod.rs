//! A cluster of real processes of `laneway`, with clients and a receiver of callbacks, while anything is killed, frozen,
//! cut off, stopped and started again.
//!
//! What must hold, judged from outside by what clients were told and what came to the receiver: what was accepted is
//! delivered or withdrawn, nothing starts early or after a yes to withdraw, no answer contradicts another one or what was
//! seen, duplicates come only from faults, and 30 s after the last heal all due work is done. The log is read beside it: every
//! start has to be begun in it, the epochs of starts of one message never run backwards, and no two reigns count in one epoch.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `plan` | what is broken, in which order |
//! | `program` | the program `laneway` |
//! | `member` | one process of it |
//! | `stack` | the servers that it needs |
//! | `stage` | all of them, broken and healed |
//! | `http` | a request and its answer |
//! | `clients` | what clients do |
//! | `ledger` | what they asked and were told |
//! | `receiver` | where callbacks go |
//! | `log` | what the log says |
//! | `judge` | what must hold |

mod clients;
mod http;
mod judge;
mod ledger;
mod log;
mod member;
mod plan;
mod program;
mod receiver;
mod stack;
mod stage;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand::RngExt;
use tokio::task::JoinSet;

use self::clients::{Clients, FAR};
use self::judge::{SETTLED_WITHIN, Seen};
use self::ledger::{Ledger, Millis, What, now};
use self::log::Reader;
use self::receiver::Starts;
use self::stage::{SESSION, Stage};
use crate::frame::Run;
use crate::verdict::Verdict;

pub use self::member::Member;
pub use self::program::program;
pub use self::stack::{Servers, Stack};

/// What it is called on the command line.
pub const NAME: &str = "cluster";
/// What is broken and what must hold.
pub const ABOUT: &str =
    "any process of a cluster dies, freezes, restarts: nothing lost, early, or answered wrongly";

/// So many clients; each has several messages at a time.
const CLIENTS: u64 = 10;
/// What a full run comes to at least.
const FAULTS: u64 = 300;
const MESSAGES: u64 = 100_000;
/// What clients have begun is over within that.
const CLIENTS_LIMIT: Duration = Duration::from_mins(3);
/// Clients go on after the last heal: most of what they send must be accepted when no fault is felt any more.
const CALM: Duration = Duration::from_secs(9);
/// What must not start has time to do so.
const LINGER: Duration = Duration::from_secs(3);

/// Runs it.
///
/// # Errors
///
/// If servers or processes cannot be handled as planned.
pub fn run(run: &mut Run) -> Result<Verdict> {
    let stack = Stack::named(run.only().unwrap_or(Stack::Nats.name()))?;
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    let is_full = run.is_full();
    let plan = plan::draw(run.dice(), stack, SESSION, is_full);
    run.announce(&plan);
    let mut stage = Stage::start(run, stack, folder.path())?;
    run.note("all processes are ready");

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let starts = Starts::default();
    let port = runtime.block_on(receiver::start(starts.clone()))?;
    let reader = runtime.block_on(Reader::start(&stage.servers.address()))?;
    let clients = Arc::new(Clients {
        receives: stage.receives(),
        callback: format!("http://127.0.0.1:{port}/"),
        ledger: Ledger::default(),
        seed: run.dice().random(),
        longest: if is_full { 20_000 } else { 6_000 },
        largest_batch: if is_full { 80 } else { 20 },
        is_over: AtomicBool::new(false),
        names: AtomicUsize::new(0),
    });
    let mut living = JoinSet::new();
    for number in 0..CLIENTS {
        living.spawn_on(clients.clone().live(number), runtime.handle());
    }
    let taken = take(run, &mut stage, &plan);
    let healed = now();
    thread::sleep(CALM);
    clients.is_over.store(true, Ordering::Relaxed);
    let seen = taken.and_then(|faults| {
        let told = runtime.block_on(async {
            let ended = async { while living.join_next().await.is_some() {} };
            let _ = tokio::time::timeout(CLIENTS_LIMIT, ended).await;
            settle(&clients.ledger, &starts, healed).await;
            tokio::time::sleep(LINGER).await;
            clients.clone().look_again().await;
            reader.finish().await
        })?;
        Ok((faults, told))
    });
    let messages = clients.ledger.all();
    let starts = starts.so_far();
    runtime.shutdown_background();
    let (faults, told) = seen?;
    let verdict = judge::judge(&Seen {
        messages: &messages,
        starts: &starts,
        windows: &stage.windows,
        healed,
        ended: now().max(healed + SETTLED_WITHIN),
    });
    let verdict = judge::judge_log(verdict, &told, &starts);
    let fell = stage.fell.len() as u64;
    let verdict = verdict.count("faults", faults).must_be(
        "processes that ended by themselves or badly",
        fell,
        0,
    );
    // A run in which everything errs proves nothing. How many err when a fault is over is a matter of time, which short runs, tests
    // on busy machines, do not judge.
    let least = if is_full { 90 } else { 1 };
    let verdict = verdict.at_least(judge::ACCEPTED, least);
    let verdict = match (is_full, run.time()) {
        (true, None) => verdict
            .at_least("faults", FAULTS)
            .at_least("messages", MESSAGES),
        _ => verdict,
    };
    let verdict = stage.fell.iter().fold(verdict, Verdict::detail);
    if !verdict.passes() {
        let kept = folder.keep();
        run.note(format_args!("logs of the processes: {}", kept.display()));
    }
    Ok(verdict)
}

/// Breaks one thing after the other, and heals it; answers how many.
fn take(run: &mut Run, stage: &mut Stage, plan: &[plan::Step]) -> Result<u64> {
    let started = Instant::now();
    let is_time = |run: &Run| run.time().is_none_or(|time| started.elapsed() < time);
    let mut faults = 0;
    for step in plan {
        if !is_time(run) {
            break;
        }
        stage.take(run, step)?;
        faults += 1;
    }
    stage.heal(run)?;
    run.note(format_args!(
        "all {faults} faults are healed, {:?} after the first",
        started.elapsed()
    ));
    Ok(faults)
}

/// Waits until all that is due is delivered or withdrawn, or the time for it is over.
async fn settle(ledger: &Ledger, starts: &Starts, healed: Millis) {
    loop {
        let good: std::collections::BTreeSet<String> = starts
            .so_far()
            .into_iter()
            .filter(|start| start.is_good)
            .map(|start| start.id)
            .collect();
        let (mut left, mut last) = (0, healed);
        for message in ledger.all() {
            let Some(yes) = message.accepted().filter(|_| message.delay < FAR) else {
                continue;
            };
            let taken_back = message
                .asked
                .iter()
                .any(|asked| matches!(asked.what, What::Withdraw | What::Stop) && asked.is_yes());
            let dues = message.asked.iter().filter(|asked| asked.is_yes());
            let due = dues.filter_map(|asked| asked.due).max().unwrap_or_default();
            let id = yes.id.as_deref().unwrap_or_default();
            if !taken_back && !good.contains(id) {
                left += 1;
                last = last.max(due);
            }
        }
        if left == 0 || now() > last + SETTLED_WITHIN {
            return;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
