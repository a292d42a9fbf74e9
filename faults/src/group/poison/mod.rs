//! One event is poison: its handler never comes to an end, or fails whenever it is tried. A great many
//! events are behind it.
//!
//! Three members handle them, one after the other. The first one is killed in the middle, with the
//! poisonous event stuck; the second one has it stuck, too, and is killed when it has done all that it can;
//! for the third one it fails, and becomes a dead letter.
//!
//! What must hold:
//!
//! - All others are handled, in order per key, while it is stuck: those of other partitions to the last
//!   one, those of its own up to `MOST_PAST` of them. Then its partition is read no further.
//! - The commit moves meanwhile. What is done past the stuck one travels with it, so the next member
//!   does not run it again: nothing, if the last one had come to rest.
//! - When it is a dead letter, the rest of its partition is handled, and nothing is left.
//! - Memory stays below `MOST_MEMORY`, however many there are.

pub mod child;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use laneway::Bus;
use laneway::topic::{Partitions, partition_of};
use tokio::runtime::Runtime;

use self::child::Task;
use super::Broker;
use super::child::{DONE, READY, arguments};
use super::stage::Stage;
use crate::frame::Run;
use crate::verdict::Verdict;

const TOPIC: &str = "orders";
const GROUP: &str = "default";
const PARTITIONS: u32 = 8;
const KEYS: u64 = 1000;

/// The poisonous one. It is the first of all.
const POISON: (&str, u64) = ("poison", 1);

/// Later ones of its key wait for it, whatever happens.
const WAITING: u64 = 10;

/// A partition is read no further than so many events from its lowest unsettled one on: what the
/// guides promise.
const MOST_PAST: u64 = 100_000;

/// For a member, of which the build is for debugging: most of it is fetched ahead, up to 8 MiB for each
/// partition, and as much again while it is decoded.
const MOST_MEMORY: u64 = 400 << 20;

const PUBLISHED_WITHIN: Duration = Duration::from_mins(10);
const HANDLED_WITHIN: Duration = Duration::from_mins(10);
const BITTEN_WITHIN: Duration = Duration::from_mins(1);

/// Long enough that a member that could go on would have.
const STILL: Duration = Duration::from_secs(3);
const GLANCE: Duration = Duration::from_millis(100);

/// All events in the order in which they are published, by key and number.
fn all(behind: u64) -> impl Iterator<Item = (Arc<str>, u64)> {
    let keys: Vec<Arc<str>> = (0..KEYS).map(|key| format!("key-{key}").into()).collect();
    let (poison, first) = POISON;
    let poison: Arc<str> = poison.into();
    let of_its_key = (first..=first + WAITING).map(move |seq| (poison.clone(), seq));
    let others = (0..behind).map(move |number| {
        let key = usize::try_from(number % KEYS).unwrap_or_default();
        (keys[key].clone(), number / KEYS + 1)
    });
    of_its_key.chain(others)
}

/// What is unsettled in the partition of the poisonous event, and in all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Left {
    with_it: u64,
    elsewhere: u64,
}

/// Looks from outside how far the group is.
struct Observer {
    runtime: Runtime,
    bus: Bus,
    poisoned: u32,
}

impl Observer {
    fn new(url: &str) -> Result<Self> {
        let runtime = Runtime::new()?;
        let bus = runtime.block_on(Bus::open(url))?;
        let poisoned = partition_of(POISON.0, Partitions::new(PARTITIONS)?);
        Ok(Self {
            runtime,
            bus,
            poisoned,
        })
    }

    fn left(&self) -> Result<Left> {
        let backlog = self.bus.backlog(TOPIC, GROUP);
        let mut left = Left {
            with_it: 0,
            elsewhere: 0,
        };
        for lag in self.runtime.block_on(backlog)? {
            if lag.partition == self.poisoned {
                left.with_it += lag.records;
            } else {
                left.elsewhere += lag.records;
            }
        }
        Ok(left)
    }

