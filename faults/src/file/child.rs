//! The process that is broken: a bus on disk that publishes, handles, and writes down what it does.
//!
//! It is this program once more, with `file-child` as its first argument. It tells what it comes
//! across in lines on its standard output.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use laneway::retry::RetryPolicy;
use laneway::testing::history::{Attempt, History, MessageId, Outcome};
use laneway::topic::{Retention, Topic};
use laneway::{BrokerError, Bus, Envelope, Error, Event, Failure, Subscription};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::{Mutex, RwLock};

/// The first argument that makes this program the child.
pub const ARGUMENT: &str = "file-child";

/// The lines that a child tells.
pub(super) const READY: &str = "ready";
pub(super) const REFUSED: &str = "refused";
pub(super) const AGAIN: &str = "again";
pub(super) const DONE: &str = "done";

const TOPIC: &str = "orders";
const GROUP: &str = "default";
const PUBLISHERS: u64 = 32;
const KEYS_EACH: u64 = 2;

/// Who stores, and how many at once.
const STOCKERS: u64 = 8;
const STOCK_BATCH: u64 = 500;

/// A child that nobody ends ends itself.
const LIFETIME: Duration = Duration::from_mins(10);

/// What a child does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Task {
    /// Publishes and handles for ever, and knows what is settled.
    Live,
    /// As `live`, but does not count on positions: a power cut may take the last ones back.
    Unsettled,
    /// Handles what is left, closes, and ends.
    Drain,
    /// Publishes large events; where it is refused for want of room it tries again, and tells.
    Fill,
    /// Publishes until the disk fails, then tries again in vain, and tells.
    Break,
    /// Stores as many events as it is told, in as many topics, tells, and lives on.
    Stock,
    /// Counts all events, and tells.
    Count,
}

/// How much a child stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
pub(super) struct Amount {
    #[arg(default_value_t = 1)]
    pub(super) topics: u64,
    #[arg(default_value_t = 0)]
    pub(super) events: u64,
}

#[derive(Debug, Parser)]
struct Arguments {
    #[arg(value_enum)]
    task: Task,
    /// Of the bus.
    directory: PathBuf,
    /// What happened in all lives.
    history: PathBuf,
    /// The number of this life.
    owner: u64,
    seed: u64,
    #[command(flatten)]
    amount: Amount,
}

/// The arguments after [`ARGUMENT`] for a life.
pub(super) fn arguments(
    task: Task,
    directory: PathBuf,
    history: PathBuf,
    owner: u64,
    seed: u64,
    amount: Option<Amount>,
) -> Vec<OsString> {
    let task = task
        .to_possible_value()
        .map(|value| value.get_name().to_owned());
    let mut arguments = vec![
        ARGUMENT.into(),
        task.unwrap_or_default().into(),
        directory.into(),
        history.into(),
        owner.to_string().into(),
        seed.to_string().into(),
    ];
    let amounts = amount.map(|amount| [amount.topics, amount.events]);
    let amounts = amounts.into_iter().flatten();
    arguments.extend(amounts.map(|amount| amount.to_string().into()));
    arguments
}

/// Lives.
///
/// # Errors
///
/// If the bus cannot be opened, or says something that it should not.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<ExitCode> {
    let arguments = Arguments::parse_from(arguments);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let result = runtime.block_on(async {
        let child = Arc::new(Child::open(&arguments).await?);
        let living = child.live(arguments.task);
        tokio::time::timeout(LIFETIME, living)
            .await
            .context("nobody ended this life")?
    });
    // Handlers and background work end with the process.
    runtime.shutdown_background();
    result.map(|()| ExitCode::SUCCESS)
}

struct Child {
    bus: Bus,
    history: Arc<History>,
    owner: u64,
    seed: u64,
    amount: Amount,
    /// Publishers hold it while they publish; whoever wants quiet takes it.
    quiet: RwLock<()>,
    /// Handled, and not yet known to be settled.
    handled: Arc<Mutex<Vec<MessageId>>>,
}

impl Child {
    async fn open(arguments: &Arguments) -> Result<Self> {
        let history = History::append_to(&arguments.history)?;
        let began = Instant::now();
        let bus = Bus::open(&format!("file:{}", arguments.directory.display())).await?;
        tell(READY, began.elapsed().as_millis());
        bus.declare(&topic(TOPIC)?).await?;
        Ok(Self {
            bus,
            history: Arc::new(history),
            owner: arguments.owner,
            seed: arguments.seed,
            amount: arguments.amount,
            quiet: RwLock::new(()),
            handled: Arc::default(),
        })
    }

