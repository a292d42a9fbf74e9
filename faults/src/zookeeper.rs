//! A server of `ZooKeeper`: the registry of a cluster whose log is on Kafka.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::group::Server;
use crate::group::server::{Plan, free_ports, program};

/// Where tests and we are told the program: it runs a class of `ZooKeeper`.
const PROGRAM: &str = "LANEWAY_TEST_ZOOKEEPER_BIN";

const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A server by itself, to be started.
pub(crate) fn not_started(folder: &Path) -> Result<Server> {
    let [port] = free_ports()?;
    let folder = folder.join("zookeeper");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let data = folder.join("data").display().to_string();
    let config = format!(
        "dataDir={data}\nclientPort={port}\nclientPortAddress=127.0.0.1\ntickTime=500\n\
         maxSessionTimeout=60000\nmaxClientCnxns=0\nadmin.enableServer=false\n\
         4lw.commands.whitelist=*\n"
    );
    let file = folder.join("zoo.cfg");
    fs::write(&file, config)?;
    Ok(Server::new(Plan {
        name: "zookeeper".to_owned(),
        program: program("zookeeper", PROGRAM)?,
        arguments: vec![
            "org.apache.zookeeper.server.ZooKeeperServerMain".into(),
            file.into(),
        ],
        folder,
        port,
        answers: |server| answers(server.port()).unwrap_or(false),
    }))
}

/// Whether it serves, and not only listens.
fn answers(port: u16) -> io::Result<bool> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.write_all(b"srvr")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.contains("Mode: "))
}
