//! Starts the real binary and talks to it as a stranger would.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take before the test gives up. Nothing waits that long if all is well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The binary, in an empty directory and without settings from the environment of the test.
pub(crate) fn laneway(directory: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laneway"));
    command.current_dir(directory.path()).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LANEWAY_") {
            command.env_remove(name);
        }
    }
    command
}

pub(crate) fn empty_directory() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// A running `laneway serve`. It is killed when this is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// What it said on standard output when it started.
    pub(crate) announcement: Vec<String>,
    child: Child,
    stderr: Receiver<String>,
    directory: Arc<TempDir>,
}

impl Server {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_in(Arc::new(empty_directory()), arguments)
    }

    /// Starts in a directory that another server may have left things in.
    pub(crate) fn start_in(directory: Arc<TempDir>, arguments: &[&str]) -> Self {
        Self::start_as(directory, arguments, &[])
    }

    /// Starts in an environment.
    pub(crate) fn start_with(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_as(Arc::new(empty_directory()), arguments, environment)
    }

    fn start_as(directory: Arc<TempDir>, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut child = laneway(&directory)
            .envs(environment.iter().copied())
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let stdout = lines(child.stdout.take().expect("piped"));
        let stderr = lines(child.stderr.take().expect("piped"));
        let announcement = announcement(&stdout, &stderr);
        let address = announcement[0]
            .rsplit_once("http://")
            .and_then(|(_, address)| address.parse().ok())
            .unwrap_or_else(|| panic!("no address in {announcement:?}"));
        Self {
            address,
            announcement,
            child,
            stderr,
            directory,
        }
    }

    /// Kills it, without a chance to do anything, and answers what it leaves behind.
    pub(crate) fn kill(mut self) -> Arc<TempDir> {
        self.child.kill().expect("it runs");
        self.child.wait().expect("killed");
        Arc::clone(&self.directory)
    }

    /// Stops it in good order, and answers what it leaves behind.
    pub(crate) fn stop(self) -> Arc<TempDir> {
        let directory = Arc::clone(&self.directory);
        self.signal(Signal::TERM);
        let (status, log) = self.wait();
        assert!(status.success(), "{log:?}");
        directory
    }

    /// Where it was started.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        stream
            .set_write_timeout(Some(PATIENCE))
            .expect("a time-out");
        stream
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.request("GET", path)
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> Answer {
        let mut stream = self.connect();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("sent");
        Answer::read_to_end(stream)
    }

    /// Sends JSON.
    pub(crate) fn send(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.send_with(
            method,
            path,
            "content-type: application/json\r\n",
            &body.to_string(),
        )
    }

    /// Sends anything, with these header lines.
    pub(crate) fn send_with(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let mut stream = self.connect();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{headers}\
             content-length: {length}\r\n\r\n{body}"
        );
        // The server may answer and hang up before it has read all of it.
        let _ = stream.write_all(request.as_bytes());
        Answer::read_to_end(stream)
    }

    /// Submits a message, and answers its id.
    pub(crate) fn submit(&self, body: &Value) -> String {
        let answer = self.send("POST", "/v1/messages", body);
        assert_eq!(answer.status, 202, "{answer:?}");
        answer.json()["id"].as_str().expect("an id").to_owned()
    }

    /// The state of a message.
    pub(crate) fn state(&self, id: &str) -> String {
        let message = self.get(&format!("/v1/messages/{id}")).json();
        message["state"].as_str().unwrap_or("gone").to_owned()
    }

    pub(crate) fn wait_for_state(&self, id: &str, state: &str) {
        wait_until(&format!("{id} is {state}"), || self.state(id) == state);
    }

    /// The value of one figure of `/metrics`.
    pub(crate) fn figure(&self, name: &str) -> u64 {
        let body = self.get("/metrics").body;
        let line = body.lines().find_map(|line| line.strip_prefix(name));
        let value = line.and_then(|rest| rest.trim().parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in:\n{body}"))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process id"), signal).expect("it runs");
    }

    /// Waits until new connections are refused, which is the first thing that stopping does.
    pub(crate) fn wait_until_refusing(&self) {
        wait_until("connections are refused", || {
            let refused = TcpStream::connect(self.address).map_err(|error| error.kind());
            matches!(refused, Err(io::ErrorKind::ConnectionRefused))
        });
    }

    /// Waits for the end of the process: its exit status, and its log.
    pub(crate) fn wait(mut self) -> (ExitStatus, Vec<String>) {
        let mut status = None;
        wait_until("the server exits", || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        });
        let log = self.stderr.iter().collect();
        (status.expect("exited"), log)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines up to the one that says how to stop, which is the last one.
fn announcement(stdout: &Receiver<String>, stderr: &Receiver<String>) -> Vec<String> {
    let mut announcement = Vec::new();
    loop {
        let line = stdout.recv_timeout(PATIENCE).unwrap_or_else(|error| {
            let log: Vec<String> = match error {
                // It has exited, so its log has an end.
                RecvTimeoutError::Disconnected => stderr.iter().collect(),
                RecvTimeoutError::Timeout => stderr.try_iter().collect(),
            };
            panic!("the server did not start; it said {announcement:?} and logged {log:#?}")
        });
        let last = line.starts_with("stop it");
        announcement.push(line);
        if last {
            return announcement;
        }
    }
}

/// Reads lines on a thread of its own, so that waiting for one can have a deadline.
fn lines(source: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(source).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Looks again and again until something is true.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited too long until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// An HTTP answer, taken apart.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Answer {
    /// Everything the server sends until it closes the connection.
    pub(crate) fn read_to_end(mut stream: TcpStream) -> Self {
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        Self::parse(&text)
    }

    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Self {
            status: status.expect("a status"),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let headers = self.head.lines().skip(1);
        let mut headers = headers.filter_map(|line| line.split_once(": "));
        let found = headers.find(|(header, _)| header.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).expect("JSON")
    }
}
