//! The server in a process of its own, as it is shipped.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
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
    child: Child,
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
                "--bus",
                "file:bus",
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
            child,
            _folder: folder,
        })
    }

    /// Forgets how much memory the process had at most.
    pub(super) fn forget_peak(&self) -> Result<()> {
        let file = format!("/proc/{}/clear_refs", self.pid()?);
        fs::write(&file, "5").with_context(|| format!("cannot write to {file}"))
    }

    /// How much memory the process had at most since then, in bytes.
    pub(super) fn peak(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()?))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|text| text.trim().strip_suffix(" kB"));
        let kib: u64 = peak.context("no peak")?.trim().parse()?;
        Ok(kib * 1024)
    }

    fn pid(&self) -> Result<u32> {
        self.child.id().context("the server has ended")
    }

    pub(super) async fn connect(&self) -> Result<Connection> {
        Connection::to(self.address).await
    }
}

/// The program, beside this one and with the same profile. Building it again when nothing has changed takes no time.
async fn built() -> Result<PathBuf> {
    let this = env::current_exe().context("cannot find this program")?;
    let folder = this.parent().and_then(Path::file_name);
    let profile = match folder.and_then(OsStr::to_str) {
        Some("debug") => "dev",
        Some(profile) => profile,
        None => bail!("{} is not in a folder of cargo", this.display()),
    };
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .args(["build", "--quiet", "--profile", profile])
        .args(["-p", "laneway-server"])
        .status()
        .await
        .context("cannot run cargo")?;
    ensure!(status.success(), "the server cannot be built");
    Ok(this.with_file_name("laneway"))
}

/// A connection that is used again and again.
pub(crate) struct Connection {
    host: SocketAddr,
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) async fn to(host: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(host).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            host,
            stream,
            buffer: Vec::with_capacity(4096),
        })
    }

    /// Sends a request, which has to be answered with 202; answers the body of the answer.
    pub(crate) async fn answer(&mut self, method: &str, path: &str, body: &str) -> Result<String> {
        let (head, body) = self.exchange(method, path, body).await?;
        let body = String::from_utf8_lossy(&body).into_owned();
        ensure!(
            head.starts_with("HTTP/1.1 202 "),
            "the server answered {head}{body}"
        );
        Ok(body)
    }

    /// Sends a request and waits for its answer, which has to be 202.
    pub(crate) async fn post(&mut self, path: &str, body: &str) -> Result<()> {
        let head = self.ask("POST", path, body).await?;
        ensure!(
            head.starts_with("HTTP/1.1 202 "),
            "the server answered {head}"
        );
        Ok(())
    }

    /// Asks for something; answers the body of the answer.
    pub(crate) async fn get(&mut self, path: &str) -> Result<String> {
        let (_, body) = self.exchange("GET", path, "").await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Sends a request; answers the head of the answer.
    pub(super) async fn ask(&mut self, method: &str, path: &str, body: &str) -> Result<String> {
        let (head, _) = self.exchange(method, path, body).await?;
        Ok(head)
    }

    async fn exchange(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<(String, Vec<u8>)> {
        let (host, length) = (self.host, body.len());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n"
        );
        let request = [head.as_bytes(), body.as_bytes()].concat();
        self.stream.write_all(&request).await?;
        let answer = timeout(PATIENCE, read_all(&mut self.stream, &mut self.buffer)).await;
        answer.context("no answer")?
    }
}

/// Reads the head of a request or an answer. The body is read and dropped.
pub(crate) async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<String> {
    let (head, _) = read_all(stream, buffer).await?;
    Ok(head)
}

pub(super) async fn read_all(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
) -> Result<(String, Vec<u8>)> {
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
    let body = buffer.drain(..end + length).skip(end).collect();
    Ok((head, body))
}

pub(crate) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut headers = head.lines().filter_map(|line| line.split_once(": "));
    let found = headers.find(|(header, _)| header.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value)
}
