//! The figures for Prometheus: read from the engine when somebody asks, so they cost nothing until
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
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Engine {
    /// The figures of [`stats`](Self::stats) for Prometheus: register them under the prefix
    /// `laneway`, and they are called `laneway_lanes_…`. They are read at every scrape, for as long
    /// as the engine lives.
    ///
    /// | metric | labels | what it is |
    /// |---|---|---|
    /// | `lanes_processed_total` | topic | jobs that were handled |
    /// | `lanes_failed_total` | topic | attempts that failed |
    /// | `lanes_panicked_total` | topic | attempts that failed by a panic |
    /// | `lanes_timed_out_total` | topic | attempts that failed by their time limit |
    /// | `lanes_exhausted_total` | topic | jobs whose attempts were used up |
    /// | `lanes_saturated_total` | topic | submits that had to wait for room |
    /// | `lanes_depth`, `lanes_depth_bytes` | topic | what is queued and running |
    /// | `lanes_live` | topic | lanes with work |
    /// | `lanes_parked` | topic | lanes that wait for a retry |
    /// | `lanes_queue_time_seconds` | topic | from submit to the start of an attempt |
    /// | `lanes_run_time_seconds` | topic | from the start to the end of an attempt |
    /// | `lanes_hot_key_share` | topic, key | the ten keys with the most work, and their share of it |
    /// | `lanes_ready` | | lanes that wait for a worker |
    /// | `lanes_worker_processed_total` | worker | jobs that it handled |
    /// | `lanes_worker_failed_total` | worker | attempts that failed on it |
    /// | `lanes_worker_restarts_total` | worker | how often it started afresh after a panic |
    /// | `lanes_worker_running_seconds` | worker | how long the attempt it is at has been running |
    /// | `lanes_worker_degraded` | worker | 1 while it rests because it restarted too often |
    ///
    /// In [`Scope::PerTopic`](super::Scope::PerTopic) the metrics of workers have the label `topic`,
    /// too.
    ///
    /// ```
    /// use laneway::lanes::{Engine, Failure, Job, Options};
    /// use prometheus_client::encoding::text;
    /// use prometheus_client::registry::Registry;
    ///
    /// # struct Order { id: String }
    /// # impl Job for Order { fn key(&self) -> Option<&str> { Some(&self.id) } }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = Engine::start(Options::default())?;
    /// let mut registry = Registry::with_prefix("laneway");
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
        }
    }
}

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(inner) = self.engine.upgrade() else {
            return Ok(());
        };
        write(&mut Page(encoder), &Engine { inner }.stats())
    }
}

fn write(page: &mut Page<'_>, stats: &Stats) -> fmt::Result {
    topic_counters(page, &stats.topics)?;
    topic_gauges(page, &stats.topics)?;
    latencies(page, &stats.topics)?;
    hot_keys(page, &stats.topics)?;
    page.gauge(
        "lanes_ready",
        "Lanes that wait for a worker",
        &stats.ready_lanes,
    )?;
    workers(page, &stats.workers)
}

fn topic_counters(page: &mut Page<'_>, topics: &[TopicStats]) -> fmt::Result {
    type Counter = (&'static str, &'static str, fn(&TopicStats) -> u64);
    const COUNTERS: [Counter; 6] = [
        ("lanes_processed", "Jobs that were handled", |t| t.processed),
        ("lanes_failed", "Attempts that failed", |t| t.failed),
        ("lanes_panicked", "Attempts that failed by a panic", |t| {
            t.panicked
        }),
        (
            "lanes_timed_out",
            "Attempts that failed by their time limit",
            |t| t.timed_out,
        ),
        ("lanes_exhausted", "Jobs whose attempts were used up", |t| {
            t.exhausted
        }),
        (
            "lanes_saturated",
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
        ("lanes_depth", "Jobs that are queued or running", |t| {
            t.depth.messages
        }),
        ("lanes_depth_bytes", "Their bytes", |t| t.depth.bytes),
        ("lanes_live", "Lanes with work", |t| t.lanes),
        ("lanes_parked", "Lanes that wait for a retry", |t| t.parked),
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
            "lanes_queue_time",
            "From submit to the start of an attempt",
            |t| &t.queue_time,
        ),
        (
            "lanes_run_time",
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
        "lanes_hot_key_share",
        "The keys with the most work and their share of it, estimated",
        values,
    )
}

fn workers(page: &mut Page<'_>, workers: &[WorkerStats]) -> fmt::Result {
    type Counter = (&'static str, &'static str, fn(&WorkerStats) -> u64);
    const COUNTERS: [Counter; 3] = [
        (
            "lanes_worker_processed",
            "Jobs that the worker handled",
            |w| w.processed,
        ),
        (
            "lanes_worker_failed",
            "Attempts that failed on the worker",
            |w| w.failed,
        ),
        (
            "lanes_worker_restarts",
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
        "lanes_worker_running_seconds",
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
        "lanes_worker_degraded",
        "1 while the worker rests because it restarted too often",
        labelled()
            .map(|(labels, worker)| (labels, u32::from(worker.state == WorkerState::Degraded))),
    )
}

fn topic_label(topic: &TopicStats) -> Labels<'_, 1> {
    Labels([("topic", Some(&*topic.topic))])
}
