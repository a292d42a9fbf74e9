//! A Kafka broker of a test's own, which can be set up at will.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Any 16 bytes in URL-safe base64 will do.
const CLUSTER: &str = "TGFuZXdheVRlc3RzMDAwMg";

/// Stopped and removed when it is dropped.
pub(crate) struct KafkaServer {
    directory: TempDir,
    process: Child,
}

/// Ports that nobody has right now.
pub(crate) fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    listeners.map(|listener| listener.local_addr().expect("an address").port())
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
        let log = std::fs::File::create(directory.path().join("log")).expect("a log");
        let process = Command::new(program)
            .current_dir(directory.path())
            .arg("kafka.Kafka")
            .arg(&properties)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("the broker starts");
        let server = Self { directory, process };
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            let log = std::fs::read_to_string(server.path("log")).unwrap_or_default();
            let listens = || TcpStream::connect(("127.0.0.1", port)).is_ok();
            if log.contains("Kafka Server started") && listens() {
                return server;
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
