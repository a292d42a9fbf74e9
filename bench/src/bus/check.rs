//! Checks every handled event: is it the next one of its key?

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use tokio::sync::Notify;

use super::load::{KEYS, key_number};
use crate::frame::Sample;
use crate::results::{Figures, Results};

/// What was counted, by name, in the table and in the figures.
const ORDER_VIOLATIONS: &str = "order_violations";
/// Published and never handled.
const LOST: &str = "lost";

/// Follows the events of all keys. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Checker(Arc<Inner>);

struct Inner {
    /// The next sequence number of each key.
    next: Vec<AtomicU32>,
    handled: AtomicU64,
    expected: u64,
    violations: AtomicU64,
    all_handled: Notify,
}

impl Checker {
    /// For so many events in all.
    pub(crate) fn new(expected: u64) -> Self {
        Self(Arc::new(Inner {
            next: (0..KEYS).map(|_| AtomicU32::new(0)).collect(),
            handled: AtomicU64::new(0),
            expected,
            violations: AtomicU64::new(0),
            all_handled: Notify::new(),
        }))
    }

    /// An event was handled that is among the expected ones.
    pub(crate) fn handled(&self, key: &str, sequence: u32) {
        self.seen(key, sequence);
        if self.0.handled.fetch_add(1, Relaxed) + 1 == self.0.expected {
            self.0.all_handled.notify_one();
        }
    }

    /// An event was handled that nobody waits for. One that comes again counts as a violation too:
    /// nothing failed here.
    pub(crate) fn seen(&self, key: &str, sequence: u32) {
        let next = key_number(key).and_then(|key| self.0.next.get(key));
        let in_order = next.is_some_and(|next| {
            // No read-modify-write: if two of a key ran at a time, that would be seen below.
            let expected = next.load(Relaxed);
            next.store(sequence + 1, Relaxed);
            expected == sequence
        });
        if !in_order {
            self.0.violations.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.0.handled.load(Relaxed)
    }

    /// Resolves when as many were handled as were expected.
    pub(crate) async fn all_handled(&self) {
        self.0.all_handled.notified().await;
    }

    /// Adds what was counted. `published` of each key: what is missing at its end is lost.
    pub(crate) fn sample(&self, sample: Sample, per_key: impl Fn(usize) -> u32) -> Sample {
        let lost: u64 = self
            .0
            .next
            .iter()
            .enumerate()
            .map(|(key, next)| u64::from(per_key(key).saturating_sub(next.load(Relaxed))))
            .sum();
        sample
            .count(ORDER_VIOLATIONS, self.0.violations.load(Relaxed))
            .count(LOST, lost)
    }
}

/// Sets the figures of what was counted, over all these scenarios and contenders.
pub(crate) fn figures(results: &Results, figures: &mut Figures, checked: &[(&str, &str)]) {
    for name in [ORDER_VIOLATIONS, LOST] {
        let counts = checked
            .iter()
            .map(|(scenario, contender)| results.count(scenario, contender, name));
        figures.set_count(name, counts.sum());
    }
}
