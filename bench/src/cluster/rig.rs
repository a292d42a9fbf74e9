//! The processes of a cluster, and its servers.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use laneway_faults::cluster::{Member, Servers, Stack, program};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::client::Client;
use crate::bus::place;

/// How long the cluster may take to settle.
const SETTLED_WITHIN: Duration = Duration::from_mins(2);

const PAUSE: Duration = Duration::from_millis(100);

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Receive,
    Center,
    Worker,
}

impl Role {
    pub(super) const ALL: [Self; 3] = [Self::Receive, Self::Center, Self::Worker];

    fn name(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::Center => "center",
            Self::Worker => "worker",
        }
    }

    /// What the process is told.
    fn roles(self) -> &'static str {
        match self {
            Self::Receive => "receive,admin",
            role => role.name(),
        }
    }

    fn count(self) -> usize {
        match self {
            Self::Receive | Self::Center => 2,
            Self::Worker => 3,
        }
    }
}

/// A cluster. Dropped, it is killed, processes first.
pub(super) struct Rig {
    members: Vec<(Role, Member)>,
    servers: Servers,
    stack: Stack,
    _folder: TempDir,
}

impl Rig {
    /// Starts everything, and waits until it is whole.
    pub(super) async fn start(stack: Stack) -> Result<Self> {
        let rig = block_in_place(|| Self::start_all(stack))?;
        rig.wait_whole(Role::Center.count(), Role::Worker.count())
            .await?;
        Ok(rig)
    }

    fn start_all(stack: Stack) -> Result<Self> {
        let program = program(&this()?)?;
        let folder = place::folder()?;
        let servers = Servers::start(stack, folder.path())?;
        let mut members = Vec::new();
        for role in Role::ALL {
            for number in 1..=role.count() {
                let name = format!("{}-{number}", role.name());
                let mut arguments = servers.arguments();
                arguments
                    .extend(["--roles", role.roles(), "--log-level", "warn"].map(str::to_owned));
                let home = folder.path().join(&name);
                let member = Member::new(program.clone(), home, name, free_port()?, arguments)?;
                members.push((role, member));
            }
        }
        for (_, member) in &mut members {
            member.start()?;
        }
        for (_, member) in &mut members {
            member.wait_ready()?;
        }
        Ok(Self {
            members,
            servers,
            stack,
            _folder: folder,
        })
    }

    pub(super) fn stack(&self) -> Stack {
        self.stack
    }

    /// The address of the log, for a bus.
    pub(super) fn log(&self) -> String {
        self.servers.address()
    }

    /// A connection to one of the receives, each in turn.
    pub(super) async fn client(&self, number: usize) -> Result<Client> {
        let receives: Vec<u16> = self.of(Role::Receive).map(|member| member.port).collect();
        let port = receives.get(number % receives.len().max(1));
        Client::connect(*port.context("there is no receive")?).await
    }

    fn of(&self, role: Role) -> impl Iterator<Item = &Member> {
        let members = self.members.iter().filter(move |(it, _)| *it == role);
        members.map(|(_, member)| member)
    }

    /// Kills one with signal 9.
    pub(super) fn kill(&mut self, role: Role, number: usize) -> Result<()> {
        block_in_place(|| self.nth(role, number)?.kill())
    }

    /// Tells one to stop, and waits until it has.
    pub(super) fn stop(&mut self, role: Role, number: usize) -> Result<()> {
        block_in_place(|| self.nth(role, number)?.stop().map(drop))
    }

    /// Removes the view of a center that does not run.
    pub(super) fn lose_views(&mut self, number: usize) -> Result<()> {
        block_in_place(|| self.nth(Role::Center, number)?.lose_views())
    }

    /// Starts one again, and does not wait.
    pub(super) fn resume(&mut self, role: Role, number: usize) -> Result<()> {
        self.nth(role, number)?.start()
    }

