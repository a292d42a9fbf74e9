//! NATS servers.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::group::server::{Plan, Server, free_ports, program};

/// Where tests and we are told the program.
const PROGRAM: &str = "LANEWAY_TEST_NATS_BIN";

const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A server by itself.
pub(super) fn alone(folder: &Path) -> Result<Server> {
    let mut server = not_started(folder)?;
    server.start()?;
    Ok(server)
}

/// A server by itself, for later.
pub(super) fn not_started(folder: &Path) -> Result<Server> {
    let [port] = free_ports()?;
    let plan = plan("alone", &program("nats", PROGRAM)?, folder, port, "")?;
    Ok(Server::new(plan))
}

/// Three servers that replicate.
pub(super) fn cluster(folder: &Path) -> Result<Vec<Server>> {
    let program = program("nats", PROGRAM)?;
    let ports: [u16; 6] = free_ports()?;
    let (client_ports, cluster_ports) = ports.split_at(3);
    let routes: Vec<String> = cluster_ports
        .iter()
        .map(|port| format!("\"nats://127.0.0.1:{port}\""))
        .collect();
    let routes = routes.join(", ");
    let mut plans = Vec::new();
    for (number, (port, cluster_port)) in client_ports.iter().zip(cluster_ports).enumerate() {
        let config = format!(
            "cluster {{ name: faults, listen: \"127.0.0.1:{cluster_port}\", routes: [{routes}] }}"
        );
        let name = format!("node-{}", number + 1);
        plans.push(plan(&name, &program, folder, *port, &config)?);
    }
    Server::start_all(plans)
}

fn plan(name: &str, program: &Path, parent: &Path, port: u16, more: &str) -> Result<Plan> {
    let folder = parent.join(name);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let store = folder.join("store").display().to_string();
    let config = format!(
        "server_name: {name}\nlisten: \"127.0.0.1:{port}\"\njetstream {{ store_dir: {store:?} }}\n{more}\n"
    );
    let file = folder.join("nats.conf");
    fs::write(&file, config)?;
    Ok(Plan {
        name: name.to_owned(),
        program: program.to_owned(),
        arguments: vec!["--config".into(), file.into()],
        folder,
        port,
        answers: |server| answers(server.port()).is_ok(),
    })
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
