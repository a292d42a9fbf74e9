//! The server in a process of its own, as it is shipped.

use std::env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::PATIENCE;
use crate::bus::place;

/// A running `laneway serve`. It is killed when this is dropped.
pub(super) struct Server {
    address: SocketAddr,
    _child: Child,
    _folder: TempDir,
}

impl Server {
    pub(super) async fn start() -> Result<Self> {
        let (program, folder) = (built().await?, place::folder()?);
        let mut command = Command::new(&program);
        // It takes them for its settings, and refuses those that it does not know.
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("LANEWAY_") {
                command.env_remove(name);
            }
        }
        let mut child = command
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--log-level",
                "warn",
                "--data-dir",
            ])
            .arg(folder.path().join("data"))
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let stdout = child.stdout.take().context("it has no output")?;
        let mut lines = BufReader::new(stdout).lines();
        let first = timeout(PATIENCE, lines.next_line())
            .await
            .context("the server does not start")??;
        let first = first.context("the server stopped at once")?;
        let address = first
            .rsplit_once("http://")
            .and_then(|(_, address)| address.parse().ok());
        Ok(Self {
            address: address.with_context(|| format!("no address in {first:?}"))?,
            _child: child,
            _folder: folder,
        })
    }

    pub(super) async fn connect(&self) -> Result<Connection> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection {
            stream,
            buffer: Vec::with_capacity(4096),
        })
    }
}

/// The program, beside this one. Building it again when nothing has changed takes no time.
async fn built() -> Result<PathBuf> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .args(["build", "--quiet", "--release", "-p", "laneway-server"])
        .status()
        .await
        .context("cannot run cargo")?;
    ensure!(status.success(), "the server cannot be built");
    let this = env::current_exe().context("cannot find this program")?;
    Ok(this.with_file_name("laneway"))
}

/// A connection that is used again and again.
pub(super) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    /// Sends a request and waits for its answer, which has to be 202.
    pub(super) async fn post(&mut self, path: &str, body: &str) -> Result<()> {
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n"
        );
        let request = [head.as_bytes(), body.as_bytes()].concat();
        self.stream.write_all(&request).await?;
        let answer = timeout(PATIENCE, read(&mut self.stream, &mut self.buffer)).await;
        let head = answer.context("no answer")??;
        ensure!(
            head.starts_with("HTTP/1.1 202 "),
            "the server answered {head}"
        );
        Ok(())
    }
}

/// Reads the head of a request or an answer. The body is read and dropped.
pub(super) async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<String> {
    let end = loop {
        if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        ensure!(
            stream.read_buf(buffer).await? > 0,
            "the connection was closed"
        );
    };
    let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
    let length = header(&head, "content-length").and_then(|text| text.parse().ok());
    let length: usize = length.unwrap_or(0);
    while buffer.len() < end + length {
        ensure!(
            stream.read_buf(buffer).await? > 0,
            "the connection was closed"
        );
    }
    buffer.drain(..end + length);
    Ok(head)
}

pub(super) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut headers = head.lines().filter_map(|line| line.split_once(": "));
    let found = headers.find(|(header, _)| header.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value)
}
