//! What is counted of publishes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::lanes::Histogram;

/// What is counted of the publishes to a topic.
#[derive(Debug, Default)]
pub(super) struct Publishes {
    pub(super) records: AtomicU64,
    pub(super) errors: AtomicU64,
    pub(super) duration: Histogram,
}

impl Publishes {
    pub(super) fn count<T, E>(&self, records: u64, took: Duration, result: &Result<T, E>) {
        let counter = match result {
            Ok(_) => &self.records,
            Err(_) => &self.errors,
        };
        counter.fetch_add(records, Relaxed);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.duration.record(nanos);
        self.duration.add_to_sum(nanos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::Latency;

    #[test]
    fn a_publish_counts_as_many_records_as_it_has_and_once_for_its_duration() {
        let publishes = Publishes::default();
        publishes.count(3, Duration::from_micros(5), &Ok::<_, ()>(()));
        publishes.count(2, Duration::from_micros(1), &Err::<(), _>(()));
        assert_eq!(publishes.records.load(Relaxed), 3);
        assert_eq!(publishes.errors.load(Relaxed), 2);
        let mut latency = Latency::default();
        publishes.duration.add_to(&mut latency);
        assert_eq!((latency.count(), latency.sum().as_micros()), (2, 6));
    }
}
