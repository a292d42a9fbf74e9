//! A server in a process of its own.

use std::env;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::bus::place;

const STARTS_WITHIN: Duration = Duration::from_secs(20);

/// A running server. It is killed, and its data is removed, when this is dropped.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    _child: Child,
    _folder: TempDir,
}

impl Server {
    /// Starts a program with arguments made of a free port and a folder for its data.
    pub(super) async fn start(
        name: &str,
        arguments: impl FnOnce(u16, &Path) -> Result<Vec<OsString>>,
    ) -> Result<Self> {
        let program = find(name)?;
        let folder = place::folder()?;
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = free.local_addr()?;
        let arguments = arguments(address.port(), folder.path())?;
        drop(free);
        let child = Command::new(&program)
            .args(arguments)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let answering = async {
            while TcpStream::connect(address).await.is_err() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(STARTS_WITHIN, answering)
            .await
            .with_context(|| format!("{name} does not answer"))?;
        Ok(Self {
            address,
            _child: child,
            _folder: folder,
        })
    }

    pub(super) async fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// A program on the search path, or one that `cargo xtask services` has fetched.
fn find(name: &str) -> Result<PathBuf> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools");
    let fetched = std::fs::read_dir(&tools).into_iter().flatten().flatten();
    let fetched: Vec<PathBuf> = fetched.map(|entry| entry.path().join("bin")).collect();
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain([tools.join("bin")])
        .chain(fetched)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .with_context(|| {
            format!(
                "there is no {name} here: install it, or try `cargo xtask services up`, which fetches some"
            )
        })
}
