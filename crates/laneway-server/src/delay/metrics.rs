//! Metrics of delayed messages.

use std::sync::Arc;
use std::time::Duration;

use laneway_delay::callback::{CallError, Client};
use laneway_delay::{Accepted, Firing, StateName, Timestamp, TopicCounts, Undelivered};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::messages::{Error, Messages};

/// Metrics of delayed messages. Cheap to clone. Topics are not labels: clients can make up any number of them.
#[derive(Clone, Debug)]
pub(crate) struct Metrics(Arc<Inner>);

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

impl Metrics {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner {
            submitted: family(&["accepted", "duplicate", "refused"]),
            fired: Counter::default(),
            // From 0.5 ms to about 33 s.
            lateness: Histogram::new(exponential_buckets(0.000_5, 2.0, 17)),
            callbacks: family(&[&["delivered", "failed"][..], &CallError::KINDS].concat()),
            // From 1 ms to about 16 s.
            callback_duration: Histogram::new(exponential_buckets(0.001, 4.0, 8)),
            published: family(&["delivered", "failed"]),
        }))
    }

    /// Registers the metrics, and a collector for those that the store and the client know.
    pub(crate) fn register(
        &self,
        registry: &mut Registry,
        delays: Arc<dyn Messages>,
        client: Client,
    ) {
        let inner = &self.0;
        registry.register(
            "delay_submitted",
            "Messages submitted",
            inner.submitted.clone(),
        );
        registry.register("delay_fired", "Attempts made", inner.fired.clone());
        registry.register_with_unit(
            "delay_lateness",
            "From the due time, or the submission if that was later, to the start of the first attempt",
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
            "From the start of a callback to the end of its answer, if that was 2xx",
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

    /// Counts an attempt that began then, unless it was put off before anything was sent.
    fn fired(&self, firing: &Firing, began: Timestamp, result: &Result<(), Undelivered>) {
        if result.as_ref().is_err_and(|failed| !failed.is_attempt()) {
            return;
        }
        self.0.fired.inc();
        if firing.attempt() == 1 {
            // A client that submits what was due long ago is not served late.
            let due = firing.due().max(firing.message.accepted);
            self.0.lateness.observe(began.since(due).as_secs_f64());
        }
    }

    /// A callback that began then and took so long has ended.
    pub(super) fn called(
        &self,
        firing: &Firing,
        began: Timestamp,
        took: Duration,
        result: &Result<(), Undelivered>,
    ) {
        self.fired(firing, began, result);
        match result {
            Ok(()) => {
                count(&self.0.callbacks, "delivered");
                self.0.callback_duration.observe(took.as_secs_f64());
            }
            Err(undelivered) => count(&self.0.callbacks, undelivered.kind),
        }
    }

    /// An event that was handed to the bus then was answered.
    pub(super) fn published(
        &self,
        firing: &Firing,
        began: Timestamp,
        result: &Result<(), Undelivered>,
    ) {
        match result {
            Ok(()) => {
                self.fired(firing, began, result);
                count(&self.0.published, "delivered");
            }
            // It waits in its place and is handed over again: no attempt of its own.
            Err(_) => count(&self.0.published, "failed"),
        }
    }
}

/// Counters for all outcomes, so that the first of each is an increase from 0.
fn family(outcomes: &[&'static str]) -> Family<Outcome, Counter> {
    let family = Family::default();
    for outcome in outcomes {
        drop(family.get_or_create(&Outcome { outcome }));
    }
    family
}

fn count(family: &Family<Outcome, Counter>, outcome: &'static str) {
    family.get_or_create(&Outcome { outcome }).inc();
}

/// What the store and the client know is asked of them, not counted a second time.
#[derive(Debug)]
struct Held {
    delays: Arc<dyn Messages>,
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
        let deaths = encoder.encode_descriptor(
            "delay_deaths",
            "Messages that became dead letters",
            None,
            prometheus_client::metrics::MetricType::Counter,
        )?;
        ConstCounter::new(self.delays.deaths()).encode(deaths)?;
        let open = encoder.encode_descriptor(
            "delay_open_circuits",
            "Hosts, and topics at hosts, that nothing is sent to now, because that failed too often",
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
