//! A nats-server of a test's own: it can be killed, restarted and set up at will.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::ports;

/// Stopped and removed when it is dropped.
pub(crate) struct NatsServer {
    program: PathBuf,
    port: u16,
    directory: TempDir,
    process: Option<Child>,
}

impl NatsServer {
    /// Starts a server. `settings` are added to its configuration, which may name files in
    /// [`path`](Self::path).
    pub(crate) fn start(program: &str, settings: impl FnOnce(&Self) -> String) -> Self {
        let [port] = ports::free();
        let mut server = Self {
            program: program.into(),
            port,
            directory: tempfile::tempdir().expect("a directory"),
            process: None,
        };
        let store = server.path("store").display().to_string();
        let config = format!(
            "listen: 127.0.0.1:{port}\njetstream {{ store_dir: {store:?} }}\n{}\n",
            settings(&server)
        );
        std::fs::write(server.path("nats.conf"), config).expect("a configuration");
        server.resume();
        server
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn address(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Kills it, as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("it runs");
            process.wait().expect("it is gone");
        }
    }

    /// Sends it a signal: `STOP` freezes it, `CONT` lets it go on.
    pub(crate) fn signal(&self, signal: &str) {
        let process = self.process.as_ref().expect("it runs");
        let status = Command::new("kill")
            .arg(format!("-{signal}"))
            .arg(process.id().to_string())
            .status()
            .expect("there is a program that sends signals");
        assert!(status.success(), "{signal} was not sent");
    }

    /// Starts it again where it was, and waits until it listens.
    pub(crate) fn resume(&mut self) {
        let log = std::fs::File::create(self.path("log")).expect("a log");
        let process = Command::new(&self.program)
            .arg("--config")
            .arg(self.path("nats.conf"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the server starts");
        self.process = Some(process);
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            let log = std::fs::read_to_string(self.path("log")).unwrap_or_default();
            if log.contains("Server is ready") {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "the server does not start: {log}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}