    fn nth(&mut self, role: Role, number: usize) -> Result<&mut Member> {
        let mut members = self.members.iter_mut().filter(|(it, _)| *it == role);
        let member = members.nth(number).map(|(_, member)| member);
        member.with_context(|| format!("there is no {} {number}", role.name()))
    }

    /// CPU time of all processes of a role so far.
    pub(super) fn cpu(&self, role: Role) -> Result<Duration> {
        let pids = self.of(role).filter_map(Member::pid);
        pids.map(cpu_of).sum()
    }

    /// Waits until all shards have owners, so many centers, and each of those has so many workers.
    pub(super) async fn wait_whole(&self, centers: usize, workers: usize) -> Result<()> {
        let deadline = Instant::now() + SETTLED_WITHIN;
        loop {
            let cluster = self.look().await;
            if cluster
                .as_ref()
                .is_ok_and(|cluster| is_whole(cluster, centers, workers))
            {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("the cluster is not whole in time: {cluster:?}");
            }
            sleep(PAUSE).await;
        }
    }

    /// Waits until all shards have owners; answers when that was.
    pub(super) async fn wait_owned(&self, limit: Duration) -> Result<Instant> {
        let deadline = Instant::now() + limit;
        loop {
            if let Ok(cluster) = self.look().await
                && owners(&cluster).iter().all(Option::is_some)
            {
                return Ok(Instant::now());
            }
            if Instant::now() > deadline {
                bail!("shards have no owner after {limit:?}");
            }
            sleep(PAUSE / 2).await;
        }
    }

    async fn look(&self) -> Result<Value> {
        let mut client = self.client(0).await?;
        let text = client.get("/v1/cluster").await?;
        serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))
    }

    /// How many submits the centers have taken from the intake since they started.
    pub(super) async fn taken(&self) -> Result<u64> {
        let mut sum = 0;
        for center in self.of(Role::Center).filter(|it| it.pid().is_some()) {
            let mut client = Client::connect(center.port).await?;
            let figures = client.get("/metrics").await?;
            let name = "laneway_center_accepted_total ";
            let line = figures.lines().find_map(|line| line.strip_prefix(name));
            let count = line.and_then(|line| line.trim().parse::<u64>().ok());
            sum += count.context("a center does not say how many it has taken")?;
        }
        Ok(sum)
    }

    /// Waits until the centers have taken so many.
    pub(super) async fn wait_taken(&self, count: u64, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let taken = self.taken().await?;
            if taken >= count {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("the centers have taken {taken} of {count} messages after {limit:?}");
            }
            sleep(PAUSE / 2).await;
        }
    }
}

fn this() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find this program")
}

fn owners(cluster: &Value) -> Vec<Option<&str>> {
    let shards = cluster["shards"].as_array().into_iter().flatten();
    shards.map(|shard| shard["owner"].as_str()).collect()
}

fn is_whole(cluster: &Value, centers: usize, workers: usize) -> bool {
    let owners = owners(cluster);
    let names: std::collections::BTreeSet<&str> = owners.iter().copied().flatten().collect();
    let clocks = cluster["clocks"].as_array().into_iter().flatten();
    let connected = clocks.filter(|clock| clock["is_connected"] == true).count();
    !owners.is_empty()
        && owners.iter().all(Option::is_some)
        && names.len() == centers
        && connected >= centers * workers
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// CPU time of a process, in user and in system mode.
fn cpu_of(pid: u32) -> Result<Duration> {
    // In hundredths of a second on all Linux systems that there are.
    const TICK: Duration = Duration::from_millis(10);
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Fields are counted from behind the name, which is in parentheses and may contain anything.
    let (_, rest) = stat.rsplit_once(") ").context("no name in stat")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks = |field: usize| fields.get(field).and_then(|text| text.parse::<u32>().ok());
    let sum = ticks(11).zip(ticks(12)).map(|(user, system)| user + system);
    Ok(TICK * sum.context("no times in stat")?)
}
