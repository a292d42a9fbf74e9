//! The process that is broken: delayed messages on disk that are submitted, moved, taken back and
//! delivered, and a story of it.
//!
//! It is this program once more, with `delay-child` as its first argument.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use laneway_delay::{
    BoxFuture, Delays, Deliver, Error, Extend, Firing, MessageId, Options, Publish, Sinks,
    Submission, Target, Timestamp, Undelivered, When,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::story::{Pen, What};

/// The first argument that makes this program the child.
pub const ARGUMENT: &str = "delay-child";

/// The lines that a child tells.
pub(super) const READY: &str = "ready";
pub(super) const STOCKED: &str = "stocked";
pub(super) const DONE: &str = "done";

const BATCH: usize = 500;

/// A child that nobody ends ends itself.
const LIFETIME: Duration = Duration::from_mins(10);

/// What a child does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Task {
    /// Submits many messages that are due within half a minute, tells, and goes on as `live`.
    Stock,
    /// Submits, moves, takes back and delivers for ever.
    Live,
    /// Delivers what is left, and ends.
    Drain,
}

#[derive(Debug, Parser)]
struct Arguments {
    #[arg(value_enum)]
    task: Task,
    directory: PathBuf,
    story: PathBuf,
    /// The number of this life.
    owner: u64,
    seed: u64,
    /// How many messages to begin with.
    stock: usize,
}

/// The arguments of a life.
pub(super) fn arguments(
    task: Task,
    directory: PathBuf,
    story: PathBuf,
    owner: u64,
    seed: u64,
    stock: usize,
) -> Vec<OsString> {
    let task = task.to_possible_value();
    let task = task.map(|value| value.get_name().to_owned());
    vec![
        ARGUMENT.into(),
        task.unwrap_or_default().into(),
        directory.into(),
        story.into(),
        owner.to_string().into(),
        seed.to_string().into(),
        stock.to_string().into(),
    ]
}

/// Lives.
///
/// # Errors
///
/// If the messages cannot be opened, or something is said that should not be.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<ExitCode> {
    let arguments = Arguments::parse_from(arguments);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let result = runtime.block_on(async {
        let living = live(&arguments);
        tokio::time::timeout(LIFETIME, living)
            .await
            .context("nobody ended this life")?
    });
    runtime.shutdown_background();
    result.map(|()| ExitCode::SUCCESS)
}

/// Writes down what is delivered. Now and then it does not work the first time.
struct Sink {
    pen: Arc<Pen>,
}

impl Sink {
    fn note(&self, firings: &[Firing]) -> Result<(), Undelivered> {
        let started = firings
            .iter()
            .map(|firing| (firing.message.id.as_str(), What::Started));
        let written = self.pen.write(started);
        written.map_err(|error| Undelivered::retry(format!("{error:#}")))
    }
}

impl Deliver for Sink {
    fn deliver(&self, firing: Firing) -> BoxFuture<'_, Result<(), Undelivered>> {
        let mut result = self.note(std::slice::from_ref(&firing));
        let is_unlucky = firing.message.id.as_str().ends_with('7');
        if is_unlucky && firing.attempt() == 1 {
            result = Err(Undelivered::retry("bad luck"));
        }
        Box::pin(std::future::ready(result))
    }
}

impl Publish for Sink {
    fn publish(&self, batch: Vec<Firing>) -> BoxFuture<'_, Vec<Result<(), Undelivered>>> {
        let result = self.note(&batch);
        Box::pin(std::future::ready(vec![result; batch.len()]))
    }
}

