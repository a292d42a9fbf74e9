//! The figures for Prometheus: read from the engine at every scrape, so they cost nothing until
//! then.

use std::fmt;
use std::sync::Weak;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::engine::{Engine, Inner};
use super::histogram::Latency;
use super::stats::{Stats, TopicStats, WorkerState, WorkerStats};
use crate::exposition::{Labels, Page};

/// An engine as a collector of Prometheus metrics. See [`Engine::metrics`].
pub struct Metrics {
    /// A registry must not keep an engine alive.
    engine: Weak<Inner>,
    of_workers: bool,
}

impl Metrics {
    /// With a series for every single worker, of which there are hundreds: five for each.
    #[must_use]
    pub fn with_workers(self) -> Self {
        Self {
            of_workers: true,
            ..self
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Engine {
    /// The figures of [`stats`](Self::stats) for Prometheus. They are read at every scrape, for as long as
    /// the engine lives. Those of single workers (`laneway_lanes_worker_…`) are written only
    /// [if asked for](Metrics::with_workers).
    ///
    /// | metric | labels | what it is |
    /// |---|---|---|
    /// | `laneway_lanes_processed_total` | topic | jobs that were handled |
    /// | `laneway_lanes_failed_total` | topic | attempts that failed |
    /// | `laneway_lanes_panicked_total` | topic | attempts that failed by a panic |
    /// | `laneway_lanes_timed_out_total` | topic | attempts that failed by their time limit |
    /// | `laneway_lanes_exhausted_total` | topic | jobs whose attempts were used up |
    /// | `laneway_lanes_saturated_total` | topic | submits that had to wait for room |
    /// | `laneway_lanes_depth`, `laneway_lanes_depth_bytes` | topic | what is queued and running |
    /// | `laneway_lanes_live` | topic | lanes with work |
    /// | `laneway_lanes_backing_off` | topic | lanes that wait for a retry |
    /// | `laneway_lanes_queue_time_seconds` | topic | from submit to the start of an attempt |
    /// | `laneway_lanes_run_time_seconds` | topic | from the start to the end of an attempt |
    /// | `laneway_lanes_hot_key_share` | topic, key | the ten keys with the most work, and their share of it |
    /// | `laneway_lanes_ready` | | lanes that wait for a worker |
    /// | `laneway_lanes_worker_processed_total` | worker | jobs that it handled |
    /// | `laneway_lanes_worker_failed_total` | worker | attempts that failed on it |
    /// | `laneway_lanes_worker_restarts_total` | worker | how often it started afresh after a panic |
    /// | `laneway_lanes_worker_running_seconds` | worker | how long the attempt it is at has been running |
    /// | `laneway_lanes_worker_degraded` | worker | 1 while it rests because it restarted too often |
    ///
    /// In [`Scope::PerTopic`](super::Scope::PerTopic) the metrics of workers have the label `topic`,
    /// too.
    ///
    /// ```
    /// use laneway_lanes::{Engine, Failure, Job, Options};
    /// use prometheus_client::encoding::text;
    /// use prometheus_client::registry::Registry;
    ///
    /// # struct Order { id: String }
    /// # impl Job for Order { fn key(&self) -> Option<&str> { Some(&self.id) } }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = Engine::start(Options::default())?;
    /// let mut registry = Registry::default();
    /// registry.register_collector(Box::new(engine.metrics()));
    ///
    /// let orders = engine.topic("orders", |_: &Order| async { Ok::<(), Failure>(()) })?;
    /// orders.submit(Order { id: "o-1".into() }).await?;
    /// orders.quiet().await;
    ///
    /// let mut page = String::new();
    /// text::encode(&mut page, &registry)?;
    /// assert!(page.contains(r#"laneway_lanes_processed_total{topic="orders"} 1"#));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        Metrics {
            engine: std::sync::Arc::downgrade(&self.inner),
            of_workers: false,
        }
    }
}

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(inner) = self.engine.upgrade() else {
            return Ok(());
        };
        write(
            &mut Page(encoder),
            &Engine { inner }.stats(),
            self.of_workers,
        )
    }
}

fn write(page: &mut Page<'_>, stats: &Stats, of_workers: bool) -> fmt::Result {
    topic_counters(page, &stats.topics)?;
    topic_gauges(page, &stats.topics)?;
    latencies(page, &stats.topics)?;
    hot_keys(page, &stats.topics)?;
    page.gauge(
        "laneway_lanes_ready",
        "Lanes that wait for a worker",
        &stats.ready_lanes,
    )?;
    if !of_workers {
        return Ok(());
    }
    workers(page, &stats.workers)
}

