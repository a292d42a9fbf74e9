use std::collections::BTreeMap;

use crate::Timestamp;
use crate::store::DueKey;

/// The moments of all messages that are queued or on their way, so that the first one is found without
/// looking at each.
#[derive(Debug, Default)]
pub(super) struct DueKeys {
    /// How many there are at each moment.
    counts: BTreeMap<Timestamp, usize>,
}

impl DueKeys {
    pub(super) fn add(&mut self, due_key: DueKey) {
        *self.counts.entry(due_key.at).or_default() += 1;
    }

    pub(super) fn remove(&mut self, due_key: DueKey) {
        if let Some(count) = self.counts.get_mut(&due_key.at) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&due_key.at);
            }
        }
    }

    /// None of them stands before this.
    pub(super) fn first(&self) -> Option<DueKey> {
        let (at, _) = self.counts.first_key_value()?;
        Some(DueKey::at(*at))
    }
}
