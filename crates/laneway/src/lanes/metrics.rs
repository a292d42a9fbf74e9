//! The figures for Prometheus: read from the engine when somebody asks, so they cost nothing until
//! then.

use std::fmt;
use std::sync::Weak;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, LabelSetEncoder,
    MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::engine::{Engine, Inner};
use super::histogram::Latency;
use super::stats::{Stats, TopicStats, WorkerState, WorkerStats};

/// Upper ends of the buckets of latencies, in microseconds. Each is exact to the resolution of
/// [`Latency`]: what took up to a fifth less may be counted in the next one.
const BUCKETS: [u64; 16] = [
    10, 100, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 60_000_000,
];

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
        Page { encoder }.write(&Engine { inner }.stats())
    }
}

/// What is being written for one scrape.
struct Page<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl Page<'_> {
    fn write(&mut self, stats: &Stats) -> fmt::Result {
        self.topic_counters(&stats.topics)?;
        self.topic_gauges(&stats.topics)?;
        self.latencies(&stats.topics)?;
        self.hot_keys(&stats.topics)?;
        self.family(
            "lanes_ready",
            "Lanes that wait for a worker",
            MetricType::Gauge,
        )?
        .encode_gauge(&stats.ready_lanes)?;
        self.workers(&stats.workers)
    }

    fn topic_counters(&mut self, topics: &[TopicStats]) -> fmt::Result {
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
            self.counters(name, help, values)?;
        }
        Ok(())
    }

    fn topic_gauges(&mut self, topics: &[TopicStats]) -> fmt::Result {
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
            self.gauges(name, help, values)?;
        }
        Ok(())
    }

    fn latencies(&mut self, topics: &[TopicStats]) -> fmt::Result {
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
            let mut family = self.encoder.encode_descriptor(
                name,
                help,
                Some(&Unit::Seconds),
                MetricType::Histogram,
            )?;
            for topic in topics {
                let label = topic_label(topic);
                histogram(family.encode_family(&label)?, latency(topic))?;
            }
        }
        Ok(())
    }

    fn hot_keys(&mut self, topics: &[TopicStats]) -> fmt::Result {
        let values = topics.iter().flat_map(|topic| {
            topic.hottest.iter().map(move |hot| {
                let labels = Labels([("topic", Some(&*topic.topic)), ("key", Some(&*hot.key))]);
                (labels, hot.share)
            })
        });
        self.gauges(
            "lanes_hot_key_share",
            "The keys with the most work and their share of it, estimated",
            values,
        )
    }

    fn workers(&mut self, workers: &[WorkerStats]) -> fmt::Result {
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
            self.counters(name, help, values)?;
        }
        self.gauges(
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
        self.gauges(
            "lanes_worker_degraded",
            "1 while the worker rests because it restarted too often",
            labelled()
                .map(|(labels, worker)| (labels, u32::from(worker.state == WorkerState::Degraded))),
        )
    }

    fn family(
        &mut self,
        name: &'static str,
        help: &str,
        kind: MetricType,
    ) -> Result<MetricEncoder<'_>, fmt::Error> {
        self.encoder.encode_descriptor(name, help, None, kind)
    }

    fn counters<L: EncodeLabelSet, V: EncodeCounterValue>(
        &mut self,
        name: &'static str,
        help: &str,
        values: impl Iterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut family = self.family(name, help, MetricType::Counter)?;
        for (labels, value) in values {
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }

    fn gauges<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &'static str,
        help: &str,
        values: impl Iterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut family = self.family(name, help, MetricType::Gauge)?;
        for (labels, value) in values {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }
}

fn histogram(mut encoder: MetricEncoder<'_>, latency: &Latency) -> fmt::Result {
    let mut buckets = Vec::with_capacity(BUCKETS.len() + 1);
    let mut below = 0;
    for micros in BUCKETS {
        let limit = Duration::from_micros(micros);
        let at_most = latency.at_most(limit);
        buckets.push((limit.as_secs_f64(), at_most - below));
        below = at_most;
    }
    buckets.push((f64::INFINITY, latency.count() - below));
    encoder.encode_histogram::<NoLabelSet>(
        latency.sum().as_secs_f64(),
        latency.count(),
        &buckets,
        None,
    )
}

fn topic_label(topic: &TopicStats) -> Labels<'_, 1> {
    Labels([("topic", Some(&*topic.topic))])
}

/// Names and values; one without a value is left out.
struct Labels<'a, const N: usize>([(&'static str, Option<&'a str>); N]);

impl<const N: usize> EncodeLabelSet for Labels<'_, N> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        use prometheus_client::encoding::EncodeLabel;
        for (name, value) in self.0 {
            if let Some(value) = value {
                (name, value).encode(encoder.encode_label())?;
            }
        }
        Ok(())
    }
}
