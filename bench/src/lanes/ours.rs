//! The lanes engine as a contender.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use laneway::lanes::{Drain, Engine, Failure, Handler, Job, Jobs, LaneBy, Options};
use tokio::sync::Notify;

use super::WORKERS;
use crate::frame::Sample;
use crate::workload::{Event, Work, Workload};

/// What an event counts for in the engine's bounds.
const BYTES: usize = 128;

/// An event with its key, as a job. The key is borrowed, as it would be from a record: a counted
/// reference to the workload would have two cores write to the same counter for every event, which no
/// other contender has to do.
struct Keyed {
    event: Event,
    workload: &'static Workload,
}

impl Job for Keyed {
    fn key(&self) -> Option<&str> {
        Some(self.workload.key(self.event))
    }

    fn bytes(&self) -> usize {
        BYTES
    }
}

/// Checks the order of every key while it works.
struct Checking<W> {
    work: W,
    next: Vec<AtomicU32>,
    violations: AtomicU64,
    until: Until,
}

/// When a measurement is over.
enum Until {
    /// When the engine is done with everything; the handler need not count, as it need not for others.
    Quiet,
    /// When the events of all keys but key 0 are handled.
    OthersDone { left: AtomicUsize, done: Notify },
}

impl<W: Fn(u32) -> Work + Send + Sync + 'static> Checking<W> {
    fn new(workload: &Workload, work: W, until: Until) -> Arc<Self> {
        Arc::new(Self {
            work,
            next: (0..workload.keys.len())
                .map(|_| AtomicU32::new(0))
                .collect(),
            violations: AtomicU64::new(0),
            until,
        })
    }
}

struct Handling<W>(Arc<Checking<W>>);

impl<W: Fn(u32) -> Work + Send + Sync + 'static> Handler<Keyed> for Handling<W> {
    async fn handle(&self, jobs: Jobs<'_, Keyed>) -> Result<(), Failure> {
        let event = jobs.first().event;
        let next = &self.0.next[event.key as usize];
        if next.load(Ordering::Relaxed) != event.sequence {
            self.0.violations.fetch_add(1, Ordering::Relaxed);
        }
        (self.0.work)(event.key).run().await;
        // Stored after the work: an event that overlaps the one before it is a violation too.
        next.store(event.sequence + 1, Ordering::Relaxed);
        if let Until::OthersDone { left, done } = &self.0.until
            && event.key != 0
            && left.fetch_sub(1, Ordering::Relaxed) == 1
        {
            done.notify_one();
        }
        Ok(())
    }
}

/// How long it takes to bring all events through the engine.
pub(super) async fn run<W>(workload: Arc<Workload>, lane_by: LaneBy, work: W) -> Result<Sample>
where
    W: Fn(u32) -> Work + Send + Sync + Copy + 'static,
{
    let count = workload.events.len();
    let no_op = work(0) == Work::Nothing;
    let (elapsed, violations) = measure(workload, lane_by, work, Until::Quiet).await?;
    let sample = if no_op {
        Sample::rate(count, elapsed)
    } else {
        Sample::time(elapsed)
    };
    Ok(sample.count("order_violations", violations))
}

/// How long it takes until all events but those of key 0 are handled.
pub(super) async fn others<W>(workload: Arc<Workload>, lane_by: LaneBy, work: W) -> Result<Sample>
where
    W: Fn(u32) -> Work + Send + Sync + 'static,
{
    let others = workload.events.iter().filter(|event| event.key != 0);
    let until = Until::OthersDone {
        left: AtomicUsize::new(others.count()),
        done: Notify::new(),
    };
    let (elapsed, violations) = measure(workload, lane_by, work, until).await?;
    Ok(Sample::time(elapsed).count("order_violations", violations))
}

async fn measure<W>(
    workload: Arc<Workload>,
    lane_by: LaneBy,
    work: W,
    until: Until,
) -> Result<(Duration, u64)>
where
    W: Fn(u32) -> Work + Send + Sync + 'static,
{
    let engine = Engine::start(Options::default().workers(WORKERS).lane_by(lane_by))?;
    let checking = Checking::new(&workload, work, until);
    let intake = engine.topic("bench", Handling(Arc::clone(&checking)))?;

    // A handle is leaked for each measurement, not the workload.
    let workload: &'static Workload = Box::leak(Box::new(workload));

    let started = Instant::now();
    for &event in &workload.events {
        intake.submit(Keyed { event, workload }).await?;
    }
    match &checking.until {
        Until::Quiet => intake.quiet().await,
        Until::OthersDone { done, .. } => done.notified().await,
    }
    let elapsed = started.elapsed();

    if matches!(checking.until, Until::Quiet) {
        let handled = checking
            .next
            .iter()
            .map(|next| next.load(Ordering::Relaxed));
        let handled: usize = handled.map(|count| count as usize).sum();
        ensure!(handled == workload.events.len(), "events were lost");
    }
    engine.close(Drain::Running, Duration::from_secs(5)).await;
    Ok((elapsed, checking.violations.load(Ordering::Relaxed)))
}
