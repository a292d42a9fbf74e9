//! What collectors of Prometheus metrics are made of: families, labels, durations.

use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabel, EncodeLabelSet,
    LabelSetEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use crate::Latency;

/// Upper ends of the buckets of durations, in microseconds. Each is exact to the resolution of
/// [`Latency`]: what took up to a fifth less may be counted in the next one.
const BUCKETS: [u64; 16] = [
    10, 100, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 60_000_000,
];

/// What is being written for one scrape. The format wants each name once, with all its labels.
pub struct Page<'a>(pub DescriptorEncoder<'a>);

impl Page<'_> {
    /// Counters of one name, each with its labels.
    ///
    /// # Errors
    /// When the page cannot be written.
    pub fn counters<L: EncodeLabelSet, V: EncodeCounterValue>(
        &mut self,
        name: &'static str,
        help: &str,
        values: impl Iterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }

    /// Gauges of one name, each with its labels.
    ///
    /// # Errors
    /// When the page cannot be written.
    pub fn gauges<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &'static str,
        help: &str,
        values: impl Iterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// A counter without labels.
    ///
    /// # Errors
    /// When the page cannot be written.
    pub fn counter(
        &mut self,
        name: &'static str,
        help: &str,
        value: &impl EncodeCounterValue,
    ) -> fmt::Result {
        self.0
            .encode_descriptor(name, help, None, MetricType::Counter)?
            .encode_counter::<NoLabelSet, _, u64>(value, None)
    }

    /// A gauge without labels.
    ///
    /// # Errors
    /// When the page cannot be written.
    pub fn gauge(
        &mut self,
        name: &'static str,
        help: &str,
        value: &impl EncodeGaugeValue,
    ) -> fmt::Result {
        self.0
            .encode_descriptor(name, help, None, MetricType::Gauge)?
            .encode_gauge(value)
    }

    /// Histograms in seconds; the unit becomes part of the name.
    ///
    /// # Errors
    /// When the page cannot be written.
    pub fn durations<L: EncodeLabelSet>(
        &mut self,
        name: &'static str,
        help: &str,
        values: impl Iterator<Item = (L, Latency)>,
    ) -> fmt::Result {
        let mut family =
            self.0
                .encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for (labels, latency) in values {
            family
                .encode_family(&labels)?
                .encode_histogram::<NoLabelSet>(
                    latency.sum().as_secs_f64(),
                    latency.count(),
                    &buckets(&latency),
                    None,
                )?;
        }
        Ok(())
    }
}

/// Each bucket alone; the encoder adds them up.
fn buckets(latency: &Latency) -> Vec<(f64, u64)> {
    let mut buckets = Vec::with_capacity(BUCKETS.len() + 1);
    let mut below = 0;
    for micros in BUCKETS {
        let limit = Duration::from_micros(micros);
        let at_most = latency.at_most(limit);
        buckets.push((limit.as_secs_f64(), at_most - below));
        below = at_most;
    }
    buckets.push((f64::INFINITY, latency.count() - below));
    buckets
}

/// Names and values; one without a value is left out.
#[derive(Clone, Copy)]
pub struct Labels<'a, const N: usize>(pub [(&'static str, Option<&'a str>); N]);

impl<const N: usize> EncodeLabelSet for Labels<'_, N> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        for (name, value) in self.0 {
            if let Some(value) = value {
                (name, value).encode(encoder.encode_label())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Histogram;

    #[test]
    fn durations_are_in_their_buckets() {
        let histogram = Histogram::default();
        for micros in [5, 50, 50, 3_000, 90_000_000] {
            histogram.record(micros * 1000);
        }
        let mut latency = Latency::default();
        histogram.add_to(&mut latency);
        let full: Vec<_> = buckets(&latency)
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .collect();
        assert_eq!(full, [(1e-5, 1), (1e-4, 2), (5e-3, 1), (f64::INFINITY, 1)]);
    }
}
