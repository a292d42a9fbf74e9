//! The life of a group: whatever can happen to one happens, in an order that dice choose.
//!
//! Members join, leave, are killed, frozen, cut off from the servers while their handlers fail, and give up subscribing
//! halfway. The server is killed and started again, and where there are two (Kafka), some partitions have no leader
//! for a while. Strangers publish what is no event, or no message that a client can read. Keys are parked, and released by
//! another process. Topics grow, also with keys that are parked, and are made anew with another number of partitions,
//! while the publisher lives on; and a broker that forgets idle groups (Kafka) forgets this one while events wait for
//! it. There are three topics: one of events that are retried, one of events that are parked, and one of plain messages.
//!
//! What must hold: every event that was acknowledged is handled in the end, in order per key and by one owner
//! at a time; no plain message runs twice; and nothing is stuck: whenever the publisher rests, all that it published is
//! settled soon, and whatever is released is handled.
//!
//! Brokers refuse that a topic grows or is deleted while somebody reads it, so members leave first.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `plan` | what happens |
//! | [`child`], `publisher`, `member` | the processes |
//! | `way` | [`Way`]: how members reach servers |

pub mod child;
mod member;
mod plan;
mod publisher;
mod way;

use std::collections::{HashSet, VecDeque};
use std::fs;
use std::mem::discriminant;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rand::RngExt;

use self::child::{GO_ON, ORDERS, REST, RESTING, SICK, Task, WELL, cure};
use self::plan::{MOST, Planner, SHAPES, Step};
pub use self::way::Way;
pub(crate) use self::way::{Behind, Entrance};
use super::Broker;
use super::child::{DONE, READY, arguments};
use super::server::Server;
use super::stage::Stage;
use crate::frame::Run;
use crate::life::Life;
use crate::verdict::Verdict;

const READY_LIMIT: Duration = Duration::from_mins(3);
/// What is published is settled, and what is released is handled, when things are well again. If nothing of it is for so
/// long, something is stuck. How long all of it takes depends on how busy the machine is.
const MOVES_WITHIN: Duration = Duration::from_mins(2);
const CHANGED_WITHIN: Duration = Duration::from_mins(4);

/// Servers and history begin anew after this long, so that a long run can be judged.
const GENERATION: Duration = Duration::from_mins(8);

/// Brokers that are killed are missed within this, and their partitions have no leader then.
const MISSED_WITHIN: Duration = Duration::from_millis(4_500);

/// Lets groups live, one after the other, until the time is up or one is broken.
///
/// # Errors
///
/// If servers or processes cannot be handled as planned.
pub fn run<B: Broker>(run: &mut Run) -> Result<Verdict> {
    let until = Instant::now() + run.lifetime();
    let mut verdict = Verdict::new();
    for number in 1.. {
        run.note(format_args!("group {number}"));
        let end = until.min(Instant::now() + GENERATION);
        verdict = verdict.plus(live::<B>(run, end)?);
        if !verdict.passes() || Instant::now() >= until {
            break;
        }
    }
    Ok(verdict)
}

/// One group, from its first member to its last.
fn live<B: Broker>(run: &mut Run, until: Instant) -> Result<Verdict> {
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    let lease = B::LEAST_SILENCE.max(if run.is_full() { 2_000 } else { 1_000 });
    let mut group = Group::begin::<B>(run, folder.path(), &B::silence(lease))?;
    let mut planner = Planner::new(group.members.len(), lease);
    let mut kinds = HashSet::new();
    let mut steps = VecDeque::new();
    let mut taken = 0;
    let mut trouble = None;
    while trouble.is_none() && Instant::now() < until {
        let Some(step) = steps.pop_front() else {
            steps.extend(planner.round::<B>(run.dice()));
            run.announce(steps.make_contiguous());
            continue;
        };
        taken += 1;
        kinds.insert(discriminant(&step));
        trouble = group.step::<B>(&step).err();
        trouble = trouble.map(|error| error.context(step.to_string()));
        run.note(format_args!("{step}: {} are there", group.members.len()));
        thread::sleep(Duration::from_millis(300));
    }
    let trouble = match trouble {
        Some(error) => Some(error),
        None => group.end().err(),
    };
    group.kill_all()?;
    let mut verdict = group
        .stage
        .story()?
        .judge_life(trouble.is_none())
        .count("steps", taken)
        .count("kinds of steps", kinds.len() as u64)
        .count("published by strangers", group.strange)
        .must_be("stuck", u64::from(trouble.is_some()), 0);
    if let Some(error) = trouble {
        run.note(format_args!("{error:#}"));
        verdict = verdict.detail(format!("{error:#}"));
    }
    if !verdict.passes() {
        // To see what went wrong.
        let kept = run.journal().with_extension("history");
        fs::copy(group.stage.file(), &kept)?;
        verdict = verdict.detail(format!("all that happened is in {}", kept.display()));
    }
    Ok(verdict)
}