    /// Waits until something is so.
    fn until(&self, what: &str, is_so: impl Fn(Left) -> bool) -> Result<()> {
        let deadline = Instant::now() + HANDLED_WITHIN;
        loop {
            let left = self.left()?;
            if is_so(left) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "not {what}: {left:?}");
            thread::sleep(GLANCE);
        }
    }

    /// How many dead letters there are, and whether they are what they should be.
    fn letters(&self) -> Result<(u64, bool)> {
        let letters = self.runtime.block_on(async {
            let dead = self.bus.dead_letters(TOPIC).await?;
            dead.list(10).await
        })?;
        let is_poison = letters
            .iter()
            .all(|letter| letter.key.as_deref() == Some(POISON.0));
        Ok((letters.len() as u64, is_poison))
    }
}

/// Runs it.
///
/// # Errors
///
/// If servers or processes cannot be handled as planned, or the members do not get as far as they should.
pub fn run<B: Broker>(run: &mut Run) -> Result<Verdict> {
    let behind = if run.is_full() { 1_000_000 } else { 20_000 };
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    run.announce(&[
        format!("{behind} events behind one that never comes to an end"),
        "kill -9 the member in the middle".to_owned(),
        "kill -9 the next one when it has done what it can".to_owned(),
        "the last one fails, and gives it up".to_owned(),
    ]);
    let servers = [B::alone(folder.path())?];
    let mut stage = Stage::new::<B>(
        folder.path(),
        &servers,
        &B::silence(B::LEAST_SILENCE.max(2_000)),
    )?;
    let begin = |stage: &mut Stage, task| {
        stage.begin_as(|url, history, owner| {
            arguments(child::ARGUMENT, &task, url, history, owner, behind)
        })
    };

    let mut publisher = begin(&mut stage, Task::Publish)?;
    publisher.hear(DONE, PUBLISHED_WITHIN)?;
    let observer = Observer::new(stage.url())?;
    let Left { with_it, elsewhere } = observer.left()?;
    let all = with_it + elsewhere;
    run.note(format_args!(
        "{with_it} events are in the partition of the poisonous one, {elsewhere} in others"
    ));

    // Stuck, and killed in the middle.
    let mut first = begin(&mut stage, Task::Stick)?;
    first.hear(child::BITTEN, BITTEN_WITHIN)?;
    observer.until("half of it done", |left| {
        left.with_it + left.elsewhere < all / 2
    })?;
    let mut memory = first.peak_memory()?;
    first.kill(stage.history())?;
    run.note("killed the first one in the middle");

    // Stuck, and killed when nothing more can be done.
    let mut second = begin(&mut stage, Task::Stick)?;
    second.hear(child::BITTEN, BITTEN_WITHIN)?;
    let stuck = Left {
        with_it: 1 + WAITING + with_it.saturating_sub(MOST_PAST),
        elsewhere: 0,
    };
    observer.until("done what can be done", |left| left == stuck)?;
    thread::sleep(STILL);
    let at_rest = observer.left()?;
    memory = memory.max(second.peak_memory()?);
    second.kill(stage.history())?;
    run.note("killed the second one when it was at rest");

    // Given up.
    let mut third = begin(&mut stage, Task::Fail)?;
    third.hear(READY, BITTEN_WITHIN)?;
    let nothing = Left {
        with_it: 0,
        elsewhere: 0,
    };
    observer.until("done", |left| left == nothing)?;
    memory = memory.max(third.peak_memory()?);
    let (letters, is_poison) = observer.letters()?;
    let (second, last) = (second.owner(), third.owner());
    Stage::leave(third)?;

    let story = stage.tell()?;
    Ok(story
        .judge()
        .must_be(
            "left in its partition while it was stuck",
            at_rest.with_it,
            stuck.with_it,
        )
        .must_be("left in other partitions", at_rest.elsewhere, 0)
        .count(
            "run again after a kill in the middle",
            story.run_again_by(second),
        )
        .must_be(
            "run again after a kill at rest",
            story.run_again_by(last),
            0,
        )
        .must_be("dead letters", letters, 1)
        .must_be("dead letters that are not it", u64::from(!is_poison), 0)
        .count("most memory of a member in MiB", memory >> 20)
        .must_be(
            "members over their memory",
            u64::from(memory > MOST_MEMORY),
            0,
        ))
}
