//! A process in the life of a group. As [`group::child`](crate::group::child), but it can be told things, and there are
//! some that change topics, some that look at them, and some that cannot make up their minds.
//!
//! It is this program once more, with `life-child` as its first argument. What it is told comes as lines on its
//! standard input; it comes to its end when that does.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use laneway::testing::history::History;
use laneway::topic::{Growth, Retention, Strategy, Topic};
use laneway::{Bus, Error};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::super::child::{CLOSE_WITHIN, DONE, live_out};
use super::member::handle;
use super::publisher::Publisher;
use crate::life::MOVES;

/// The first argument that makes this program the child.
pub const ARGUMENT: &str = "life-child";

/// Everything is settled, and nothing is published until it is told to go on.
pub(super) const RESTING: &str = "resting";

/// What a publisher can be told.
pub(super) const REST: &str = "rest";
pub(super) const GO_ON: &str = "go on";
/// What a member can be told: whether it fails in all that can be parked.
pub(super) const SICK: &str = "sick";
pub(super) const WELL: &str = "well";

/// Events that become dead letters when they fail again and again, which they do not.
pub(super) const ORDERS: &str = "orders";
/// Events whose keys are parked when they fail, which some do.
pub(super) const VISITS: &str = "visits";
/// Messages that run at most once.
pub(super) const PINGS: &str = "pings";
pub(super) const GROUP: &str = "default";

const PINGS_PARTITIONS: u32 = 4;
const VISITS_PARTITIONS: u32 = 4;

/// A change of a topic is refused while somebody may read it; members that were killed are silent first.
const CHANGED_WITHIN: Duration = Duration::from_mins(3);
const RELEASE_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// For so long whoever looks looks.
const LOOKS_FOR: Duration = Duration::from_secs(3);

/// What a child does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Task {
    /// Publishes. In the end it waits until everything is handled.
    Publish,
    /// Handles, and fails once in a while. In the end it leaves the group.
    Handle,
    /// Gives up subscribing several times, somewhere on the way, before it handles.
    Waver,
    /// Is a member for a moment, so that brokers have made what they keep groups in.
    Warm,
    /// Declares all topics, that of orders with as many partitions as its number says.
    Declare,
    /// Makes the topic of orders anew, with as many partitions as its number says.
    Remake,
    /// Lets the topic of orders grow to as many partitions as its number says, and that of visits by one.
    Grow,
    /// Releases all keys that are parked, until none is.
    Release,
    /// Looks topics up in every way there is, whatever comes of it.
    Look,
}

#[derive(Debug, Parser)]
pub(super) struct Arguments {
    #[arg(value_enum)]
    pub(super) task: Task,
    /// Of the servers.
    url: String,
    /// What happened in all lives.
    pub(super) history: PathBuf,
    /// The number of this life.
    pub(super) owner: u64,
    /// A seed, or a number of partitions.
    pub(super) number: u64,
}

/// While this file is there, beside the history, every event can be handled.
pub(super) fn cure(history: &Path) -> PathBuf {
    history.with_extension("cure")
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
    let told = commands();
    let history = Arc::new(History::append_to(&arguments.history)?);
    let bus = Bus::open(&arguments.url).await?;
    match arguments.task {
        Task::Publish => {
            let publisher = Publisher::new(&bus, history, arguments.owner, arguments.number);
            Arc::new(publisher).live(told).await?;
        }
        Task::Handle | Task::Waver => handle(&bus, history, &arguments, told).await?,
        Task::Warm => warm(&bus).await?,
        Task::Declare | Task::Remake | Task::Grow => {
            timeout(CHANGED_WITHIN, change(&bus, &arguments)).await??;
        }
        Task::Release => release(&bus).await?,
        Task::Look => look(&bus).await,
    }
    bus.close(CLOSE_WITHIN).await?;
    println!("{DONE}");
    Ok(())
}

/// How much is left to do.
#[derive(Default)]
pub(super) struct Left(Option<u64>);

