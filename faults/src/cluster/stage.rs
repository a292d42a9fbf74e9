//! The servers and all processes of the cluster, and how they are broken and healed.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;

use super::ledger::{Millis, now};
use super::member::Member;
use super::plan::{Fault, Role, Step, Who};
use super::program::program;
use super::stack::{Servers, Stack};
use crate::frame::Run;
use crate::group::Way;
use crate::group::life::Entrance;
use crate::group::server::some_free_ports;

/// Into how many parts messages are split.
pub(super) const SHARDS: u32 = 4;

/// How long a center may be silent: it is the same on all stacks, so that faults last as long.
pub(super) const SESSION: Duration = Duration::from_secs(3);

/// How long a fault is felt after it was healed: a session and what a takeover takes.
const FELT: Millis = 5_000;

/// When something was broken.
#[derive(Debug, Clone)]
pub(super) struct Window {
    pub(super) from: Millis,
    pub(super) healed: Millis,
    /// Whether it ended in good order: nothing is in doubt after that.
    pub(super) is_graceful: bool,
}

impl Window {
    /// Whether it is felt at some time between the two.
    pub(super) fn touches(&self, from: Millis, until: Millis) -> bool {
        self.from <= until && from <= self.healed + FELT
    }
}

/// A process, and the way on which it reaches servers and others reach it.
struct Actor {
    who: Who,
    member: Member,
    way: Way,
}

/// All of it.
pub(super) struct Stage {
    pub(super) servers: Servers,
    actors: Vec<Actor>,
    pub(super) windows: Vec<Window>,
    /// What ended without being told to, or not in good order when it was.
    pub(super) fell: Vec<String>,
}

impl Stage {
    /// Starts everything, and waits until all of it is ready.
    pub(super) fn start(run: &mut Run, stack: Stack, folder: &Path) -> Result<Self> {
        let program = program(&crate::life::program()?)?;
        let count = Role::ALL.iter().map(|role| role.count()).sum();
        let settings = format!("?session_ms={}", SESSION.as_millis());
        let (servers, reached) = Servers::reached_by(stack, folder, count, &settings)?;
        let mut ports = some_free_ports(2 * count)?.into_iter();
        let mut port = || ports.next().unwrap_or_default();
        let mut reached = reached.into_iter();
        let mut actors = Vec::new();
        let who = Role::ALL.map(|role| (0..role.count()).map(move |number| (role, number)));
        for (who, reached) in who.into_iter().flatten().zip(&mut reached) {
            let (role, number) = who;
            let name = format!("{}-{}", role.name(), number + 1);
            let roles = match role {
                Role::Receive => "receive,admin",
                role => role.name(),
            };
            let rpc = format!("127.0.0.1:{}", port());
            let entrance = Entrance::new()?;
            let told = format!("127.0.0.1:{}", entrance.port()?);
            let mut arguments = reached.arguments;
            arguments.extend(
                [
                    "--roles",
                    roles,
                    "--shards",
                    &SHARDS.to_string(),
                    "--rpc-listen",
                    &rpc,
                    "--rpc-address",
                    &told,
                ]
                .map(str::to_owned),
            );
            let mut entrances = reached.entrances;
            entrances.push((entrance, rpc));
            let home = folder.join(&name);
            let mut member = Member::new(program.clone(), home, name, port(), arguments)?;
            if run.is_full()
                && role != Role::Receive
                && let Err(error) = member.have_a_clock()
            {
                run.note(format_args!("clocks stay as they are: {error:#}"));
            }
            actors.push(Actor {
                who,
                member,
                way: Way::open(entrances)?,
            });
        }
        let mut stage = Self {
            servers,
            actors,
            windows: Vec::new(),
            fell: Vec::new(),
        };
        for actor in &mut stage.actors {
            actor.member.start()?;
        }
        stage.wait_ready()?;
        Ok(stage)
    }

    /// Where clients can ask.
    pub(super) fn receives(&self) -> Vec<u16> {
        let receives = self.actors.iter();
        let receives = receives.filter(|actor| actor.who.0 == Role::Receive);
        receives.map(|actor| actor.member.port).collect()
    }

    fn wait_ready(&mut self) -> Result<()> {
        for actor in &mut self.actors {
            actor.member.wait_ready()?;
        }
        Ok(())
    }

