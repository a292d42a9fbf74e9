//! Confluent's Parallel Consumer (Java), by the program in `bench/parallel-consumer`.
//!
//! It needs Java 17 and Maven. Its jars are fetched once, into `target/bench`. The clock starts inside of
//! it, at its first event: neither the start of the Java machine nor joining the group counts, which it
//! does for all others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::frame::Sample;
use crate::workload::Work;

/// What it is to handle.
#[derive(Clone, Debug)]
pub struct Task {
    /// Where the brokers are, as Kafka clients want it.
    pub servers: String,
    /// All of this topic is handled.
    pub topic: String,
    /// By this group.
    pub group: String,
    /// How many events are in the topic.
    pub events: usize,
    /// What a handler does.
    pub work: Work,
}

/// What the program prints.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Report {
    seconds: f64,
    handled: usize,
    violations: u64,
}

/// Handles all that is in a topic.
///
/// # Errors
/// When Java or Maven is missing, or when it does not handle everything.
pub async fn handle(task: Task) -> Result<Sample> {
    tokio::task::spawn_blocking(move || run(&task)).await?
}

fn run(task: &Task) -> Result<Sample> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("parallel-consumer");
    let jars = jars(&source)?;
    let milliseconds = match task.work {
        Work::Nothing => 0,
        Work::Wait(time) => time.as_millis(),
    };
    let mut java = Command::new("java");
    java.arg("-cp")
        .arg(jars.join("*"))
        .arg(source.join("ParallelConsumer.java"))
        .args([&task.servers, &task.topic, &task.group])
        .arg(task.events.to_string())
        .arg(milliseconds.to_string());
    let output = finish(&mut java, "java")?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let report: Report = serde_json::from_str(printed.trim())
        .with_context(|| format!("the Parallel Consumer printed {printed:?}"))?;
    super::all_handled(report.handled, task.events)?;
    let elapsed = std::time::Duration::from_secs_f64(report.seconds);
    let sample = super::sample(task.work, task.events, elapsed);
    Ok(sample.count("order_violations", report.violations))
}

/// The folder with its jars; fetches them if they are not there.
fn jars(source: &Path) -> Result<PathBuf> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
    let folder = target.join("parallel-consumer");
    if folder.is_dir() {
        return Ok(folder);
    }
    fs::create_dir_all(&target).with_context(|| format!("cannot make {}", target.display()))?;
    let target = target.canonicalize()?;
    let partial = target.join("parallel-consumer.partial");
    let mut maven = Command::new("mvn");
    maven
        .args(["--batch-mode", "--quiet", "--file"])
        .arg(source.join("pom.xml"))
        .arg("dependency:copy-dependencies")
        .arg(format!("-DoutputDirectory={}", partial.display()));
    finish(&mut maven, "mvn")?;
    fs::rename(&partial, &folder).context("cannot keep the jars")?;
    Ok(folder)
}

/// Runs a program to its end.
fn finish(command: &mut Command, name: &str) -> Result<Output> {
    let output = command.output().with_context(|| {
        format!("cannot run {name}: this contender needs Java 17 and Maven on the path")
    })?;
    ensure!(
        output.status.success(),
        "{name} failed: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output)
}
