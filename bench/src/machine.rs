//! Where a benchmark was run: a figure without this is a rumour.

use std::process::Command;
use std::{fs, thread};

use anyhow::{Context, Result};
use jiff::Timestamp;

/// The allocator that this program was built with.
pub const ALLOCATOR: &str = if cfg!(feature = "mimalloc") {
    "mimalloc"
} else {
    "the system's allocator"
};

/// Day, cores, processor, compiler and allocator, on one line.
#[must_use]
pub fn describe() -> String {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut parts = vec![
        Timestamp::now().strftime("%Y-%m-%d").to_string(),
        format!("{cores} cores"),
    ];
    parts.extend(processor());
    parts.extend(compiler());
    parts.push(ALLOCATOR.to_owned());
    parts.join(", ")
}

/// What Linux calls the processor.
fn processor() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let (_, model) = info
        .lines()
        .find(|line| line.starts_with("model name"))?
        .split_once(':')?;
    Some(model.trim().to_owned())
}

/// `rustc 1.95.0`: the one in use now, which `cargo xtask bench` has just built this with.
fn compiler() -> Option<String> {
    let output = Command::new("rustc").arg("--version").output().ok()?;
    let version = String::from_utf8(output.stdout).ok()?;
    let words: Vec<&str> = version.split_whitespace().take(2).collect();
    (words.len() == 2).then(|| words.join(" "))
}

/// Bytes of memory that the process holds.
pub(crate) fn resident() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let kib: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|value| value.trim().strip_suffix("kB"))
        .context("no VmRSS in /proc/self/status")?
        .trim()
        .parse()?;
    Ok(kib * 1024)
}