/// Members, and the ways by which they reach servers.
struct Group {
    stage: Stage,
    /// The first one has what the broker keeps about groups.
    servers: Vec<Server>,
    ways: Vec<Way>,
    publisher: Life,
    /// Each with the number of its way.
    members: Vec<(Life, usize)>,
    partitions: u32,
    strange: u64,
}

impl Group {
    fn begin<B: Broker>(run: &mut Run, folder: &Path, settings: &str) -> Result<Self> {
        let (mut servers, ways) = B::reached_by(folder, MOST)?;
        servers[0].start()?;
        let mut stage = Stage::new::<B>(folder, &servers[..1], settings)?;
        // Whatever the broker keeps about groups is where it does not get lost.
        task(&mut stage, Task::Warm, 0)?;
        for server in &mut servers[1..] {
            server.start()?;
        }
        task(&mut stage, Task::Declare, u64::from(SHAPES[0]))?;
        // They read from now on, so the first one is there before anything is published.
        let mut member = begin(&mut stage, Task::Handle, 0, Some((&servers[0], &ways[0])))?;
        member.hear(READY, READY_LIMIT)?;
        let publisher = begin(&mut stage, Task::Publish, run.dice().random(), None)?;
        let mut group = Self {
            stage,
            servers,
            ways,
            publisher,
            members: vec![(member, 0)],
            partitions: SHAPES[0],
            strange: 0,
        };
        group.join(Task::Handle, 0)?;
        group.publisher.hear(READY, READY_LIMIT)?;
        Ok(group)
    }

    fn join(&mut self, task: Task, seed: u64) -> Result<()> {
        let is_free = |way: &usize| self.members.iter().all(|(_, taken)| taken != way);
        let Some(number) = (0..self.ways.len()).find(is_free) else {
            bail!("there is no way for another one");
        };
        let way = Some((&self.servers[0], &self.ways[number]));
        let mut member = begin(&mut self.stage, task, seed, way)?;
        member
            .hear(READY, READY_LIMIT)
            .context("a member that joins")?;
        self.members.push((member, number));
        Ok(())
    }

