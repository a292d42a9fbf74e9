//! Orders of events that are particular to lanes.

use crate::workload::{Event, Workload};

/// All events of the first key, then all of the second, and so on.
pub(super) fn bursts(keys: u32, per_key: u32) -> Workload {
    let mut workload = Workload::interleaved(keys, per_key);
    workload.events.sort_by_key(|event| event.key);
    workload
}

/// Keys by a zipf distribution with exponent 1: the n-th key is drawn one n-th as often as the
/// first. From a fixed seed, so that every run has the same events.
pub(super) fn zipf(keys: u32, events: usize) -> Workload {
    let weights: Vec<f64> = (1..=keys).map(|rank| 1.0 / f64::from(rank)).collect();
    let mut sums = Vec::with_capacity(weights.len());
    let mut total = 0.0;
    for weight in weights {
        total += weight;
        sums.push(total);
    }
    let mut workload = Workload::interleaved(keys, 0);
    let mut sequences = vec![0u32; keys as usize];
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for _ in 0..events {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let point = total * (state >> 11) as f64 / (1u64 << 53) as f64;
        let index = sums.partition_point(|sum| *sum < point).min(sums.len() - 1);
        workload.events.push(Event {
            key: u32::try_from(index).unwrap_or(0),
            sequence: sequences[index],
        });
        sequences[index] += 1;
    }
    workload
}

/// How many events the busiest key has.
pub(super) fn busiest(workload: &Workload) -> usize {
    let mut counts = vec![0; workload.keys.len()];
    for event in &workload.events {
        counts[event.key as usize] += 1;
    }
    counts.into_iter().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_of_a_zipf_has_about_a_tenth() {
        let workload = zipf(10_000, 50_000);
        let share = busiest(&workload) as f64 / 50_000.0;
        assert!((0.09..0.115).contains(&share), "{share}");
    }

    #[test]
    fn bursts_keep_the_order_of_a_key() {
        let workload = bursts(3, 4);
        let keys: Vec<_> = workload.events.iter().map(|event| event.key).collect();
        assert_eq!(keys, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
        let sequences: Vec<_> = workload.events[..4].iter().map(|e| e.sequence).collect();
        assert_eq!(sequences, [0, 1, 2, 3]);
    }
}
