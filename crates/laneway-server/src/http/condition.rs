//! Metrics of what the server stands on: whether it is ready, the store, the disk, the process.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::Readiness;
use crate::messages::Messages;

/// Read at every scrape.
#[derive(Debug)]
pub(crate) struct Condition {
    readiness: Readiness,
    delays: Arc<dyn Messages>,
    directory: PathBuf,
    started: SystemTime,
}

impl Condition {
    pub(crate) fn new(readiness: Readiness, delays: Arc<dyn Messages>, directory: PathBuf) -> Self {
        Self {
            readiness,
            delays,
            directory,
            started: SystemTime::now(),
        }
    }
}

impl Collector for Condition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let panics = encoder.encode_descriptor(
            "task_panics",
            "Tasks of delayed messages and of the server that panicked and were started again",
            None,
            MetricType::Counter,
        )?;
        let count = self.delays.panics() + self.readiness.panics();
        ConstCounter::new(count).encode(panics)?;
        let mut gauge = |name, help, unit: Option<&Unit>, value: u64| {
            let encoder = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
            ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(encoder)
        };
        let is_ready = self.readiness.lacks(&*self.delays).is_empty();
        let help = "Whether it takes messages and can deliver them, as /readyz says";
        gauge("ready", help, None, is_ready.into())?;
        let help = "Whether the store of messages takes them";
        gauge(
            "store_up",
            help,
            None,
            self.delays.report().refuses.is_none().into(),
        )?;
        let health = self.delays.report();
        let help = "Whether the store has failed, so that only a new start helps";
        gauge("store_failed", help, None, health.has_failed.into())?;
        let help = "Messages that cannot be read and are not delivered";
        gauge("store_unreadable_messages", help, None, health.unreadable)?;
        let help = "By how much the wall clock is ahead of what is believed";
        let ahead = health.clock_ahead.unwrap_or_default().as_secs();
        gauge("clock_ahead", help, Some(&Unit::Seconds), ahead)?;
        // What cannot be found out is left out.
        if let Ok(disk) = rustix::fs::statvfs(&self.directory) {
            let help = "Room on the disk of the data directory";
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            gauge("disk_free", help, Some(&Unit::Bytes), free)?;
            let help = "Size of the disk of the data directory";
            let size = disk.f_blocks.saturating_mul(disk.f_frsize);
            gauge("disk_size", help, Some(&Unit::Bytes), size)?;
        }
        if let Some(bytes) = resident() {
            let help = "Memory that the process has";
            gauge("process_resident_memory", help, Some(&Unit::Bytes), bytes)?;
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            let help = "Files and connections that the process has open";
            gauge("process_open_fds", help, None, open.count() as u64)?;
        }
        let started = self.started.duration_since(SystemTime::UNIX_EPOCH);
        let help = "When the process started, since 1970";
        let seconds = started.map_or(0, |time| time.as_secs());
        gauge("process_start_time", help, Some(&Unit::Seconds), seconds)
    }
}

/// In bytes, where the system tells.
fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1_024)
}
