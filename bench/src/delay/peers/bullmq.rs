//! `BullMQ` on Redis, by the program in `bench/bullmq`.
//!
//! It needs Node 20, npm and redis-server. Its packages are fetched once, into `target/bench`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::process::Command;

use super::process::Server;
use super::{Steady, Sync};
use crate::delay::arrivals::Arrivals;
use crate::delay::rig::now_micros;
use crate::frame::Sample;

const PROGRAM: &str = "bullmq.mjs";

/// What the program prints of what it has submitted.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ingested {
    count: usize,
    seconds: f64,
}

/// When jobs came, by their number, in microseconds of the wall clock; 0 for those that did not.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Came {
    came: Vec<u64>,
}

pub(super) async fn ingest(sync: Sync, time: Duration) -> Result<Sample> {
    let seconds = time.as_secs_f64().to_string();
    let ingested: Ingested = run(sync, "ingest", &[seconds]).await?;
    let elapsed = Duration::from_secs_f64(ingested.seconds);
    Ok(Sample::rate(ingested.count, elapsed))
}

pub(super) async fn late(steady: Steady) -> Result<Sample> {
    let (arrivals, start) = due(steady.count(), steady.per_second).await?;
    arrivals.late(|number| micros(start + steady.after(number)))
}

pub(super) async fn burst(count: u64) -> Result<Sample> {
    let (arrivals, start) = due(count, 0).await?;
    Ok(arrivals.burst(micros(start)))
}

async fn due(count: u64, per_second: u64) -> Result<(Arc<Arrivals>, Duration)> {
    // Time for Node to start, and to take them all, before the first is due.
    let lead = 5_000 + count / 6;
    let start = now_micros() / 1_000 + lead;
    let arguments = [start, per_second, count].map(|number| number.to_string());
    let Came { came } = run(Sync::Usual, "due", &arguments).await?;
    let came_count = came.iter().filter(|came| **came > 0).count();
    ensure!(
        u64::try_from(came_count)? == count,
        "{came_count} of {count} came"
    );
    Ok((Arrivals::at(&came), Duration::from_millis(start)))
}

fn micros(since_epoch: Duration) -> u64 {
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}

async fn run<T: DeserializeOwned>(sync: Sync, mode: &str, arguments: &[String]) -> Result<T> {
    let packages = packages().await?;
    let server = redis(sync).await?;
    let output = Command::new("node")
        .arg(packages.join(PROGRAM))
        .args([mode, &server.address.port().to_string()])
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("cannot run node: this contender needs Node 20 on the path")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "node failed: {}", errors.trim());
    serde_json::from_slice(&output.stdout).context("the program printed something else")
}

async fn redis(sync: Sync) -> Result<Server> {
    let sync = match sync {
        Sync::Each => "always",
        Sync::Usual => "everysec",
    };
    Server::start("redis-server", |port, folder| {
        let port = port.to_string();
        let arguments = [
            ["--bind", "127.0.0.1"],
            ["--port", &port],
            ["--save", ""],
            ["--appendonly", "yes"],
            ["--appendfsync", sync],
        ];
        let mut arguments: Vec<_> = arguments.into_iter().flatten().map(Into::into).collect();
        arguments.extend(["--dir".into(), folder.into()]);
        Ok(arguments)
    })
    .await
}

/// The folder with the program and its packages; fetches them if they are not there.
async fn packages() -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("bullmq");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench/bullmq");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for name in ["package.json", PROGRAM] {
        let copied = fs::copy(source.join(name), folder.join(name));
        copied.with_context(|| format!("cannot copy {name}"))?;
    }
    let output = Command::new("npm")
        .args([
            "install",
            "--no-audit",
            "--no-fund",
            "--prefer-offline",
            "--prefix",
        ])
        .arg(&folder)
        .output()
        .await
        .context("cannot run npm: this contender needs it on the path")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "npm failed: {}", errors.trim());
    Ok(folder.canonicalize()?)
}
