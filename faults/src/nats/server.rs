//! NATS servers that can be killed and started again, with what they had stored.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, io};

use anyhow::{Context, Result, ensure};

use crate::group::{Server, free_ports};
use crate::shell::{self, wait_until};

/// Where tests and we are told the program.
const PROGRAM: &str = "LANEWAY_TEST_NATS_BIN";

/// The first time it may have to be downloaded.
const FETCH_LIMIT: Duration = Duration::from_mins(10);
const START_LIMIT: Duration = Duration::from_mins(1);
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// One server.
pub struct NatsServer {
    name: String,
    program: PathBuf,
    folder: PathBuf,
    port: u16,
    process: Option<Child>,
}

/// A server by itself.
pub(super) fn alone(folder: &Path) -> Result<NatsServer> {
    let [port] = free_ports()?;
    let mut server = NatsServer::new("alone", &program()?, folder, port, "")?;
    server.start()?;
    Ok(server)
}

/// Three servers that replicate.
pub(super) fn cluster(folder: &Path) -> Result<Vec<NatsServer>> {
    let program = program()?;
    let ports: [u16; 6] = free_ports()?;
    let (client_ports, cluster_ports) = ports.split_at(3);
    let routes: Vec<String> = cluster_ports
        .iter()
        .map(|port| format!("\"nats://127.0.0.1:{port}\""))
        .collect();
    let routes = routes.join(", ");
    let mut servers = Vec::new();
    for (number, (port, cluster_port)) in client_ports.iter().zip(cluster_ports).enumerate() {
        let config = format!(
            "cluster {{ name: faults, listen: \"127.0.0.1:{cluster_port}\", routes: [{routes}] }}"
        );
        let name = format!("node-{}", number + 1);
        servers.push(NatsServer::new(&name, &program, folder, *port, &config)?);
    }
    for server in &mut servers {
        server.spawn()?;
    }
    for server in &mut servers {
        server.wait()?;
    }
    Ok(servers)
}

impl NatsServer {
    fn new(name: &str, program: &Path, parent: &Path, port: u16, more: &str) -> Result<Self> {
        let folder = parent.join(name);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let store = folder.join("store").display().to_string();
        let config = format!(
            "server_name: {name}\nlisten: \"127.0.0.1:{port}\"\njetstream {{ store_dir: {store:?} }}\n{more}\n"
        );
        fs::write(folder.join("nats.conf"), config)?;
        Ok(Self {
            name: name.to_owned(),
            program: program.to_owned(),
            folder,
            port,
            process: None,
        })
    }

    fn spawn(&mut self) -> Result<()> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.folder.join("log"))?;
        let process = Command::new(&self.program)
            .arg("--config")
            .arg(self.folder.join("nats.conf"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        self.process = Some(process);
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        let answered = || match self.process.as_mut().map(Child::try_wait) {
            Some(Ok(None)) => answers(self.port).is_ok().then_some(Ok(())),
            _ => Some(Err(anyhow::anyhow!("{} has ended", self.name))),
        };
        let answered = wait_until(START_LIMIT, answered).and_then(|answered| {
            answered.with_context(|| format!("{} does not answer", self.name))
        });
        answered.with_context(|| {
            let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            let from = log.len().saturating_sub(2000);
            format!("its log ends with:\n{}", log.get(from..).unwrap_or(&log))
        })
    }
}

impl Server for NatsServer {
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

impl Drop for NatsServer {
    fn drop(&mut self) {
        if self.process.is_some() {
            let _ = self.kill();
        }
    }
}

/// Whether `JetStream` answers, with a stream that could be used.
fn answers(port: u16) -> io::Result<()> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.set_write_timeout(Some(ANSWER_LIMIT))?;
    let mut nats = BufReader::new(stream);
    let mut line = String::new();
    nats.read_line(&mut line)?;
    nats.get_mut().write_all(
        b"CONNECT {\"verbose\":false}\r\nSUB _INBOX.faults 1\r\nPUB $JS.API.INFO _INBOX.faults 0\r\n\r\n",
    )?;
    // The head of the answer, and then the answer.
    for expected in ["MSG ", "{\"type\":\"io.nats.jetstream"] {
        line.clear();
        nats.read_line(&mut line)?;
        if !line.starts_with(expected) || line.contains("\"error\"") {
            return Err(io::Error::other(line));
        }
    }
    Ok(())
}

/// The server program: the one that is named, or the one that `cargo xtask services` has.
fn program() -> Result<PathBuf> {
    if let Some(program) = env::var_os(PROGRAM) {
        return Ok(program.into());
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .args(["xtask", "services", "run", "--only", "nats", "--"])
        .args(["printenv", PROGRAM]);
    let output = shell::run(&mut command, FETCH_LIMIT)?;
    let program = output.text.trim();
    ensure!(
        output.status.success() && !program.is_empty(),
        "there is no nats-server: set {PROGRAM}"
    );
    Ok(program.into())
}
