//! A real Redis of a test's own.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A Redis that can be killed and started again. Stopped and removed when it is dropped.
pub(crate) struct Server {
    program: String,
    arguments: Vec<String>,
    pub(crate) port: u16,
    directory: TempDir,
    process: Option<Child>,
}

impl Server {
    /// `None` where the program is not known.
    pub(crate) fn start(arguments: impl FnOnce(u16) -> Vec<String>) -> Option<Self> {
        let program = std::env::var("LANEWAY_TEST_REDIS_BIN").ok()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let mut server = Self {
            program,
            arguments: arguments(port),
            port,
            directory: tempfile::tempdir().expect("a directory"),
            process: None,
        };
        server.resume();
        Some(server)
    }

    pub(crate) fn plain(port: u16) -> Vec<String> {
        let words = format!("--port {port} --bind 127.0.0.1 --save --appendonly yes");
        let mut words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        // No snapshots.
        words.insert(5, String::new());
        words
    }

    /// One that keeps on disk only what it is told to with `SAVE`: killed and started again, it is an old dump.
    pub(crate) fn forgetful(port: u16) -> Vec<String> {
        let words = format!("--port {port} --bind 127.0.0.1 --appendonly no --save");
        let words = words.split(' ').map(str::to_owned);
        // No snapshots of its own.
        words.chain([String::new()]).collect()
    }

    /// Gives it a command without quotes, and answers what it says.
    pub(crate) fn say(&self, command: &str) -> String {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).expect("it listens");
        let limit = Some(Duration::from_mins(1));
        stream.set_read_timeout(limit).expect("a time-out");
        stream
            .write_all(format!("{command}\r\n").as_bytes())
            .expect("sent");
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).expect("an answer");
        let line = line.trim_end();
        let Some(length) = line.strip_prefix('$') else {
            return line.to_owned();
        };
        let mut value = vec![0; length.parse().unwrap_or(0)];
        stream.read_exact(&mut value).expect("all of it");
        String::from_utf8_lossy(&value).into_owned()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Kills it, as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("it runs");
            process.wait().expect("it is gone");
        }
    }

    /// Starts it where it was, and waits until it listens.
    pub(crate) fn resume(&mut self) {
        let process = Command::new(&self.program)
            .args(&self.arguments)
            .current_dir(self.directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server starts");
        self.process = Some(process);
        let deadline = Instant::now() + Duration::from_mins(1);
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err() {
            assert!(Instant::now() < deadline, "it does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
