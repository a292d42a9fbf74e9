//! What the roles count.

use std::fmt;
use std::sync::Arc;

use laneway_center::Center;
use laneway_worker::Worker;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::backup;

/// Read at every scrape.
#[derive(Debug)]
pub(crate) struct RoleMetrics {
    pub(super) center: Option<Arc<Center>>,
    pub(super) worker: Option<Arc<Worker>>,
}

impl Collector for RoleMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut gauges = Vec::new();
        let mut counters = Vec::new();
        if let Some(center) = &self.center {
            let stats = center.stats();
            gauges.push(("center_shards", "Shards that this center owns", stats.owned));
            counters.extend([
                ("center_applied", "Records of logs applied", stats.applied),
                ("center_appended", "Facts appended to logs", stats.appended),
                (
                    "center_accepted",
                    "Submits taken from the intake",
                    stats.accepted,
                ),
                ("center_begun", "Attempts given to workers", stats.begun),
                (
                    "center_takeovers",
                    "Times that a shard was taken over",
                    stats.takeovers,
                ),
                (
                    "center_dead_workers",
                    "Workers taken for dead",
                    stats.dead_workers,
                ),
                ("center_crashes", "Crashes of shards", stats.crashes),
                (
                    "center_rebuilds",
                    "Views built from the log",
                    stats.rebuilds,
                ),
                (
                    "center_restored",
                    "Views restored from the backup",
                    stats.restored,
                ),
            ]);
            backup::figures(center, &mut gauges, &mut counters);
        }
        if let Some(worker) = &self.worker {
            let stats = worker.stats();
            gauges.extend([
                ("worker_held", "Attempts that wait", stats.held as u64),
                ("worker_running", "Attempts that run", stats.running as u64),
                (
                    "worker_unlogged",
                    "Outcomes that no owner has logged",
                    stats.unlogged as u64,
                ),
            ]);
            counters.extend([
                ("worker_started", "Attempts started", stats.started),
                ("worker_refused", "Gos refused", stats.refused),
                (
                    "worker_handed_back",
                    "Attempts that ended without anything sent",
                    stats.handed_back,
                ),
            ]);
        }
        for (name, help, value) in gauges {
            let encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(encoder)?;
        }
        for (name, help, value) in counters {
            let encoder = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(encoder)?;
        }
        Ok(())
    }
}
