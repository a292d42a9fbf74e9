//! Starts the real binary and talks to it as a stranger would.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use waiting::wait_for_blocking;

/// How long anything may take before the test gives up. Nothing waits that long if all is well.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

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
    stdout: Receiver<String>,
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
        let command = laneway(&directory);
        Self::spawn(command, directory, arguments, environment)
    }

    /// Starts one whose writes fail beyond a limit of file sizes, instead of ending it.
    pub(crate) fn start_with_failing_writes(arguments: &[&str]) -> Self {
        let directory = Arc::new(empty_directory());
        let plain = laneway(&directory);
        let mut command = Command::new("bash");
        command
            .args(["-c", "trap '' XFSZ; exec \"$@\"", "bash"])
            .arg(plain.get_program())
            .current_dir(directory.path())
            .stdin(Stdio::null());
        for (name, _) in plain.get_envs() {
            command.env_remove(name);
        }
        Self::spawn(command, directory, arguments, &[])
    }

    /// Starts one whose data directory is a disk of its own, of this size; `None` where that cannot be mounted.
    pub(crate) fn start_on_small_disk(size: &str, arguments: &[&str]) -> Option<Self> {
        let directory = Arc::new(empty_directory());
        let data = directory.path().join("laneway-data");
        std::fs::create_dir(&data).expect("an empty directory");
        let mount = format!("mount -t tmpfs -o size={size},mode=0700 tmpfs laneway-data");
        let inside = |script: &str| {
            let mut command = Command::new("unshare");
            command
                .args([
                    "--mount",
                    "--propagation",
                    "private",
                    "sh",
                    "-c",
                    script,
                    "sh",
                ])
                .current_dir(directory.path())
                .stdin(Stdio::null());
            command
        };
        if !inside(&mount).status().is_ok_and(|status| status.success()) {
            return None;
        }
        let plain = laneway(&directory);
        let mut command = inside(&format!("{mount} && exec \"$@\""));
        command.arg(plain.get_program());
        for (name, _) in plain.get_envs() {
            command.env_remove(name);
        }
        Some(Self::spawn(command, directory, arguments, &[]))
    }

    /// A file in its directory, by the mounts that it has.
    pub(crate) fn as_it_sees(&self, name: &str) -> std::path::PathBuf {
        let path = self.directory.path().join(name);
        let root = format!("/proc/{}/root", self.child.id());
        Path::new(&root).join(path.strip_prefix("/").unwrap_or(&path))
    }

    /// Every write to a file fails from now on.
    pub(crate) fn let_writes_fail(&self) {
        self.limit_files(Some(1));
    }

    /// Writes work again.
    pub(crate) fn let_writes_work(&self) {
        self.limit_files(None);
    }

    fn limit_files(&self, current: Option<u64>) {
        let limit = rustix::process::Rlimit {
            current,
            maximum: None,
        };
        let resource = rustix::process::Resource::Fsize;
        rustix::process::prlimit(self.pid(), resource, limit).expect("it runs");
    }

    /// The number of the process, for `/proc`.
    #[cfg(target_os = "linux")]
    pub(crate) fn pid_number(&self) -> u32 {
        self.child.id()
    }

    fn pid(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    fn spawn(
        mut command: Command,
        directory: Arc<TempDir>,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let listen: &[&str] = if arguments.contains(&"--listen") {
            &[]
        } else {
            &["--listen", "127.0.0.1:0"]
        };
        let mut child = command
            .envs(environment.iter().copied())
            .arg("serve")
            .args(listen)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let stdout = lines(child.stdout.take().expect("piped"));
        let stderr = lines(child.stderr.take().expect("piped"));
        let as_json = arguments.contains(&"json");
        let announcement = if as_json {
            vec![stderr.recv_timeout(PATIENCE).expect("it logs")]
        } else {
            announcement(&stdout, &stderr)
        };
        let address = if as_json {
            let event: Value = serde_json::from_str(&announcement[0]).expect("JSON");
            event["address"]
                .as_str()
                .and_then(|address| address.parse().ok())
        } else {
            let said = announcement[0].rsplit_once("http://");
            said.and_then(|(_, address)| address.parse().ok())
        };
        let address = address.unwrap_or_else(|| panic!("no address in {announcement:?}"));
        Self {
            address,
            announcement,
            child,
            stdout,
            stderr,
            directory,
        }
    }

    /// What it said on standard output after it had started.
    pub(crate) fn stdout(&self) -> Vec<String> {
        self.stdout.try_iter().collect()
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
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
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
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\
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
        wait_for_blocking!(self.state(id) == state, "{id} is {state}");
    }

    /// The value of one figure of `/metrics`.
    pub(crate) fn figure(&self, name: &str) -> u64 {
        let body = self.get("/metrics").body;
        let line = body.lines().find_map(|line| line.strip_prefix(name));
        let value = line.and_then(|rest| rest.trim().parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in:\n{body}"))
    }

    /// The names of all metrics that it serves, as they are in the lines of `/metrics`.
    pub(crate) fn metric_names(&self) -> BTreeSet<String> {
        let page = self.get("/metrics").body;
        let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let names = types.map(|line| match line.split_once(' ') {
            Some((name, "counter")) => format!("{name}_total"),
            Some((name, "info")) => format!("{name}_info"),
            Some((name, _)) => name.to_owned(),
            None => panic!("no type in {line:?}"),
        });
        names.collect()
    }

    /// What it has logged since it was asked last.
    pub(crate) fn log_so_far(&self) -> Vec<String> {
        self.stderr.try_iter().collect()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid().expect("a process id"), signal).expect("it runs");
    }

    /// Waits until new connections are refused, which is the first thing that stopping does.
    pub(crate) fn wait_until_refusing(&self) {
        wait_for_blocking!(
            {
                let refused = TcpStream::connect(self.address).map_err(|error| error.kind());
                matches!(refused, Err(io::ErrorKind::ConnectionRefused))
            },
            "connections are refused"
        );
    }

    /// Waits for the end of the process: its exit status, and its log.
    pub(crate) fn wait(mut self) -> (ExitStatus, Vec<String>) {
        wait_for_blocking!(
            self.child.try_wait().expect("a child").is_some(),
            "the server exits"
        );
        let status = self.child.wait().expect("exited");
        (status, self.stderr.iter().collect())
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

/// The names of metrics in the table of docs/operations.md that `is_served` takes.
pub(crate) fn documented_metrics(is_served: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let page = include_str!("../../../../docs/operations.md");
    let (_, table) = page.split_once("\n## All metrics").expect("the section");
    let (table, _) = table.split_once("\n## ").expect("another section");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let names = rows.filter_map(|row| row.split(['`', '{']).next());
    names
        .filter(|name| is_served(name))
        .map(str::to_owned)
        .collect()
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
