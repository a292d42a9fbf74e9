//! Kafka brokers, each of which is a controller, too.

use std::fs::{self, File};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::group::server::{Plan, Server, free_ports, program};
use crate::shell;

/// Where tests and we are told the program: it runs a class of Kafka.
const PROGRAM: &str = "LANEWAY_TEST_KAFKA_BIN";

const FORMAT_LIMIT: Duration = Duration::from_mins(2);

/// Any 16 bytes in URL-safe base64 will do.
const CLUSTER: &str = "TGFuZXdheUZhdWx0czAwMQ";

/// What a broker writes when it takes requests.
const STARTED: &str = "Kafka Server started";

/// So many brokers, one or three, that replicate; with settings of their own, a line each.
pub(super) fn start(folder: &Path, count: usize, settings: &str) -> Result<Vec<Server>> {
    let program = program("kafka", PROGRAM)?;
    let ports: [u16; 6] = free_ports()?;
    let pairs = &ports.as_chunks::<2>().0[..count];
    let voters: Vec<String> = (1..)
        .zip(pairs)
        .map(|(id, [_, controller])| format!("{id}@127.0.0.1:{controller}"))
        .collect();
    let mut plans = Vec::new();
    for (id, [port, controller]) in (1..).zip(pairs) {
        let folder = folder.join(format!("node-{id}"));
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let data = folder.join("data").display().to_string();
        let in_sync = count.div_ceil(2);
        let properties = format!(
            "process.roles=broker,controller\nnode.id={id}\n\
             listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n\
             controller.listener.names=CONTROLLER\ncontroller.quorum.voters={}\n\
             log.dirs={data}\ndefault.replication.factor={count}\n\
             min.insync.replicas={in_sync}\noffsets.topic.replication.factor={count}\n\
             offsets.topic.num.partitions=4\ngroup.initial.rebalance.delay.ms=0\n\
             group.min.session.timeout.ms=1000\nbroker.session.timeout.ms=3000\n\
             broker.heartbeat.interval.ms=500\nlog.cleaner.dedupe.buffer.size=8388608\n{settings}",
            voters.join(",")
        );
        let file = folder.join("server.properties");
        fs::write(&file, properties)?;
        let mut format = Command::new(&program);
        format
            .args(["kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER])
            .arg("--config")
            .arg(&file)
            .stderr(File::create(folder.join("format"))?);
        let formatted = shell::run(&mut format, FORMAT_LIMIT)?;
        ensure!(formatted.status.success(), "formatting: {}", formatted.text);
        plans.push(Plan {
            name: format!("node {id}"),
            program: program.clone(),
            arguments: vec!["kafka.Kafka".into(), file.into()],
            folder,
            port: *port,
            answers,
        });
    }
    Server::start_all(plans)
}

/// Its log says that it has started, as often as it was.
fn answers(server: &Server) -> bool {
    server.log().matches(STARTED).count() >= server.starts()
        && TcpStream::connect(("127.0.0.1", server.port())).is_ok()
}