fn topic_counters(page: &mut Page<'_>, topics: &[TopicStats]) -> fmt::Result {
    type Counter = (&'static str, &'static str, fn(&TopicStats) -> u64);
    const COUNTERS: [Counter; 6] = [
        ("laneway_lanes_processed", "Jobs that were handled", |t| {
            t.processed
        }),
        ("laneway_lanes_failed", "Attempts that failed", |t| t.failed),
        (
            "laneway_lanes_panicked",
            "Attempts that failed by a panic",
            |t| t.panicked,
        ),
        (
            "laneway_lanes_timed_out",
            "Attempts that failed by their time limit",
            |t| t.timed_out,
        ),
        (
            "laneway_lanes_exhausted",
            "Jobs whose attempts were used up",
            |t| t.exhausted,
        ),
        (
            "laneway_lanes_saturated",
            "Submits that had to wait for room",
            |t| t.saturated,
        ),
    ];
    for (name, help, value) in COUNTERS {
        let values = topics
            .iter()
            .map(|topic| (topic_label(topic), value(topic)));
        page.counters(name, help, values)?;
    }
    Ok(())
}

fn topic_gauges(page: &mut Page<'_>, topics: &[TopicStats]) -> fmt::Result {
    type Gauge = (&'static str, &'static str, fn(&TopicStats) -> usize);
    const GAUGES: [Gauge; 4] = [
        (
            "laneway_lanes_depth",
            "Jobs that are queued or running",
            |t| t.depth.messages,
        ),
        ("laneway_lanes_depth_bytes", "Their bytes", |t| {
            t.depth.bytes
        }),
        ("laneway_lanes_live", "Lanes with work", |t| t.lanes),
        (
            "laneway_lanes_backing_off",
            "Lanes that wait for a retry",
            |t| t.backing_off,
        ),
    ];
    for (name, help, value) in GAUGES {
        let values = topics
            .iter()
            .map(|topic| (topic_label(topic), value(topic)));
        page.gauges(name, help, values)?;
    }
    Ok(())
}

fn latencies(page: &mut Page<'_>, topics: &[TopicStats]) -> fmt::Result {
    type Time = (&'static str, &'static str, fn(&TopicStats) -> &Latency);
    const TIMES: [Time; 2] = [
        (
            "laneway_lanes_queue_time",
            "From submit to the start of an attempt",
            |t| &t.queue_time,
        ),
        (
            "laneway_lanes_run_time",
            "From the start to the end of an attempt",
            |t| &t.run_time,
        ),
    ];
    for (name, help, latency) in TIMES {
        let values = topics
            .iter()
            .map(|topic| (topic_label(topic), latency(topic).clone()));
        page.durations(name, help, values)?;
    }
    Ok(())
}

fn hot_keys(page: &mut Page<'_>, topics: &[TopicStats]) -> fmt::Result {
    let values = topics.iter().flat_map(|topic| {
        topic.hottest.iter().map(move |hot| {
            let labels = Labels([("topic", Some(&*topic.topic)), ("key", Some(&*hot.key))]);
            (labels, hot.share)
        })
    });
    page.gauges(
        "laneway_lanes_hot_key_share",
        "The keys with the most work and their share of it, estimated",
        values,
    )
}

fn workers(page: &mut Page<'_>, workers: &[WorkerStats]) -> fmt::Result {
    type Counter = (&'static str, &'static str, fn(&WorkerStats) -> u64);
    const COUNTERS: [Counter; 3] = [
        (
            "laneway_lanes_worker_processed",
            "Jobs that the worker handled",
            |w| w.processed,
        ),
        (
            "laneway_lanes_worker_failed",
            "Attempts that failed on the worker",
            |w| w.failed,
        ),
        (
            "laneway_lanes_worker_restarts",
            "How often the worker started afresh after a panic",
            |w| w.restarts,
        ),
    ];
    let numbers: Vec<_> = workers.iter().map(|w| w.worker.to_string()).collect();
    let labelled = || {
        let labels = workers.iter().zip(&numbers).map(|(worker, number)| {
            Labels([
                ("topic", worker.topic.as_deref()),
                ("worker", Some(number.as_str())),
            ])
        });
        labels.zip(workers)
    };
    for (name, help, value) in COUNTERS {
        let values = labelled().map(|(labels, worker)| (labels, value(worker)));
        page.counters(name, help, values)?;
    }
    page.gauges(
        "laneway_lanes_worker_running_seconds",
        "How long the attempt that the worker is at has been running",
        labelled().map(|(labels, worker)| {
            let time = match worker.state {
                WorkerState::Running(time) => time,
                WorkerState::Idle | WorkerState::Degraded => Duration::ZERO,
            };
            (labels, time.as_secs_f64())
        }),
    )?;
    page.gauges(
        "laneway_lanes_worker_degraded",
        "1 while the worker rests because it restarted too often",
        labelled()
            .map(|(labels, worker)| (labels, u32::from(worker.state == WorkerState::Degraded))),
    )
}

fn topic_label(topic: &TopicStats) -> Labels<'_, 1> {
    Labels([("topic", Some(&*topic.topic))])
}
