//! Kafka brokers.

use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::group::Way;
use crate::group::life::{Behind, Entrance};
use crate::group::server::{Plan, Server, free_ports, program, some_free_ports};
use crate::shell;

/// Where tests and we are told the program: it runs a class of Kafka.
const PROGRAM: &str = "LANEWAY_TEST_KAFKA_BIN";

const FORMAT_LIMIT: Duration = Duration::from_mins(2);

/// Any 16 bytes in URL-safe base64 will do.
const CLUSTER: &str = "TGFuZXdheUZhdWx0czAwMQ";

/// What a broker writes when it takes requests.
const STARTED: &str = "Kafka Server started";

/// A broker that is to be.
struct Node {
    id: usize,
    port: u16,
    /// If it is a controller, too.
    controller: Option<u16>,
    /// Where else it listens, and where those who come there are told to go.
    others: Vec<(u16, u16)>,
}

/// So many brokers, one or three, that replicate and are controllers, too; with settings of their own, a line each.
pub(super) fn start(folder: &Path, count: usize, settings: &str) -> Result<Vec<Server>> {
    let ports: [u16; 6] = free_ports()?;
    let pairs = &ports.as_chunks::<2>().0[..count];
    let voters: Vec<String> = (1..)
        .zip(pairs)
        .map(|(id, [_, controller])| format!("{id}@127.0.0.1:{controller}"))
        .collect();
    let voters = voters.join(",");
    let nodes = (1..)
        .zip(pairs)
        .map(|(id, [port, controller])| Node::new(id, *port, Some(*controller)));
    let plans = nodes.map(|node| node.plan(folder, &voters, count, settings));
    Server::start_all(plans.collect::<Result<_>>()?)
}

/// Two brokers that keep one copy of everything, to be started, and ways to both of them. The first one is the
/// controller.
pub(super) fn pair(folder: &Path, ways: usize, settings: &str) -> Result<(Vec<Server>, Vec<Way>)> {
    // These are taken for good, and so before the others, which are not.
    let mut entrances: Vec<_> = (0..2 * ways)
        .map(|_| Entrance::new())
        .collect::<Result<_>>()?;
    let mut ports = some_free_ports(3 + 2 * ways)?.into_iter();
    let mut port = || ports.next().context("there are enough");
    let controller = port()?;
    let mut nodes = [
        Node::new(1, port()?, Some(controller)),
        Node::new(2, port()?, None),
    ];
    let mut reached = Vec::new();
    for _ in 0..ways {
        let mut way = Vec::new();
        for node in &mut nodes {
            let entrance = entrances.pop().context("there are enough")?;
            let behind = port()?;
            node.others.push((behind, entrance.port()?));
            way.push((entrance, format!("127.0.0.1:{behind}")));
        }
        reached.push(Way::open(way)?);
    }
    let voters = format!("1@127.0.0.1:{controller}");
    let plans = nodes
        .iter()
        .map(|node| node.plan(folder, &voters, 1, settings));
    let servers = plans.map(|plan| Ok(Server::new(plan?)));
    Ok((servers.collect::<Result<_>>()?, reached))
}

/// One broker that is to be started, and so many entrances that lead to it, each with what is behind it.
pub(super) fn behind(folder: &Path, entrances: usize) -> Result<(Server, Vec<Behind>)> {
    // These are taken for good, and so before the others, which are not.
    let entrances: Vec<_> = (0..entrances)
        .map(|_| Entrance::new())
        .collect::<Result<_>>()?;
    let mut ports = some_free_ports(2 + entrances.len())?.into_iter();
    let mut port = || ports.next().context("there are enough");
    let (own, controller) = (port()?, port()?);
    let mut node = Node::new(1, own, Some(controller));
    let mut behind = Vec::new();
    for entrance in entrances {
        let port = port()?;
        node.others.push((port, entrance.port()?));
        behind.push((entrance, format!("127.0.0.1:{port}")));
    }
    let plan = node.plan(folder, &format!("1@127.0.0.1:{controller}"), 1, "")?;
    Ok((Server::new(plan), behind))
}

impl Node {
    fn new(id: usize, port: u16, controller: Option<u16>) -> Self {
        Self {
            id,
            port,
            controller,
            others: Vec::new(),
        }
    }

    /// Formats its disk. There are so many copies of everything.
    fn plan(&self, folder: &Path, voters: &str, copies: usize, settings: &str) -> Result<Plan> {
        let (id, port) = (self.id, self.port);
        let program = program("kafka", PROGRAM)?;
        let folder = folder.join(format!("node-{id}"));
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let data = folder.join("data").display().to_string();
        let in_sync = copies.div_ceil(2);
        let properties = format!(
            "node.id={id}\n{}\n\
             controller.listener.names=CONTROLLER\ncontroller.quorum.voters={voters}\n\
             log.dirs={data}\ndefault.replication.factor={copies}\n\
             min.insync.replicas={in_sync}\noffsets.topic.replication.factor={copies}\n\
             offsets.topic.num.partitions=4\ngroup.initial.rebalance.delay.ms=0\n\
             group.min.session.timeout.ms=1000\nbroker.session.timeout.ms=3000\n\
             broker.heartbeat.interval.ms=500\nlog.cleaner.dedupe.buffer.size=8388608\n{settings}",
            self.listeners()
        );
        let file = folder.join("server.properties");
        fs::write(&file, properties)?;
        format(&program, &file, &folder)?;
        Ok(Plan {
            name: format!("node {id}"),
            program,
            arguments: vec!["kafka.Kafka".into(), file.into()],
            folder,
            port,
            answers,
        })
    }

    fn listeners(&self) -> String {
        let mut listeners = vec![format!("PLAINTEXT://127.0.0.1:{}", self.port)];
        let mut advertised = listeners.clone();
        let mut protocols = vec!["PLAINTEXT:PLAINTEXT".to_owned()];
        for (number, (port, told)) in self.others.iter().enumerate() {
            listeners.push(format!("WAY{number}://127.0.0.1:{port}"));
            advertised.push(format!("WAY{number}://127.0.0.1:{told}"));
            protocols.push(format!("WAY{number}:PLAINTEXT"));
        }
        protocols.push("CONTROLLER:PLAINTEXT".to_owned());
        let mut roles = "broker";
        if let Some(controller) = self.controller {
            roles = "broker,controller";
            listeners.push(format!("CONTROLLER://127.0.0.1:{controller}"));
        }
        format!(
            "process.roles={roles}\nlisteners={}\nadvertised.listeners={}\n\
             listener.security.protocol.map={}",
            listeners.join(","),
            advertised.join(","),
            protocols.join(",")
        )
    }
}

fn format(program: &PathBuf, properties: &Path, folder: &Path) -> Result<()> {
    let mut format = Command::new(program);
    format
        .args(["kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER])
        .arg("--config")
        .arg(properties)
        .stderr(File::create(folder.join("format"))?);
    let formatted = shell::run(&mut format, FORMAT_LIMIT)?;
    ensure!(formatted.status.success(), "formatting: {}", formatted.text);
    Ok(())
}

/// Its log says that it has started, as often as it was.
fn answers(server: &Server) -> bool {
    server.log().matches(STARTED).count() >= server.starts()
        && TcpStream::connect(("127.0.0.1", server.port())).is_ok()
}
