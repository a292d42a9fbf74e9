//! A Kafka broker of a test's own, which can be set up at will.

use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub(crate) use super::ports::free as free_ports;

/// Any 16 bytes in URL-safe base64 will do.
const CLUSTER: &str = "TGFuZXdheVRlc3RzMDAwMg";

/// Stopped and removed when it is dropped.
pub(crate) struct KafkaServer {
    program: String,
    port: u16,
    directory: TempDir,
    process: Child,
    starts: usize,
}

impl KafkaServer {
    /// Starts a broker with these settings, for clients at this port. The program runs a class of Kafka.
    pub(crate) fn start(program: &str, port: u16, settings: &str, format: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let [controller] = free_ports();
        let data = directory.path().join("data");
        let properties = directory.path().join("server.properties");
        let settings = format!(
            "process.roles=broker,controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n\
             controller.quorum.voters=1@127.0.0.1:{controller}\nlog.dirs={}\n\
             offsets.topic.replication.factor=1\noffsets.topic.num.partitions=1\n\
             group.initial.rebalance.delay.ms=0\nlog.cleaner.dedupe.buffer.size=8388608\n{}\n",
            data.display(),
            settings.replace("CONTROLLER_PORT", &controller.to_string()),
        );
        std::fs::write(&properties, settings).expect("settings");
        let formatted = Command::new(program)
            .args(["kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER])
            .arg("--config")
            .arg(&properties)
            .args(format)
            .output()
            .expect("it can be run");
        let said = String::from_utf8_lossy(&formatted.stdout);
        assert!(formatted.status.success(), "{said}");
        let process = run(program, &directory);
        let mut server = Self {
            program: program.to_owned(),
            port,
            directory,
            process,
            starts: 1,
        };
        server.wait();
        server
    }

    /// Two brokers of one cluster, and where they are. The first is the controller, and all that is made
    /// before the second has started is on it: what `first` makes with its address. Topics that are made
    /// later are on both of them, with one copy.
    pub(crate) async fn pair(
        program: &str,
        first: impl AsyncFnOnce(&str),
    ) -> ([Self; 2], [String; 2]) {
        let [one, two, controller] = free_ports();
        let common = format!(
            "controller.quorum.voters=1@127.0.0.1:{controller}\nbroker.session.timeout.ms=3000\n\
             broker.heartbeat.interval.ms=500\ngroup.min.session.timeout.ms=1000\n"
        );
        let listeners = format!(
            "listeners=PLAINTEXT://127.0.0.1:{one},CONTROLLER://127.0.0.1:{controller}\n{common}"
        );
        let addresses = [one, two].map(|port| format!("127.0.0.1:{port}"));
        let node_one = Self::start(program, one, &listeners, &[]);
        first(&addresses[0]).await;
        let settings = format!(
            "process.roles=broker\nnode.id=2\nlisteners=PLAINTEXT://127.0.0.1:{two}\n{common}"
        );
        let node_two = Self::start(program, two, &settings, &[]);
        ([node_one, node_two], addresses)
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("it can be killed");
        self.process.wait().expect("it ends");
    }

    /// Sends it a signal: `STOP` freezes it, `CONT` lets it go on.
    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .arg(format!("-{signal}"))
            .arg(self.process.id().to_string())
            .status()
            .expect("there is a program that sends signals");
        assert!(status.success(), "{signal} was not sent");
    }

    /// Starts it once more, with what it had.
    pub(crate) fn start_again(&mut self) {
        self.process = run(&self.program, &self.directory);
        self.starts += 1;
        self.wait();
    }

    fn wait(&mut self) {
        let deadline = Instant::now() + Duration::from_mins(2);
        loop {
            let log = std::fs::read_to_string(self.path("log")).unwrap_or_default();
            let listens = || TcpStream::connect(("127.0.0.1", self.port)).is_ok();
            if log.matches("Kafka Server started").count() >= self.starts && listens() {
                return;
            }
            assert!(Instant::now() < deadline, "it does not start: {log}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

impl Drop for KafkaServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn run(program: &str, directory: &TempDir) -> Child {
    let log = directory.path().join("log");
    let mut options = std::fs::File::options();
    let log = options.create(true).append(true).open(log);
    let log = log.expect("a log");
    Command::new(program)
        .current_dir(directory.path())
        .arg("kafka.Kafka")
        .arg(directory.path().join("server.properties"))
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a log"))
        .stderr(log)
        .spawn()
        .expect("the broker starts")
}
