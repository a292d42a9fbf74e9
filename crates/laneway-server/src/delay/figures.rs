//! What is counted about delayed messages.

use std::sync::Arc;
use std::time::SystemTime;

use laneway_delay::callback::{Client, Delivered, Trouble};
use laneway_delay::{
    Accepted, Delays, Error, Firing, StateName, Timestamp, TopicCounts, Undelivered,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// The figures. Cheap to clone. Topics are not labels: clients can make up any number of them.
#[derive(Clone, Debug)]
pub(crate) struct Figures(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    submitted: Family<Outcome, Counter>,
    fired: Counter,
    lateness: Histogram,
    callbacks: Family<Outcome, Counter>,
    callback_duration: Histogram,
    published: Family<Outcome, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

impl Figures {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner {
            submitted: Family::default(),
            fired: Counter::default(),
            // From 0.5 ms to about 33 s.
            lateness: Histogram::new(exponential_buckets(0.000_5, 2.0, 17)),
            callbacks: Family::default(),
            // From 1 ms to about 16 s.
            callback_duration: Histogram::new(exponential_buckets(0.001, 4.0, 8)),
            published: Family::default(),
        }))
    }

    /// Makes the figures visible, and those that are asked of others when somebody looks.
    pub(crate) fn register(&self, registry: &mut Registry, delays: Delays, client: Client) {
        let inner = &self.0;
        registry.register(
            "delay_submitted",
            "Messages submitted",
            inner.submitted.clone(),
        );
        registry.register("delay_fired", "Attempts started", inner.fired.clone());
        registry.register_with_unit(
            "delay_lateness",
            "From the due time to the start of the first attempt",
            Unit::Seconds,
            inner.lateness.clone(),
        );
        registry.register(
            "delay_callbacks",
            "Callbacks by how they ended",
            inner.callbacks.clone(),
        );
        registry.register_with_unit(
            "delay_callback_duration",
            "From sending a callback to the head of its answer, if that was 2xx",
            Unit::Seconds,
            inner.callback_duration.clone(),
        );
        registry.register(
            "delay_published",
            "Messages published to the bus",
            inner.published.clone(),
        );
        registry.register_collector(Box::new(Held { delays, client }));
    }

    pub(crate) fn submitted(&self, result: &Result<Accepted, Error>) {
        let outcome = match result {
            Ok(accepted) if accepted.is_new => "accepted",
            Ok(_) => "duplicate",
            Err(_) => "refused",
        };
        count(&self.0.submitted, outcome);
    }

    pub(crate) fn refused(&self) {
        count(&self.0.submitted, "refused");
    }

    pub(super) fn started(&self, firing: &Firing) {
        self.0.fired.inc();
        if firing.attempt() == 1 {
            let late = Timestamp::from(SystemTime::now()).since(firing.due());
            self.0.lateness.observe(late.as_secs_f64());
        }
    }

    pub(super) fn called(&self, result: &Result<Delivered, Trouble>) {
        match result {
            Ok(delivered) => {
                count(&self.0.callbacks, "delivered");
                self.0
                    .callback_duration
                    .observe(delivered.took.as_secs_f64());
            }
            Err(trouble) => count(&self.0.callbacks, trouble.kind()),
        }
    }

    pub(super) fn published(&self, result: &Result<(), Undelivered>) {
        let outcome = if result.is_ok() {
            "delivered"
        } else {
            "failed"
        };
        count(&self.0.published, outcome);
    }
}

fn count(family: &Family<Outcome, Counter>, outcome: &'static str) {
    family.get_or_create(&Outcome { outcome }).inc();
}

/// How many messages there are now. The store knows, so nobody else counts.
#[derive(Debug)]
struct Held {
    delays: Delays,
    client: Client,
}

impl Collector for Held {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let counts = self.delays.counts();
        let mut messages = encoder.encode_descriptor(
            "delay_messages",
            "Messages by state; ended ones until they are forgotten",
            None,
            prometheus_client::metrics::MetricType::Gauge,
        )?;
        for state in StateName::ALL {
            let total: u64 = counts.values().map(|counts| in_state(counts, state)).sum();
            let labels = [("state", state.name())];
            let family = messages.encode_family(&labels)?;
            ConstGauge::new(i64::try_from(total).unwrap_or(i64::MAX)).encode(family)?;
        }
        let open = encoder.encode_descriptor(
            "delay_open_circuits",
            "Hosts that nothing is sent to now, because they failed too often",
            None,
            prometheus_client::metrics::MetricType::Gauge,
        )?;
        let hosts = i64::try_from(self.client.open_circuits()).unwrap_or(i64::MAX);
        ConstGauge::new(hosts).encode(open)
    }
}

fn in_state(counts: &TopicCounts, state: StateName) -> u64 {
    match state {
        StateName::Scheduled => counts.scheduled,
        StateName::Firing => counts.firing,
        StateName::Delivered => counts.delivered,
        StateName::Dead => counts.dead,
        StateName::Withdrawn => counts.withdrawn,
        _ => 0,
    }
}
