//! The real nginx, on `deploy/nginx.conf`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use waiting::wait_for_blocking;

use super::harness::{Answer, PATIENCE, empty_directory};

/// A running nginx. It is killed when this is dropped.
pub(crate) struct Nginx {
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    child: Child,
    _directory: TempDir,
}

impl Nginx {
    /// Starts it in front of receives, and of admins that are the same processes.
    pub(crate) fn start(program: &str, servers: [SocketAddr; 2]) -> Self {
        let directory = empty_directory();
        let [address, admin] = free_ports();
        let config = config(&directory, servers, [address, admin]);
        let file = directory.path().join("nginx.conf");
        std::fs::write(&file, config).expect("a file");
        let pid = directory.path().join("nginx.pid");
        // One process, which is the one that is stopped.
        let globals = format!("daemon off; master_process off; pid {};", pid.display());
        let child = Command::new(program)
            .arg("-p")
            .arg(directory.path())
            .args(["-e", "errors", "-g", &globals, "-c"])
            .arg(&file)
            .stdin(Stdio::null())
            .spawn()
            .expect("nginx starts");
        let nginx = Self {
            address,
            admin,
            child,
            _directory: directory,
        };
        for port in [address, admin] {
            wait_for_blocking!(TcpStream::connect(port).is_ok(), "nginx listens");
        }
        nginx
    }

    /// Sends a request once, whatever comes of it.
    pub(crate) fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        Self::send_to(self.address, "delay.example.com", method, path, body)
    }

    /// Sends a request to the admins.
    pub(crate) fn get_from_admin(&self, path: &str) -> Answer {
        Self::send_to(self.admin, "localhost", "GET", path, None)
    }

    pub(crate) fn send_to(
        to: SocketAddr,
        host: &str,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Answer {
        let mut stream = TcpStream::connect(to).expect("nginx listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        let mut request =
            format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
        let body = body.map(Value::to_string).unwrap_or_default();
        if !body.is_empty() {
            let length = body.len();
            let _ = write!(
                request,
                "content-type: application/json\r\ncontent-length: {length}\r\n"
            );
        }
        let _ = write!(request, "\r\n{body}");
        stream.write_all(request.as_bytes()).expect("sent");
        Answer::read_to_end(stream)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_ports() -> [SocketAddr; 2] {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("loopback"));
    listeners.map(|listener| listener.local_addr().expect("bound"))
}

/// The file as it is shipped, with other addresses, and with files of its own.
fn config(directory: &TempDir, servers: [SocketAddr; 2], ports: [SocketAddr; 2]) -> String {
    let mut config = include_str!("../../../../deploy/nginx.conf").to_owned();
    let mut replace = |from: &str, to: String| {
        assert!(config.contains(from), "{from} is not in deploy/nginx.conf");
        config = config.replace(from, &to);
    };
    for (number, server) in (1..).zip(servers) {
        replace(&format!("10.0.0.{number}:7070"), server.to_string());
        replace(&format!("10.0.0.{number}:7072"), server.to_string());
    }
    replace("listen 8080;", format!("listen {};", ports[0]));
    replace("listen 8081;", format!("listen {};", ports[1]));
    let mut paths = "http {\n".to_owned();
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        let path = directory.path().join(kind);
        let _ = writeln!(paths, "    {kind}_temp_path {};", path.display());
    }
    replace("http {\n", paths);
    config
}