    async fn live(self: &Arc<Self>, task: Task) -> Result<()> {
        match task {
            Task::Live | Task::Unsettled => {
                let _subscription = self.subscribe().await?;
                let publishers: Vec<_> = (0..PUBLISHERS)
                    .map(|number| tokio::spawn(self.clone().publish(number)))
                    .collect();
                if task == Task::Live {
                    loop {
                        self.settle().await?;
                    }
                }
                for publisher in publishers {
                    publisher.await??;
                }
                Ok(())
            }
            Task::Drain => self.drain().await,
            Task::Fill => self.fill().await,
            Task::Break => self.break_down().await,
            Task::Stock => self.stock().await,
            Task::Count => self.count().await,
        }
    }

    async fn subscribe(&self) -> Result<Subscription> {
        let (history, handled, owner) = (self.history.clone(), self.handled.clone(), self.owner);
        let handle = move |event: Event| {
            let (history, handled) = (history.clone(), handled.clone());
            async move { handle_event(&history, &handled, owner, &event).await }
        };
        // So often that the planned failures never add up.
        let most = Duration::from_millis(50);
        let retry = RetryPolicy::exponential(20, Duration::from_millis(5), most)?;
        let subscription = self
            .bus
            .subscription(TOPIC)
            .group(GROUP)
            .retry(retry)
            .envelope(handle)
            .await?;
        Ok(subscription)
    }

    /// Publishes on keys of its own, one event after the other.
    async fn publish(self: Arc<Self>, number: u64) -> Result<()> {
        let mut dice = StdRng::seed_from_u64(self.seed ^ (number << 32));
        for count in 1.. {
            let key = format!(
                "key-{}",
                number * KEYS_EACH + dice.random_range(0..KEYS_EACH)
            );
            let size = if dice.random_bool(0.02) { 20_000 } else { 100 };
            let loud = self.quiet.read().await;
            self.publish_one(&key, self.owner * 1_000_000 + count, size)
                .await
                .with_context(|| format!("publishing on {key}"))?;
            drop(loud);
            tokio::time::sleep(Duration::from_micros(dice.random_range(0..40_000))).await;
        }
        Ok(())
    }

    async fn publish_one(&self, key: &str, seq: u64, size: usize) -> Result<(), Error> {
        let payload = serde_json::json!({ "seq": seq, "filling": "x".repeat(size) });
        let envelope = Envelope::builder(key, "Tested")
            .json(&payload)
            .map_err(Error::from)?;
        self.history.submitted(key, seq);
        let result = self.bus.publish_envelope(TOPIC, &envelope).await;
        // After an error nobody knows: what was submitted may run.
        if result.is_ok() {
            self.history.acked(key, seq);
        }
        result.map(|_| ())
    }

    /// Lets everything come to rest, and notes that what was handled is settled.
    async fn settle(&self) -> Result<()> {
        let wait = StdRng::seed_from_u64(self.seed).random_range(20..400);
        tokio::time::sleep(Duration::from_millis(wait)).await;
        let _quiet = self.quiet.write().await;
        self.rest().await?;
        for MessageId { key, seq } in self.handled.lock().await.drain(..) {
            self.history.settled(key, seq);
        }
        Ok(())
    }