async fn live(arguments: &Arguments) -> Result<()> {
    let pen = Arc::new(Pen::open(&arguments.story)?);
    let sinks = Sinks {
        callbacks: Some(Arc::new(Sink { pen: pen.clone() })),
        bus: Some(Arc::new(Sink { pen: pen.clone() })),
    };
    let options = Options {
        // So that most of the messages are on disk only.
        near: 20_000,
        ..Options::default()
    };
    let began = Instant::now();
    let delays = Delays::open(&arguments.directory, sinks, options).await?;
    println!("{READY} {}", began.elapsed().as_millis());
    let mut child = Child {
        delays,
        pen,
        dice: StdRng::seed_from_u64(arguments.seed),
        owner: arguments.owner,
        count: 0,
        recent: Vec::new(),
    };
    match arguments.task {
        Task::Drain => child.drain().await,
        Task::Stock => {
            child.submit(arguments.stock, 2_000..30_000).await?;
            println!("{STOCKED}");
            child.go_on().await
        }
        Task::Live => child.go_on().await,
    }
}

struct Child {
    delays: Delays,
    pen: Arc<Pen>,
    dice: StdRng,
    owner: u64,
    count: u64,
    recent: Vec<MessageId>,
}

impl Child {
    async fn go_on(&mut self) -> Result<()> {
        loop {
            self.submit(200, 0..4_000).await?;
            self.change().await?;
        }
    }

    async fn submit(&mut self, count: usize, millis: std::ops::Range<u64>) -> Result<()> {
        for first in (0..count).step_by(BATCH) {
            let now = Timestamp::from(SystemTime::now());
            let batch: Vec<_> = (first..count.min(first + BATCH))
                .map(|_| {
                    let delay = self.dice.random_range(millis.clone());
                    self.message(now + Duration::from_millis(delay))
                })
                .collect();
            let answers = self.delays.submit(batch).await;
            let mut accepted = Vec::with_capacity(answers.len());
            for answer in answers {
                accepted.push(answer?);
            }
            let told = accepted
                .iter()
                .map(|one| (one.id.as_str(), What::Accepted(one.due.as_millis())));
            self.pen.write(told)?;
            self.recent.extend(accepted.into_iter().map(|one| one.id));
        }
        Ok(())
    }

    fn message(&mut self, due: Timestamp) -> Submission {
        self.count += 1;
        let number = self.count;
        let target = if number.is_multiple_of(2) {
            Target::bus("orders", format!("key-{}", number % 100), "Due")
        } else {
            Target::callback(format!("http://host-{}.example/", number % 7))
        };
        let submission = Submission::new("t", When::At(due), target).payload(vec![b'x'; 128]);
        match MessageId::new(format!("m{}-{number}", self.owner)) {
            Ok(id) => submission.id(id),
            Err(_) => submission,
        }
    }

    /// Moves some messages and takes some back, which may be too late.
    async fn change(&mut self) -> Result<()> {
        for _ in 0..40 {
            if self.recent.is_empty() {
                return Ok(());
            }
            let index = self.dice.random_range(0..self.recent.len());
            let id = self.recent.swap_remove(index);
            self.pen.write([(id.as_str(), What::Asked)])?;
            let what = if self.dice.random_bool(0.5) {
                match self.delays.withdraw(&id).await {
                    Ok(_) => What::Withdrawn,
                    Err(Error::Refused(_)) => What::Refused,
                    Err(error) => return Err(error.into()),
                }
            } else {
                let by = Duration::from_millis(self.dice.random_range(1..2_000));
                match self.delays.extend(&id, Extend::By(by)).await {
                    Ok(message) => What::Extended(message.record.due().as_millis()),
                    Err(Error::Refused(_)) => What::Refused,
                    Err(error) => return Err(error.into()),
                }
            };
            self.pen.write([(id.as_str(), what)])?;
        }
        self.recent.truncate(10_000);
        Ok(())
    }

    async fn drain(&mut self) -> Result<()> {
        loop {
            let counts = self.delays.counts();
            let left: u64 = counts.values().map(|one| one.scheduled + one.firing).sum();
            if left == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.delays.close(Duration::from_secs(10)).await?;
        println!("{DONE}");
        Ok(())
    }
}
