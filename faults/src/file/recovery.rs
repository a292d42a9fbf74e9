//! A bus on disk that holds a lot is killed, and opened again.
//!
//! What must hold: with ten million events it opens within two seconds, and everything is there.
//! Another one has many topics; how long that takes is told, too. It depends on the disk: the files
//! of each topic are looked at, and old ones removed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use laneway::testing::history::History;

use super::child::{self, Amount, Task};
use super::stage::Stage;
use crate::frame::Run;
use crate::verdict::Verdict;

/// Its name on the command line.
pub const NAME: &str = "recovery";
/// What it breaks.
pub const ABOUT: &str = "kill -9 of a bus with ten million events (--full): open again within 2 s";

const OPENS: u64 = 3;
const OPEN_LIMIT: Duration = Duration::from_mins(2);
const STOCK_LIMIT: Duration = Duration::from_mins(9);
/// How long opening may take, in milliseconds.
const PROMISED_MS: u64 = 2000;

/// Runs it.
///
/// # Errors
///
/// If processes cannot be started or killed, or do not do what they should.
pub fn run(run: &mut Run) -> Result<Verdict> {
    let (events, topics) = if run.is_full() {
        (10_000_000, 800)
    } else {
        (200_000, 20)
    };
    let many_events = Amount { topics: 1, events };
    let many_topics = Amount {
        topics,
        events: topics * 1000,
    };
    run.announce(&[
        format!("store {events} events in one topic, kill -9, open"),
        format!("store 1000 events in each of {topics} topics, kill -9, open"),
    ]);
    let one = measure(run, many_events)?;
    let many = measure(run, many_topics)?;
    let late = one.took_ms.iter().filter(|took| **took > PROMISED_MS);
    let late = late.count() as u64;
    let verdict = Verdict::new().and("one topic", one.verdict(events));
    let verdict = verdict.must_be("one topic: opens that took more than 2 s", late, 0);
    let name = format!("{topics} topics");
    Ok(verdict.and(&name, many.verdict(many_topics.events)))
}

/// What came of opening again and again.
#[derive(Default)]
struct Opened {
    took_ms: Vec<u64>,
    /// How many found every event.
    complete: u64,
}

impl Opened {
    fn verdict(&self, events: u64) -> Verdict {
        let took = |ms: Option<&u64>| ms.copied().unwrap_or(0);
        Verdict::new()
            .count("events", events)
            .must_be("opens that found all of them", self.complete, OPENS)
            .count("first open in ms", took(self.took_ms.first()))
            .count("slowest open in ms", took(self.took_ms.iter().max()))
    }
}

fn measure(run: &mut Run, amount: Amount) -> Result<Opened> {
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    let (directory, file) = (folder.path().join("bus"), folder.path().join("history"));
    let history = History::append_to(&file)?;
    let stage = Stage {
        directory: &directory,
        history: &file,
        namespace: None,
    };
    let began = Instant::now();
    let mut life = stage.begin_with(Task::Stock, 1, amount)?;
    life.hear(child::DONE, STOCK_LIMIT)?;
    let took = began.elapsed().as_secs_f64();
    let Amount { events, .. } = amount;
    run.note(format_args!("stored {events} events in {took:.1} s"));
    life.kill(&history)?;

    let mut all = Opened::default();
    for owner in 2..2 + OPENS {
        let mut life = stage.begin_with(Task::Count, owner, amount)?;
        let took: u64 = life.hear(child::READY, OPEN_LIMIT)?.parse()?;
        let found: u64 = life.hear(child::DONE, OPEN_LIMIT)?.parse()?;
        life.kill(&history)?;
        run.note(format_args!("opened in {took} ms with {found} events"));
        all.took_ms.push(took);
        all.complete += u64::from(found == events);
    }
    Ok(all)
}