    /// Waits until everything that was published is settled.
    async fn rest(&self) -> Result<()> {
        loop {
            let backlog = self.bus.backlog(TOPIC, GROUP).await?;
            if backlog.iter().all(|lag| lag.records == 0) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn drain(&self) -> Result<()> {
        let subscription = self.subscribe().await?;
        self.rest().await?;
        subscription.close(Duration::from_secs(30)).await;
        self.bus.close(Duration::from_secs(30)).await?;
        tell(DONE, "");
        Ok(())
    }

    /// Fills the disk, waits for room, and goes on.
    async fn fill(self: &Arc<Self>) -> Result<()> {
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..PUBLISHERS {
            let child = self.clone();
            tasks.spawn(async move {
                let mut is_refused = false;
                for count in 1.. {
                    let seq = child.owner * 1_000_000 + count;
                    match child.publish_one(&format!("key-{number}"), seq, 8000).await {
                        Ok(()) => {
                            if std::mem::take(&mut is_refused) && number == 0 {
                                tell(AGAIN, count);
                            }
                        }
                        Err(Error::Broker(BrokerError::DiskFull { .. })) => {
                            if !std::mem::replace(&mut is_refused, true) && number == 0 {
                                tell(REFUSED, count);
                            }
                            tokio::time::sleep(Duration::from_millis(50)).await;
                        }
                        Err(error) => bail!("publishing on a full disk: {error}"),
                    }
                }
                Ok(())
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        Ok(())
    }

    /// Publishes until the disk fails, and makes sure that nothing is acknowledged any more.
    async fn break_down(&self) -> Result<()> {
        let mut failure = None;
        for count in 1..1_000_000 {
            let seq = self.owner * 1_000_000 + count;
            if let Err(error) = self.publish_one("key-0", seq, 50_000).await {
                failure = Some((seq, error));
                break;
            }
        }
        let (seq, error) = failure.context("the disk never failed")?;
        tell(REFUSED, &error);
        let mut acked = 0;
        for attempt in 1..=50 {
            let result = self.publish_one("key-0", seq + attempt, 10).await;
            acked += u64::from(result.is_ok());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let health = self.bus.health().await;
        ensure!(health.broker.is_some(), "the broker says it is well");
        tell(DONE, acked);
        Ok(())
    }
}

/// What is stored to be counted.
impl Child {
    async fn stock(self: &Arc<Self>) -> Result<()> {
        let Amount { topics, events } = self.amount;
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..STOCKERS {
            let child = self.clone();
            tasks.spawn(async move {
                // Every one of them has topics of its own, if there are enough.
                for topic in (number % topics..topics).step_by(usize::try_from(STOCKERS)?) {
                    let sharing = STOCKERS.div_ceil(topics);
                    let share = number / topics;
                    let of = |part| events * part / (topics * sharing);
                    let count = of(topic * sharing + share + 1) - of(topic * sharing + share);
                    child.stock_topic(&stock_name(topic), count).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        tell(DONE, events);
        std::future::pending().await
    }

    async fn stock_topic(&self, name: &str, events: u64) -> Result<()> {
        self.bus.declare(&topic(name)?).await?;
        let mut left = events;
        while left > 0 {
            let some = left.min(STOCK_BATCH);
            let envelopes = (0..some).map(|number| {
                let text = format!("the order of the customer with the number {number:>9}");
                Envelope::builder(format!("order-{}", number % 100), "Placed").json(&text)
            });
            let envelopes = envelopes.collect::<Result<Vec<_>, _>>()?;
            self.bus.publish_envelope_batch(name, &envelopes).await?;
            left -= some;
        }
        Ok(())
    }

    async fn count(&self) -> Result<()> {
        let mut events = 0;
        for topic in 0..self.amount.topics {
            let backlog = self.bus.backlog(&stock_name(topic), GROUP).await?;
            events += backlog.iter().map(|lag| lag.records).sum::<u64>();
        }
        tell(DONE, events);
        Ok(())
    }
}

fn stock_name(number: u64) -> String {
    format!("stock-{number}")
}

fn topic(name: &str) -> Result<Topic> {
    let topic = Topic::domain(name).partitions(8);
    Ok(topic.retention(Retention::FOREVER).build()?)
}

async fn handle_event(
    history: &History,
    handled: &Mutex<Vec<MessageId>>,
    owner: u64,
    event: &Event,
) -> Result<(), Failure> {
    let payload: serde_json::Value = event.json()?;
    let seq = payload["seq"].as_u64().unwrap_or_default();
    let key = event.aggregate_id().to_string();
    let attempt = Attempt {
        number: event.context().attempt(),
        owner,
        epoch: event.context().epoch(),
    };
    let run = history.started(key.as_str(), seq, attempt);
    let (wait, fails) = {
        let mut dice = rand::rng();
        (dice.random_range(0..3_000), dice.random_bool(0.01))
    };
    tokio::time::sleep(Duration::from_micros(wait)).await;
    if fails {
        run.finish(Outcome::Failed);
        return Err(Failure::new("as planned"));
    }
    // Held until it is noted, so that nothing is taken for settled that is not noted as handled.
    let mut handled = handled.lock().await;
    run.finish(Outcome::Done);
    handled.push(MessageId::new(key, seq));
    Ok(())
}

fn tell(what: &str, detail: impl std::fmt::Display) {
    println!("{what} {detail}");
}