    fn of(&mut self, who: impl Fn(&Who) -> bool) -> Vec<&mut Member> {
        let actors = self.actors.iter_mut();
        let wanted = actors.filter(|actor| who(&actor.who));
        wanted.map(|actor| &mut actor.member).collect()
    }

    /// What has ended by itself is noted and started again.
    fn pick_up(&mut self, run: &mut Run) -> Result<()> {
        for Actor { member, .. } in &mut self.actors {
            if member.has_ended() {
                let words = member.last_words();
                run.note(format_args!("{} has ended by itself: {words}", member.name));
                self.fell
                    .push(format!("{} has ended by itself", member.name));
                member.kill()?;
                member.start()?;
                member.wait_ready()?;
            }
        }
        Ok(())
    }

    /// Breaks something, and heals it.
    pub(super) fn take(&mut self, run: &mut Run, step: &Step) -> Result<()> {
        thread::sleep(step.after);
        self.pick_up(run)?;
        run.note(step);
        let from = now();
        let Step { fault, away, .. } = step;
        match fault {
            Fault::Kill(who) => self.kill(|it| it == who, *away, |_| Ok(()))?,
            Fault::LoseViews(number) => {
                let who = (Role::Center, *number);
                self.kill(|it| *it == who, *away, Member::lose_views)?;
            }
            Fault::KillAll(role) => self.kill(|(it, _)| it == role, *away, |_| Ok(()))?,
            Fault::Freeze(who) => {
                for member in self.of(|it| it == who) {
                    member.signal(Signal::STOP)?;
                    thread::sleep(*away);
                    member.signal(Signal::CONT)?;
                }
            }
            Fault::Roll(who) => self.roll(run, who, *away)?,
            Fault::KillServer => {
                self.servers.log.kill()?;
                thread::sleep(*away);
                self.servers.log.start()?;
            }
            Fault::KillRegistry => {
                let registry = self.servers.registry()?;
                registry.kill()?;
                thread::sleep(*away);
                registry.start()?;
            }
            Fault::KillEverything => self.kill_everything(*away)?,
            Fault::Cut(who) => {
                for actor in self.actors.iter().filter(|actor| actor.who == *who) {
                    actor.way.cut();
                    thread::sleep(*away);
                    actor.way.mend();
                }
            }
            Fault::Clock(who, seconds) => {
                self.kill(|it| it == who, Duration::ZERO, |it| it.set_clock(*seconds))?;
                thread::sleep(*away);
                for member in self.of(|it| it == who) {
                    member.set_clock(0)?;
                }
            }
        }
        self.windows.push(Window {
            from,
            healed: now(),
            is_graceful: matches!(fault, Fault::Roll(_)),
        });
        Ok(())
    }

    fn roll(&mut self, run: &mut Run, who: &Who, away: Duration) -> Result<()> {
        let mut fell = Vec::new();
        for member in self.of(|it| it == who) {
            if !member.stop()? {
                let words = member.last_words();
                run.note(format_args!("{} did not stop well: {words}", member.name));
                fell.push(format!("{} did not stop in good order", member.name));
            }
            thread::sleep(away);
            member.start()?;
            member.wait_ready()?;
        }
        self.fell.extend(fell);
        Ok(())
    }

    fn kill(
        &mut self,
        who: impl Fn(&Who) -> bool,
        away: Duration,
        between: impl Fn(&Member) -> Result<()>,
    ) -> Result<()> {
        let mut killed = self.of(who);
        for member in &mut killed {
            member.kill()?;
        }
        thread::sleep(away);
        for member in &mut killed {
            between(member)?;
            member.start()?;
        }
        for member in &mut killed {
            member.wait_ready()?;
        }
        Ok(())
    }

    fn kill_everything(&mut self, away: Duration) -> Result<()> {
        for member in self.of(|_| true) {
            member.kill()?;
        }
        for server in self.servers.all() {
            server.kill()?;
        }
        thread::sleep(away);
        for server in self.servers.all() {
            server.start()?;
        }
        for member in self.of(|_| true) {
            member.start()?;
        }
        self.wait_ready()
    }

    /// After the last fault: everything runs.
    pub(super) fn heal(&mut self, run: &mut Run) -> Result<()> {
        self.pick_up(run)?;
        self.wait_ready()
    }
}