impl Left {
    /// Tells if there is less than ever before.
    pub(super) fn are(&mut self, count: u64) {
        if self.0.is_none_or(|least| count < least) {
            self.0 = Some(count);
            println!("{MOVES}");
        }
    }
}

/// What it is told, line by line.
fn commands() -> mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    receiver
}

async fn warm(bus: &Bus) -> Result<()> {
    bus.declare(&domain("warm", 1)?).await?;
    let subscription = bus.subscribe_envelope("warm", |_| async { Ok(()) }).await?;
    subscription.close(CLOSE_WITHIN).await;
    Ok(())
}

fn domain(name: &str, partitions: u32) -> Result<Topic> {
    let topic = Topic::domain(name).partitions(partitions);
    Ok(topic.retention(Retention::FOREVER).build()?)
}

async fn change(bus: &Bus, arguments: &Arguments) -> Result<()> {
    let orders = domain(ORDERS, u32::try_from(arguments.number)?)?;
    match arguments.task {
        Task::Grow => {
            let known = bus.describe(VISITS).await?;
            let visits = known.map_or(0, |visits| visits.partitions().get()) + 1;
            grow(bus, &domain(VISITS, visits)?).await?;
            grow(bus, &orders).await?;
        }
        Task::Remake => {
            delete(bus, ORDERS).await?;
            bus.declare(&orders).await?;
        }
        _ => {
            bus.declare(&orders).await?;
            bus.declare(&domain(VISITS, VISITS_PARTITIONS)?).await?;
            let pings = Topic::plain(PINGS).partitions(PINGS_PARTITIONS).build()?;
            bus.declare(&pings).await?;
        }
    }
    Ok(())
}

async fn grow(bus: &Bus, topic: &Topic) -> Result<()> {
    loop {
        let growing = bus.declare_with(topic, Strategy::CreateOrUpdate, Growth::Forced);
        match growing.await {
            Ok(_) => return Ok(()),
            Err(error) => wait_for_members("growing", error).await?,
        }
    }
}

async fn delete(bus: &Bus, topic: &str) -> Result<()> {
    loop {
        match bus.delete(topic).await {
            Ok(()) => return Ok(()),
            Err(error) => wait_for_members("deleting", error).await?,
        }
    }
}

/// What brokers refuse they refuse for a while: because of members that left a moment ago, or were killed.
async fn wait_for_members(what: &str, error: Error) -> Result<()> {
    let Error::Broker(error) = error else {
        return Err(error.into());
    };
    eprintln!("{what}: {error}; it is tried again");
    sleep(Duration::from_millis(200)).await;
    Ok(())
}

async fn release(bus: &Bus) -> Result<()> {
    let parked = bus.parked(VISITS).await?;
    let mut asked: HashMap<_, Instant> = HashMap::new();
    let mut left = Left::default();
    loop {
        let letters = parked.list(usize::MAX).await?;
        if letters.is_empty() {
            return Ok(());
        }
        left.are(letters.len() as u64);
        let keys = letters
            .into_iter()
            .filter_map(|letter| Some((letter.group, letter.key?)));
        for (group, key) in keys {
            // One that failed meanwhile stays parked. To ask all the time would only be in the way.
            let last = asked.get(&key);
            if last.is_some_and(|last| last.elapsed() < RELEASE_AGAIN_AFTER) {
                continue;
            }
            match parked.release(&group, &key).await {
                Ok(()) | Err(Error::NotParked { .. }) => {}
                Err(error) => eprintln!("releasing {key}: {error}; it is tried again"),
            }
            asked.insert(key, Instant::now());
        }
        sleep(Duration::from_millis(100)).await;
    }
}

async fn look(bus: &Bus) {
    let until = Instant::now() + LOOKS_FOR;
    while Instant::now() < until {
        for topic in [ORDERS, VISITS, PINGS] {
            let _ = timeout(LOOKS_FOR, bus.backlog(topic, GROUP)).await;
            let _ = timeout(LOOKS_FOR, bus.describe(topic)).await;
        }
        let _ = timeout(LOOKS_FOR, bus.topics()).await;
        sleep(Duration::from_millis(100)).await;
    }
}
