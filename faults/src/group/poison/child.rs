//! A process of the run with a poisonous event: it publishes all there is, or it handles.
//!
//! It is this program once more, with `poison-child` as its first argument. One that handles comes to its
//! end when its standard input does.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use laneway::retry::RetryPolicy;
use laneway::testing::history::{History, Outcome};
use laneway::topic::{Retention, Topic};
use laneway::{Bus, Envelope, Event, Failure};

use super::{GROUP, PARTITIONS, POISON, TOPIC, all};
use crate::group::child::{CLOSE_WITHIN, DONE, READY, attempt_at, dismissal, live_out};

/// The first argument that makes this program the child.
pub const ARGUMENT: &str = "poison-child";

/// The line that tells that the poisonous event has begun to run.
pub(super) const BITTEN: &str = "bitten";

/// So many are published at a time.
const BATCH: usize = 1000;

const ATTEMPTS: u32 = 5;

/// What a child does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Task {
    /// Publishes the poisonous event, and then all others.
    Publish,
    /// Handles. The poisonous event never comes to an end.
    Stick,
    /// Handles. The poisonous event fails, until it is given up.
    Fail,
}

#[derive(Debug, Parser)]
struct Arguments {
    #[arg(value_enum)]
    task: Task,
    /// Of the servers.
    url: String,
    /// What happened in all lives.
    history: PathBuf,
    /// The number of this life.
    owner: u64,
    /// How many events are behind the poisonous one.
    behind: u64,
}

/// Lives.
///
/// # Errors
///
/// If the bus cannot be opened, or says something that it should not.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<ExitCode> {
    live_out(live(Arguments::parse_from(arguments)))
}

async fn live(arguments: Arguments) -> Result<()> {
    let dismissed = dismissal();
    let history = Arc::new(History::append_to(&arguments.history)?);
    let bus = Bus::open(&arguments.url).await?;
    let topic = Topic::domain(TOPIC)
        .partitions(PARTITIONS)
        .retention(Retention::FOREVER)
        .build()?;
    bus.declare(&topic).await?;
    if arguments.task == Task::Publish {
        publish(&bus, &history, arguments.behind).await?;
    } else {
        handle(&bus, history, &arguments).await?;
        println!("{READY}");
        let _ = dismissed.await;
    }
    bus.close(CLOSE_WITHIN).await?;
    println!("{DONE}");
    Ok(())
}

async fn publish(bus: &Bus, history: &History, behind: u64) -> Result<()> {
    let mut events = all(behind);
    loop {
        let batch: Vec<_> = events.by_ref().take(BATCH).collect();
        if batch.is_empty() {
            return Ok(());
        }
        let mut envelopes = Vec::with_capacity(batch.len());
        for (key, seq) in &batch {
            envelopes.push(Envelope::builder(&**key, "Tested").json(seq)?);
            history.submitted(key.clone(), *seq);
        }
        bus.publish_envelope_batch(TOPIC, &envelopes).await?;
        for (key, seq) in batch {
            history.acked(key, seq);
        }
    }
}

async fn handle(bus: &Bus, history: Arc<History>, arguments: &Arguments) -> Result<()> {
    let (owner, task) = (arguments.owner, arguments.task);
    let handler = move |event: Event| {
        let history = history.clone();
        async move { handle_event(&history, owner, task, &event).await }
    };
    let longest = Duration::from_millis(50);
    let retry = RetryPolicy::exponential(ATTEMPTS, Duration::from_millis(5), longest)?;
    bus.subscription(TOPIC)
        .group(GROUP)
        .retry(retry)
        .envelope(handler)
        .await?;
    Ok(())
}

async fn handle_event(
    history: &History,
    owner: u64,
    task: Task,
    event: &Event,
) -> Result<(), Failure> {
    let attempt = attempt_at(event, owner);
    let (key, seq) = (event.aggregate_id().as_str(), event.json()?);
    let run = history.started(key, seq, attempt);
    if (key, seq) != POISON {
        run.finish(Outcome::Done);
        return Ok(());
    }
    println!("{BITTEN}");
    if task == Task::Stick {
        std::future::pending::<()>().await;
    }
    run.finish(if attempt.number == ATTEMPTS {
        Outcome::DeadLettered
    } else {
        Outcome::Failed
    });
    Err(Failure::new("as planned"))
}