    fn step<B: Broker>(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Join => self.join(Task::Handle, 0)?,
            Step::Waver(seed) => self.join(Task::Waver, *seed)?,
            Step::Leave(place) => Stage::leave(self.members.remove(*place).0)?,
            Step::Kill(place) => {
                let (mut member, _) = self.members.remove(*place);
                member.kill(self.stage.history())?;
                self.join(Task::Handle, 0)?;
            }
            Step::Freeze(place, time) => {
                let (member, _) = &mut self.members[*place];
                member.stop()?;
                thread::sleep(*time);
                self.stage.history().crashed(member.owner());
                member.wake()?;
            }
            Step::Cut(place, time) => self.cut(*place, *time)?,
            Step::Server(away) => {
                self.servers[0].kill()?;
                thread::sleep(*away);
                self.servers[0].start()?;
            }
            Step::Leaderless => self.lose_leaders()?,
            Step::Strangers(seed) => {
                self.strange += B::strange(&self.servers, ORDERS, self.partitions, *seed)?;
            }
            Step::Release => self.release()?,
            Step::Grow(partitions) => {
                self.change(Task::Grow, *partitions)?;
                // What was parked before is where its keys have been.
                self.release()?;
            }
            Step::Remake(partitions) => self.change(Task::Remake, *partitions)?,
            Step::Forget => self.forget::<B>()?,
        }
        Ok(())
    }

    /// Cuts a member off whose handlers fail from then on, as they do that need what it is cut off from. The others take
    /// over what it has, and all is settled before it comes back.
    fn cut(&mut self, place: usize, time: Duration) -> Result<()> {
        let (member, way) = &mut self.members[place];
        let way = *way;
        member.tell(SICK)?;
        self.ways[way].cut();
        thread::sleep(time);
        if self.members.len() > 1 {
            self.rest()?;
            self.publisher.tell(GO_ON)?;
        }
        self.ways[way].mend();
        self.members[place].0.tell(WELL)
    }

    /// Some partitions have no leader, and everybody looks.
    fn lose_leaders(&mut self) -> Result<()> {
        // What is settled must not come again.
        self.rest()?;
        self.publisher.tell(GO_ON)?;
        for server in &mut self.servers[1..] {
            server.kill()?;
        }
        thread::sleep(MISSED_WITHIN);
        let mut looking = begin(&mut self.stage, Task::Look, 0, None)?;
        looking.hear(DONE, READY_LIMIT)?;
        for server in &mut self.servers[1..] {
            server.start()?;
        }
        Ok(())
    }

    /// The broker forgets the group when nobody has been there for long. What is published meanwhile is read all the
    /// same.
    fn forget<B: Broker>(&mut self) -> Result<()> {
        self.rest()?;
        let count = self.members.len();
        self.dismiss()?;
        self.publisher.tell(GO_ON)?;
        thread::sleep(Duration::from_millis(500));
        B::forget(&self.servers[0], ORDERS)?;
        for _ in 0..count {
            self.join(Task::Handle, 0)?;
        }
        Ok(())
    }

    /// Another process releases all that is parked, while whatever can be handled is.
    fn release(&mut self) -> Result<()> {
        let cure = cure(self.stage.file());
        fs::write(&cure, "")?;
        task(&mut self.stage, Task::Release, 0).context("what is parked is not released")?;
        Ok(fs::remove_file(&cure)?)
    }

    /// Changes topics. The publisher knows nothing of it.
    fn change(&mut self, change: Task, partitions: u32) -> Result<()> {
        self.rest()?;
        let count = self.members.len();
        self.dismiss()?;
        task(&mut self.stage, change, u64::from(partitions))?;
        self.partitions = partitions;
        for _ in 0..count {
            self.join(Task::Handle, 0)?;
        }
        self.publisher.tell(GO_ON)
    }

    /// Lets all members leave.
    fn dismiss(&mut self) -> Result<()> {
        for (member, _) in self.members.drain(..) {
            Stage::leave(member)?;
        }
        Ok(())
    }

    /// Waits until all that was published is settled; nothing more is, until the publisher is told to go on.
    fn rest(&mut self) -> Result<()> {
        self.publisher.tell(REST)?;
        let resting = self.publisher.hear_while_moving(RESTING, MOVES_WITHIN);
        resting.context("what was published is not settled: something is stuck")?;
        Ok(())
    }

    /// Handles all that is left, in peace.
    fn end(&mut self) -> Result<()> {
        fs::write(cure(self.stage.file()), "")?;
        task(&mut self.stage, Task::Release, 0).context("what is parked is not released")?;
        self.publisher.dismiss();
        let done = self.publisher.hear_while_moving(DONE, MOVES_WITHIN);
        done.context("what is left is not handled: something is stuck")?;
        self.dismiss()
    }

    fn kill_all(&mut self) -> Result<()> {
        self.publisher.finish()?;
        for (member, _) in &mut self.members {
            member.finish()?;
        }
        Ok(())
    }
}

/// Has a process do something, and end.
fn task(stage: &mut Stage, task: Task, number: u64) -> Result<()> {
    let mut doing = begin(stage, task, number, None)?;
    if task == Task::Release {
        doing.hear_while_moving(DONE, MOVES_WITHIN)?;
    } else {
        doing.hear(DONE, CHANGED_WITHIN)?;
    }
    ensure!(doing.end(READY_LIMIT)?.success(), "{task:?} failed");
    Ok(())
}

fn begin(stage: &mut Stage, task: Task, number: u64, way: Option<(&Server, &Way)>) -> Result<Life> {
    stage.begin_as(|url, file, owner| {
        let url = match way {
            Some((server, way)) => url.replace(&server.address(), way.address()),
            None => url.to_owned(),
        };
        arguments(child::ARGUMENT, &task, &url, file, owner, number)
    })
}
