//! A process of a fault run: it publishes, or it is a member of a group and handles. It writes down
//! what it does.
//!
//! It is this program once more, with `group-child` as its first argument. It comes to its end when its
//! standard input does.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use laneway::retry::RetryPolicy;
use laneway::testing::history::{Attempt, History, MessageId, Outcome};
use laneway::topic::{Retention, Topic};
use laneway::{Bus, Envelope, Event, Failure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::{Mutex, RwLock, oneshot};
use tokio::time::timeout;

/// The first argument that makes this program the child.
pub const ARGUMENT: &str = "group-child";

/// The lines that a child tells.
pub(super) const READY: &str = "ready";
pub(super) const DONE: &str = "done";
/// A member handles something in a partition that it has not had, or has had again since.
pub(super) const OWNS: &str = "owns";

const TOPIC: &str = "orders";
const GROUP: &str = "default";
const PARTITIONS: u32 = 8;
const PUBLISHERS: u64 = 16;
const KEYS_EACH: u64 = 4;

/// A child that nobody ends ends itself.
const LIFETIME: Duration = Duration::from_mins(15);

/// So long a publisher waits for quiet while things are broken; it tries again later.
const REST_WITHIN: Duration = Duration::from_secs(1);

pub(super) const CLOSE_WITHIN: Duration = Duration::from_secs(30);

/// What a child does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Task {
    /// Publishes. In the end it waits until everything is handled.
    Publish,
    /// Handles, and fails once in a while. In the end it leaves the group.
    Handle,
    /// As `handle`, but one in ten attempts fails, and one in a hundred panics.
    Struggle,
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
    seed: u64,
}

/// The arguments after the program for a life: the first one says what it is, the last one is a number that
/// it knows the meaning of.
pub(super) fn arguments(
    first: &str,
    task: &impl ValueEnum,
    url: &str,
    history: PathBuf,
    owner: u64,
    number: u64,
) -> Vec<OsString> {
    let task = task
        .to_possible_value()
        .map(|value| value.get_name().to_owned());
    vec![
        first.into(),
        task.unwrap_or_default().into(),
        url.into(),
        history.into(),
        owner.to_string().into(),
        number.to_string().into(),
    ]
}

/// Lives.
///
/// # Errors
///
/// If the bus cannot be opened, or says something that it should not.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<ExitCode> {
    live_out(live(Arguments::parse_from(arguments)))
}

/// Lives to the end.
pub(super) fn live_out(
    life: impl Future<Output = Result<()>> + Send + 'static,
) -> Result<ExitCode> {
    // One thread, so that at most one handler has been admitted and not begun when it is frozen.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let living = async { tokio::spawn(life).await? };
    let result = runtime.block_on(async { timeout(LIFETIME, living).await });
    // Handlers and background work end with the process.
    runtime.shutdown_background();
    result.context("nobody ended this life")??;
    Ok(ExitCode::SUCCESS)
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
    match arguments.task {
        Task::Publish => {
            let publisher = Arc::new(Publisher {
                bus: bus.clone(),
                history,
                owner: arguments.owner,
                seed: arguments.seed,
                quiet: RwLock::new(()),
                acked: Mutex::default(),
            });
            publisher.live(dismissed).await?;
        }
        Task::Handle | Task::Struggle => {
            handle(&bus, history, &arguments, dismissed).await?;
        }
    }
    bus.close(CLOSE_WITHIN).await?;
    println!("{DONE}");
    Ok(())
}

/// Resolves when the standard input ends.
pub(super) fn dismissal() -> oneshot::Receiver<()> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        let _ = sender.send(());
    });
    receiver
}

struct Publisher {
    bus: Bus,
    history: Arc<History>,
    owner: u64,
    seed: u64,
    /// Held while something is published; whoever wants quiet takes it.
    quiet: RwLock<()>,
    /// Acknowledged, and not yet known to be settled.
    acked: Mutex<Vec<MessageId>>,
}

