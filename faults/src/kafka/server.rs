//! Kafka brokers that can be killed and started again, with what they had stored.

use std::env;
use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use crate::group::{Server, free_ports};
use crate::shell::{self, wait_until};

/// Where tests and we are told the program: it runs a class of Kafka.
const PROGRAM: &str = "LANEWAY_TEST_KAFKA_BIN";

/// The first time it may have to be downloaded.
const FETCH_LIMIT: Duration = Duration::from_mins(10);
const FORMAT_LIMIT: Duration = Duration::from_mins(2);
const START_LIMIT: Duration = Duration::from_mins(2);

/// Any 16 bytes in URL-safe base64 will do.
const CLUSTER: &str = "TGFuZXdheUZhdWx0czAwMQ";

/// What a broker writes when it takes requests.
const STARTED: &str = "Kafka Server started";

/// One broker, which is a controller, too.
pub struct KafkaServer {
    name: String,
    program: PathBuf,
    folder: PathBuf,
    port: u16,
    /// How often it was started: its log says so as often.
    starts: usize,
    process: Option<Child>,
}

/// So many brokers, one or three, that replicate.
pub(super) fn start(folder: &Path, count: usize) -> Result<Vec<KafkaServer>> {
    let program = program()?;
    let ports: [u16; 6] = free_ports()?;
    let pairs = &ports.as_chunks::<2>().0[..count];
    let voters: Vec<String> = (1..)
        .zip(pairs)
        .map(|(id, [_, controller])| format!("{id}@127.0.0.1:{controller}"))
        .collect();
    let mut servers = Vec::new();
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
             broker.heartbeat.interval.ms=500\nlog.cleaner.dedupe.buffer.size=8388608\n",
            voters.join(",")
        );
        fs::write(folder.join("server.properties"), properties)?;
        let mut format = Command::new(&program);
        format
            .args(["kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER])
            .arg("--config")
            .arg(folder.join("server.properties"))
            .stderr(File::create(folder.join("format"))?);
        let formatted = shell::run(&mut format, FORMAT_LIMIT)?;
        ensure!(formatted.status.success(), "formatting: {}", formatted.text);
        servers.push(KafkaServer {
            name: format!("node {id}"),
            program: program.clone(),
            folder,
            port: *port,
            starts: 0,
            process: None,
        });
    }
    for server in &mut servers {
        server.spawn()?;
    }
    for server in &mut servers {
        server.wait()?;
    }
    Ok(servers)
}

impl KafkaServer {
    fn log(&self) -> String {
        let log = fs::read(self.folder.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn spawn(&mut self) -> Result<()> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.folder.join("log"))?;
        let process = Command::new(&self.program)
            .current_dir(&self.folder)
            .arg("kafka.Kafka")
            .arg(self.folder.join("server.properties"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        self.process = Some(process);
        self.starts += 1;
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        let answered = wait_until(START_LIMIT, || {
            match self.process.as_mut().map(Child::try_wait) {
                Some(Ok(None)) => {
                    let has_started = self.log().matches(STARTED).count() >= self.starts;
                    let answers =
                        has_started && TcpStream::connect(("127.0.0.1", self.port)).is_ok();
                    answers.then_some(Ok(()))
                }
                _ => Some(Err(anyhow!("{} has ended", self.name))),
            }
        });
        let answered = answered.and_then(|answered| {
            answered.with_context(|| format!("{} does not answer", self.name))
        });
        answered.with_context(|| {
            let log = self.log();
            let from = log.len().saturating_sub(2000);
            format!("its log ends with:\n{}", log.get(from..).unwrap_or(&log))
        })
    }
}

impl Server for KafkaServer {
    fn name(&self) -> &str {
        &self.name
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn start(&mut self) -> Result<()> {
        self.spawn()?;
        self.wait()
    }

    fn kill(&mut self) -> Result<()> {
        let mut process = self.process.take().context("it does not run")?;
        process.kill()?;
        process.wait()?;
        Ok(())
    }
}

impl Drop for KafkaServer {
    fn drop(&mut self) {
        if self.process.is_some() {
            let _ = self.kill();
        }
    }
}

/// The program: the one that is named, or the one that `cargo xtask services` has.
fn program() -> Result<PathBuf> {
    if let Some(program) = env::var_os(PROGRAM) {
        return Ok(program.into());
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .args(["xtask", "services", "run", "--only", "kafka", "--"])
        .args(["printenv", PROGRAM]);
    let output = shell::run(&mut command, FETCH_LIMIT)?;
    let program = output.text.trim();
    ensure!(
        output.status.success() && !program.is_empty(),
        "there is no Kafka: set {PROGRAM}"
    );
    Ok(program.into())
}
