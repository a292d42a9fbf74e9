//! A histogram of durations: four buckets for every power of two, so within 25 % everywhere.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Durations from 2^40 ns (18 minutes) on share the last bucket.
const BUCKETS: usize = 4 * 40;

/// Counts durations; many threads may do so at once.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_nanos: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            sum_nanos: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    /// Counts one duration. Its part of the sum is left to [`add_to_sum`](Self::add_to_sum), which
    /// a turn calls once for all of its jobs.
    pub fn record(&self, nanos: u64) {
        self.buckets[index(nanos)].fetch_add(1, Ordering::Relaxed);
    }

    /// Adds to the sum of what was counted.
    pub fn add_to_sum(&self, nanos: u64) {
        self.sum_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Adds all that was counted to a total.
    pub fn add_to(&self, total: &mut Latency) {
        for (sum, bucket) in total.counts.iter_mut().zip(&self.buckets) {
            *sum += bucket.load(Ordering::Relaxed);
        }
        total.sum_nanos += u128::from(self.sum_nanos.load(Ordering::Relaxed));
    }
}

fn index(nanos: u64) -> usize {
    if nanos < 4 {
        return usize::try_from(nanos).unwrap_or(0);
    }
    let power = nanos.ilog2() as usize;
    let quarter = usize::try_from((nanos >> (power - 2)) & 3).unwrap_or(0);
    (4 * (power - 1) + quarter).min(BUCKETS - 1)
}

/// The largest duration that falls into a bucket.
fn upper(index: usize) -> u64 {
    if index < 4 {
        return index as u64;
    }
    let power = index / 4 + 1;
    let quarter = index as u64 % 4;
    ((4 + quarter + 1) << (power - 2)) - 1
}

/// How long something took, as a distribution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    counts: Vec<u64>,
    sum_nanos: u128,
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            sum_nanos: 0,
        }
    }
}

impl Latency {
    /// How many were measured.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(u64::try_from(self.sum_nanos).unwrap_or(u64::MAX))
    }

    /// The duration that a share `quantile` (0 to 1) of them did not exceed, within 25 %; zero when
    /// nothing was measured.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Duration {
        let count = self.count();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rank between 0 and the count"
        )]
        let rank = (quantile.clamp(0.0, 1.0) * count as f64).ceil() as u64;
        let mut seen = 0;
        for (index, bucket) in self.counts.iter().enumerate() {
            seen += bucket;
            if *bucket > 0 && seen >= rank {
                return Duration::from_nanos(upper(index));
            }
        }
        Duration::ZERO
    }

    /// How many took at most `limit` (to the nearest bucket below it).
    #[must_use]
    pub fn at_most(&self, limit: Duration) -> u64 {
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        self.counts
            .iter()
            .enumerate()
            .take_while(|(index, _)| upper(*index) <= nanos)
            .map(|(_, count)| count)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_in_the_bucket_whose_upper_end_is_next_above_it() {
        for nanos in (0..100_000).chain((10..39).map(|p| (1 << p) + 1)) {
            let index = index(nanos);
            assert!(nanos <= upper(index), "{nanos}");
            assert!(index == 0 || nanos > upper(index - 1), "{nanos}");
            assert!(
                upper(index) - nanos <= nanos / 4 + 1,
                "{nanos}: within 25 %"
            );
        }
    }

    #[test]
    fn quantiles_are_upper_ends() {
        let histogram = Histogram::default();
        for micros in 1..=1000 {
            histogram.record(micros * 1000);
            histogram.add_to_sum(micros * 1000);
        }
        let mut latency = Latency::default();
        histogram.add_to(&mut latency);
        assert_eq!(latency.count(), 1000);
        let median = latency.quantile(0.5).as_micros();
        assert!((500..=640).contains(&median), "{median}");
        assert!(latency.quantile(1.0) >= Duration::from_millis(1));
        assert_eq!(latency.sum(), Duration::from_micros(500_500));
        assert_eq!(latency.at_most(Duration::from_secs(1)), 1000);
    }

    #[test]
    fn nothing_measured_is_zero_and_the_longest_has_a_place() {
        assert_eq!(Latency::default().quantile(0.99), Duration::ZERO);
        Histogram::default().record(u64::MAX);
    }
}
