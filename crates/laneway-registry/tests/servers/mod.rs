//! Servers of a test's own: they can be killed and started again.

#![allow(dead_code, reason = "each test program uses one of them")]

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Stopped and removed when it is dropped.
pub(crate) struct Server {
    arguments: Vec<String>,
    program: String,
    port: u16,
    directory: TempDir,
    process: Option<Child>,
}

impl Server {
    /// A nats-server with `JetStream`.
    pub(crate) fn nats(program: String) -> Self {
        Self::start(program, "nats.conf", |port, directory| {
            let store = directory.join("store").display().to_string();
            let config =
                format!("listen: 127.0.0.1:{port}\njetstream {{ store_dir: {store:?} }}\n");
            (config, vec!["--config".to_owned()])
        })
    }

    /// A `ZooKeeper` with short sessions.
    pub(crate) fn zookeeper(program: String) -> Self {
        Self::start(program, "zoo.cfg", |port, directory| {
            let config = format!(
                "dataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\ntickTime=200\n\
                 maxSessionTimeout=60000\nmaxClientCnxns=0\nadmin.enableServer=false\n",
                directory.display()
            );
            let class = "org.apache.zookeeper.server.ZooKeeperServerMain";
            (config, vec![class.to_owned()])
        })
    }

    fn start(
        program: String,
        file: &str,
        configure: impl FnOnce(u16, &Path) -> (String, Vec<String>),
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let directory = tempfile::tempdir().expect("a directory");
        let (config, mut arguments) = configure(port, directory.path());
        let file = directory.path().join(file);
        std::fs::write(&file, config).expect("a configuration");
        arguments.push(file.display().to_string());
        let mut server = Self {
            arguments,
            program,
            port,
            directory,
            process: None,
        };
        server.resume();
        server
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// Kills it, as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("it runs");
            process.wait().expect("it is gone");
        }
    }

    /// Starts it again where it was, and waits until it listens.
    pub(crate) fn resume(&mut self) {
        let log = std::fs::File::create(self.log()).expect("a log");
        let process = Command::new(&self.program)
            .args(&self.arguments)
            .current_dir(self.directory.path())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the server starts");
        self.process = Some(process);
        let deadline = Instant::now() + Duration::from_mins(1);
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err() {
            let log = || std::fs::read_to_string(self.log()).unwrap_or_default();
            assert!(Instant::now() < deadline, "it does not start: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