impl Publisher {
    async fn live(self: &Arc<Self>, dismissed: oneshot::Receiver<()>) -> Result<()> {
        let mut publishers = tokio::task::JoinSet::new();
        for number in 0..PUBLISHERS {
            publishers.spawn(self.clone().publish(number));
        }
        println!("{READY}");
        let resting = async {
            let mut dice = StdRng::seed_from_u64(self.seed);
            loop {
                let wait = dice.random_range(500..3000);
                tokio::time::sleep(Duration::from_millis(wait)).await;
                // While things are broken there is no rest to be had.
                let _ = timeout(REST_WITHIN, self.rest()).await;
            }
        };
        tokio::select! {
            () = resting => {}
            _ = dismissed => {}
            ended = publishers.join_next() => if let Some(ended) = ended {
                ended??;
            },
        }
        {
            let _quiet = self.quiet.write().await;
            publishers.shutdown().await;
        }
        while self.rest().await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Publishes on keys of its own, one event after the other.
    async fn publish(self: Arc<Self>, number: u64) -> Result<()> {
        let mut dice = StdRng::seed_from_u64(self.seed ^ (number << 32));
        for count in 1.. {
            let key = number * KEYS_EACH + dice.random_range(0..KEYS_EACH);
            let message = MessageId::new(format!("key-{key}"), self.owner * 1_000_000 + count);
            let envelope =
                Envelope::builder(&*message.key, "Tested").json(&serde_json::json!(message.seq))?;
            let loud = self.quiet.read().await;
            self.history.submitted(message.key.clone(), message.seq);
            // After an error nobody knows: it may run.
            if self.bus.publish_envelope(TOPIC, &envelope).await.is_ok() {
                self.history.acked(message.key.clone(), message.seq);
                self.acked.lock().await.push(message);
            }
            drop(loud);
            tokio::time::sleep(Duration::from_micros(dice.random_range(0..40_000))).await;
        }
        Ok(())
    }

    /// Waits, in quiet, until everything that was published is settled, and notes that.
    async fn rest(&self) -> Result<()> {
        let _quiet = self.quiet.write().await;
        loop {
            let backlog = self.bus.backlog(TOPIC, GROUP).await?;
            if backlog.iter().all(|lag| lag.records == 0) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for MessageId { key, seq } in self.acked.lock().await.drain(..) {
            self.history.settled(key, seq);
        }
        Ok(())
    }
}

async fn handle(
    bus: &Bus,
    history: Arc<History>,
    arguments: &Arguments,
    dismissed: oneshot::Receiver<()>,
) -> Result<()> {
    let (owner, task) = (arguments.owner, arguments.task);
    let places = std::sync::Mutex::new(HashSet::new());
    let handler = move |event: Event| {
        let place = (event.context().partition(), event.context().epoch());
        let is_new = places.lock().is_ok_and(|mut places| places.insert(place));
        if is_new {
            println!("{OWNS}");
        }
        let history = history.clone();
        async move { handle_event(&history, owner, task, &event).await }
    };
    // So often that the planned failures never add up.
    let most = Duration::from_millis(50);
    let retry = RetryPolicy::exponential(30, Duration::from_millis(5), most)?;
    let subscription = bus
        .subscription(TOPIC)
        .group(GROUP)
        .retry(retry)
        .envelope(handler)
        .await?;
    println!("{READY}");
    let _ = dismissed.await;
    subscription.close(CLOSE_WITHIN).await;
    Ok(())
}

/// Who handles an event, and how often it was tried.
pub(super) fn attempt_at(event: &Event, owner: u64) -> Attempt {
    Attempt {
        number: event.context().attempt(),
        owner,
        epoch: event.context().epoch(),
    }
}

async fn handle_event(
    history: &History,
    owner: u64,
    task: Task,
    event: &Event,
) -> Result<(), Failure> {
    let attempt = attempt_at(event, owner);
    let seq: u64 = event.json()?;
    let run = history.started(event.aggregate_id().as_str(), seq, attempt);
    let (fails, panics) = match task {
        Task::Struggle => (0.1, 0.01),
        Task::Handle | Task::Publish => (0.01, 0.0),
    };
    let (wait, fails, panics) = {
        let mut dice = rand::rng();
        // Some take so long that they are under way whatever happens.
        let longest = if dice.random_bool(0.05) {
            100_000
        } else {
            3_000
        };
        (
            dice.random_range(0..longest),
            dice.random_bool(fails),
            dice.random_bool(panics),
        )
    };
    tokio::time::sleep(Duration::from_micros(wait)).await;
    if panics {
        // Without the message of a panic: it is as planned.
        std::panic::resume_unwind(Box::new("as planned"));
    }
    if fails {
        run.finish(Outcome::Failed);
        return Err(Failure::new("as planned"));
    }
    run.finish(Outcome::Done);
    Ok(())
}
