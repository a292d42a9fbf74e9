//! Runs a case on the engine and judges it.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use laneway::testing::history::{self, Attempt, History, Rules};
use laneway_lanes::{
    CloseReport, Disposition, Drain, Engine, Failure, Handler, Intake, Job, Jobs, LaneBy, Outcome,
    Refusal, Scope, SubmitError,
};
use tokio::task::JoinSet;

use super::case::{Case, Clock, Mishap, Pace, Plan, Submit};

/// No case takes longer.
const PATIENCE: Duration = Duration::from_mins(3);

/// Jobs are submitted by so many tasks, all jobs of a key by the same one.
const SUBMITTERS: usize = 3;

/// Says what is wrong with the case, if anything is.
pub(crate) fn run(case: &Case) -> Result<(), String> {
    let mut builder = match case.clock {
        Clock::Paused => tokio::runtime::Builder::new_current_thread(),
        Clock::Real => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.enable_time();
    match case.clock {
        Clock::Paused => builder.start_paused(true),
        Clock::Real => builder.worker_threads(3),
    };
    let runtime = builder.build().map_err(|error| error.to_string())?;
    let world = Arc::new(World::new(case));
    let ran = runtime.block_on(async {
        tokio::time::timeout(PATIENCE, play(Arc::clone(&world)))
            .await
            .map_err(|_| format!("not over after {PATIENCE:?}"))
    });
    runtime.shutdown_background();
    let report = ran??;
    world.judge(&report)
}

/// What the tasks of a case share.
struct World {
    case: Case,
    history: History,
    /// What became of each plan.
    entries: Vec<Entry>,
    running: AtomicUsize,
    submits: AtomicUsize,
    wrong: Mutex<Vec<String>>,
}

#[derive(Default)]
struct Entry {
    accepted: AtomicUsize,
    tries: AtomicUsize,
    handovers: AtomicUsize,
    outcomes: Mutex<Vec<Outcome>>,
}

impl World {
    fn new(case: &Case) -> Self {
        Self {
            case: case.clone(),
            history: History::new(),
            entries: case.plans.iter().map(|_| Entry::default()).collect(),
            running: AtomicUsize::new(0),
            submits: AtomicUsize::new(0),
            wrong: Mutex::default(),
        }
    }

    fn wrong(&self, what: String) {
        lock(&self.wrong).push(what);
    }

    /// The name of a job's key in the history. A job without one has a key to itself.
    fn name(&self, id: usize) -> String {
        let plan = &self.case.plans[id];
        match plan.key {
            Some(key) => format!("{}/k{key}", plan.topic),
            None => format!("{}/-{id}", plan.topic),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Planned {
    id: usize,
    key: Option<String>,
    bytes: usize,
}

impl Job for Planned {
    fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

struct Player {
    world: Arc<World>,
}

impl Player {
    /// One job of an attempt. Answers false if the attempt ends here, at this job.
    async fn perform(&self, job: &Planned, place: usize) -> Result<(), Failure> {
        let world = &*self.world;
        let plan = &world.case.plans[job.id];
        let tried = world.entries[job.id].tries.fetch_add(1, Ordering::SeqCst);
        let attempt = Attempt {
            number: u32::try_from(tried + 1).unwrap_or(u32::MAX),
            ..Attempt::default()
        };
        let run = world
            .history
            .started(world.name(job.id), job.id as u64, attempt);
        match plan.pace {
            Pace::AtOnce => {}
            Pace::Yield => tokio::task::yield_now().await,
            Pace::Sleep => tokio::time::sleep(Duration::from_millis(1)).await,
        }
        let Some(mishap) = plan.mishaps.get(tried) else {
            run.finish(history::Outcome::Done);
            return Ok(());
        };
        match mishap {
            // A batch that panics or hangs cannot say how far it got, so it says so before.
            Mishap::Panic if place == 0 => resume_unwind(Box::new("planned")),
            Mishap::Hang if place == 0 => std::future::pending::<()>().await,
            _ => {}
        }
        run.finish(history::Outcome::Failed);
        let failure = match mishap {
            Mishap::Fatal => Failure::fatal("planned"),
            _ => Failure::new("planned"),
        };
        Err(failure.after(place))
    }
}

/// Counts the handlers that run.
struct Inside<'a>(&'a AtomicUsize);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Handler<Planned> for Player {
    fn batch(&self) -> NonZeroUsize {
        NonZeroUsize::new(self.world.case.batch).unwrap_or(NonZeroUsize::MIN)
    }

    async fn handle(&self, jobs: Jobs<'_, Planned>) -> Result<(), Failure> {
        let world = &*self.world;
        let now = world.running.fetch_add(1, Ordering::SeqCst) + 1;
        let _inside = Inside(&world.running);
        let case = &world.case;
        let most = match case.scope {
            Scope::Shared => case.workers,
            Scope::PerTopic => case.workers * case.topics,
        };
        if now > most {
            world.wrong(format!("{now} handlers run, and there are {most} workers"));
        }
        let first = jobs.first();
        let before = world.entries[first.id].tries.load(Ordering::SeqCst);
        if jobs.attempt() as usize != before + 1 {
            let attempt = jobs.attempt();
            world.wrong(format!(
                "job {} has attempt {attempt} after {before}",
                first.id
            ));
        }
        if jobs.iter().any(|job| job.key != first.key) {
            world.wrong(format!("the batch of job {} mixes keys", first.id));
        }
        for (place, job) in jobs.iter().enumerate() {
            self.perform(job, place).await?;
        }
        Ok(())
    }

    async fn exhausted(
        &self,
        job: &Planned,
        _failure: &Failure,
        attempts: u32,
    ) -> Result<Disposition, Failure> {
        let world = &*self.world;
        let entry = &world.entries[job.id];
        let tries = entry.tries.load(Ordering::SeqCst);
        if attempts as usize != tries {
            world.wrong(format!(
                "job {} is given up after {attempts}, not {tries}",
                job.id
            ));
        }
        let failed = entry.handovers.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        if failed < usize::from(world.case.plans[job.id].handover_failures) {
            return Err(Failure::new("planned, too"));
        }
        let name = world.name(job.id);
        let (disposition, outcome) = if job.id.is_multiple_of(2) {
            (Disposition::DeadLettered, history::Outcome::DeadLettered)
        } else {
            (Disposition::Parked, history::Outcome::Parked)
        };
        world.history.finished(name, job.id as u64, 0, outcome);
        Ok(disposition)
    }

    fn finished(&self, job: Planned, outcome: Outcome) {
        lock(&self.world.entries[job.id].outcomes).push(outcome);
    }
}

/// Submits everything, closes if the case says so, and waits until all is over.
async fn play(world: Arc<World>) -> Result<CloseReport, String> {
    let case = &world.case;
    let engine = Engine::start(case.options()).map_err(|error| error.to_string())?;
    let intakes: Arc<[Intake<Planned>]> = (0..case.topics)
        .map(|topic| {
            let player = Player {
                world: Arc::clone(&world),
            };
            engine.topic(&format!("t{topic}"), player)
        })
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())?;

    let mut submitters = JoinSet::new();
    for number in 0..SUBMITTERS {
        submitters.spawn(submit(Arc::clone(&world), Arc::clone(&intakes), number));
    }
    let mut report = CloseReport::default();
    if let Some(close) = case.close {
        while world.submits.load(Ordering::SeqCst) < close.after_submits.min(case.plans.len()) {
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        report = if close.only_first_topic {
            intakes[0].close(close.drain, close.deadline).await
        } else {
            engine.close(close.drain, close.deadline).await
        };
    }
    while let Some(submitter) = submitters.join_next().await {
        submitter.map_err(|error| error.to_string())?;
    }
    for intake in &*intakes {
        intake.quiet().await;
    }
    at_rest(&world, &engine);
    let rest = engine.close(Drain::Queued, PATIENCE).await;
    if !rest.is_clean() {
        return Err(format!("something was left after it was quiet: {rest:?}"));
    }
    Ok(report)
}

async fn submit(world: Arc<World>, intakes: Arc<[Intake<Planned>]>, number: usize) {
    for (id, plan) in world.case.plans.iter().enumerate() {
        if plan.key.map_or(id, usize::from) % SUBMITTERS != number {
            continue;
        }
        let intake = &intakes[plan.topic];
        let job = Planned {
            id,
            key: plan.key.map(|key| format!("k{key}")),
            bytes: plan.bytes,
        };
        let name = world.name(id);
        world.history.submitted(name.as_str(), id as u64);
        let answer = match plan.submit {
            Submit::IfRoom => intake.try_submit(job),
            Submit::Wait => intake.submit(job).await,
            Submit::WaitALittle => intake.submit_timeout(job).await,
        };
        match &answer {
            Ok(()) => {
                world.entries[id].accepted.store(1, Ordering::SeqCst);
                world.history.acked(name, id as u64);
            }
            Err(error) => {
                world.history.refused(name, id as u64);
                check_refusal(&world, id, plan, error);
            }
        }
        let (depth, total) = (intake.depth(), world.case.total);
        if depth.messages > total.messages || depth.bytes > total.bytes {
            world.wrong(format!("a topic holds {depth:?} of {total:?}"));
        }
        world.submits.fetch_add(1, Ordering::SeqCst);
        if id.is_multiple_of(4) {
            tokio::task::yield_now().await;
        }
    }
}

fn check_refusal(world: &World, id: usize, plan: &Plan, error: &SubmitError<Planned>) {
    if error.job.id != id {
        world.wrong(format!("job {id} comes back as {}", error.job.id));
    }
    let sensible = match error.reason {
        Refusal::QueueFull(_) => !matches!(plan.submit, Submit::Wait),
        Refusal::Closed => world.case.close.is_some(),
        Refusal::TooLarge { bytes, largest } => bytes == plan.bytes && bytes > largest,
        _ => false,
    };
    if !sensible {
        world.wrong(format!("job {id} was refused: {:?}", error.reason));
    }
}

/// When all is quiet, nothing is held and the figures say what happened.
fn at_rest(world: &World, engine: &Engine) {
    let stats = engine.stats();
    for topic in &stats.topics {
        if topic.depth.messages + topic.depth.bytes + topic.lanes + topic.backing_off > 0 {
            world.wrong(format!("something is held at rest: {topic:?}"));
        }
    }
    if world.case.close.is_none() {
        let done: u64 = stats.topics.iter().map(|topic| topic.processed).sum();
        let expected = world
            .entries
            .iter()
            .filter(|entry| lock(&entry.outcomes).contains(&Outcome::Done))
            .count() as u64;
        if done != expected {
            world.wrong(format!(
                "{done} processed by the figures, {expected} in truth"
            ));
        }
    }
}

impl World {
    fn judge(&self, report: &CloseReport) -> Result<(), String> {
        let case = &self.case;
        let mut abandoned = 0;
        for (id, entry) in self.entries.iter().enumerate() {
            let accepted = entry.accepted.load(Ordering::SeqCst);
            let outcomes = lock(&entry.outcomes);
            if outcomes.len() != accepted {
                self.wrong(format!(
                    "job {id} was accepted {accepted} times and finished {outcomes:?}"
                ));
            }
            let Some(outcome) = outcomes.first() else {
                continue;
            };
            if *outcome == Outcome::Abandoned && case.close.is_some() {
                abandoned += 1;
                continue;
            }
            let fate = case.plans[id].fate(case.attempts);
            let done = *outcome == Outcome::Done;
            let tries = entry.tries.load(Ordering::SeqCst);
            if done != fate.done || tries != fate.tries {
                self.wrong(format!(
                    "job {id} ended as {outcome:?} after {tries} tries, not as {fate:?}"
                ));
            }
        }
        // Handlers that could not be stopped in time, by the real clock on a busy machine, are handed back later.
        let reported: usize = report.left.iter().map(|left| left.abandoned).sum();
        let stuck = match case.clock {
            Clock::Paused => 0,
            Clock::Real => report.left.iter().map(|left| left.stuck).sum(),
        };
        if !(reported..=reported + stuck).contains(&abandoned) {
            self.wrong(format!(
                "{abandoned} were abandoned, {reported} reported, and {stuck} as stuck"
            ));
        }
        let verdict = self.rules().check(self.history.records());
        if !verdict.is_ok() {
            self.wrong(verdict.to_string());
        }
        let wrong = lock(&self.wrong);
        if wrong.is_empty() {
            return Ok(());
        }
        Err(wrong.join("\n"))
    }

    fn rules(&self) -> Rules {
        let case = &self.case;
        let engines = match case.scope {
            Scope::Shared => 1,
            Scope::PerTopic => case.topics,
        };
        let mut rules = Rules::exactly_once()
            .max_running(case.workers * engines)
            .max_outstanding_per_key(case.lane_bound);
        if let LaneBy::Hash(lanes) = case.lane_by {
            rules = rules.lanes(shared_lanes(self, u64::from(lanes.get())));
        }
        match case.close {
            // What is handed back makes room, and is not finished.
            Some(_) => rules.undrained(),
            None => rules.max_outstanding(case.total.messages * engines),
        }
    }
}

/// Which keys of the history share a lane.
fn shared_lanes(world: &World, lanes: u64) -> impl Fn(&str) -> u64 + Send + Sync + use<> {
    let mut known = BTreeMap::new();
    for id in 0..world.case.plans.len() {
        let plan = &world.case.plans[id];
        let lane = match plan.key {
            Some(key) => {
                let hash = format!("k{key}")
                    .bytes()
                    .fold(0x811c_9dc5_u32, |hash, byte| {
                        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
                    });
                plan.topic as u64 * lanes + u64::from(hash) % lanes
            }
            None => 1_000_000 + id as u64,
        };
        known.insert(world.name(id), lane);
    }
    move |key| known.get(key).copied().unwrap_or(u64::MAX)
}
