//! The hottest keys, in bounded memory.

use std::collections::HashMap;

/// How many keys are remembered. Whatever has more than one part in this many of the jobs is sure
/// to be among them.
const REMEMBERED: usize = 64;

/// A space-saving sketch: a counter for each of the last few candidates; a new key takes the place
/// and the count of the smallest, so that counts may be too high but a hot key is never missed.
#[derive(Debug, Default)]
pub(super) struct HotKeys {
    counts: HashMap<Box<str>, u64>,
    total: u64,
}

/// A key and how much of a topic's work it makes.
#[derive(Clone, Debug, PartialEq)]
pub struct HotKey {
    /// The key.
    pub key: String,
    /// Its share of the jobs, 0 to 1; estimated, rather too high than too low.
    pub share: f64,
}

impl HotKeys {
    pub(super) fn record(&mut self, key: &str, jobs: u64) {
        self.total += jobs;
        if let Some(count) = self.counts.get_mut(key) {
            *count += jobs;
            return;
        }
        let inherited = if self.counts.len() < REMEMBERED {
            0
        } else {
            let smallest = self
                .counts
                .iter()
                .min_by_key(|(_, count)| **count)
                .map(|(key, count)| (key.clone(), *count));
            let Some((key, count)) = smallest else {
                return;
            };
            self.counts.remove(&key);
            count
        };
        self.counts.insert(key.into(), inherited + jobs);
    }

    pub(super) fn hottest(&self, most: usize) -> Vec<HotKey> {
        let mut keys: Vec<_> = self.counts.iter().collect();
        keys.sort_unstable_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
        keys.into_iter()
            .take(most)
            .map(|(key, count)| HotKey {
                key: key.to_string(),
                share: *count as f64 / self.total as f64,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hot_key_is_found_among_a_crowd_and_memory_stays_bounded() {
        let mut hot = HotKeys::default();
        for n in 0..100_000 {
            hot.record(&format!("cold-{n}"), 1);
            if n % 10 == 0 {
                hot.record("hot", 1);
            }
        }
        assert_eq!(hot.counts.len(), REMEMBERED);
        let top = hot.hottest(1);
        assert_eq!(top[0].key, "hot");
        assert!((0.09..0.2).contains(&top[0].share), "{}", top[0].share);
    }

    #[test]
    fn nothing_recorded_is_no_hot_key() {
        assert!(HotKeys::default().hottest(10).is_empty());
    }
}
