//! The keys of a subscription that are parked.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError};

use smol_str::SmolStr;

use super::error::Error;
use super::letters::LetterBox;

/// The place of an event in its topic: partition and offset.
type Place = (u32, u64);

/// The keys that are parked, each with the last event of it that was.
#[derive(Debug, Default)]
pub(super) struct ParkedKeys(Mutex<HashMap<SmolStr, Last>>);

/// The last event of a key that was parked.
#[derive(Clone, Copy, Debug)]
struct Last {
    partition: u32,
    /// Nothing if the key is held, and the event is not put aside yet.
    offset: Option<u64>,
}

impl ParkedKeys {
    /// Learns what is parked for a group in some partitions. Nobody may park or release anything of
    /// theirs meanwhile.
    pub(super) async fn load(
        &self,
        letters: &LetterBox,
        group: &str,
        partitions: &[u32],
    ) -> Result<(), Error> {
        let mut loaded = HashMap::new();
        letters
            .visit(|letter| {
                if letter.group == group
                    && let Some(key) = letter.key
                {
                    let (partition, offset) = letter.origin;
                    let partition = u32::try_from(partition).unwrap_or_default();
                    if partitions.contains(&partition) {
                        let last = Some(offset);
                        loaded.insert(
                            key,
                            Last {
                                partition,
                                offset: last,
                            },
                        );
                    }
                }
                ControlFlow::Continue(())
            })
            .await?;
        let mut keys = self.keys();
        // What another owner has released since is released.
        keys.retain(|_, last| !partitions.contains(&last.partition));
        keys.extend(loaded);
        Ok(())
    }

    pub(super) fn contains(&self, key: &str) -> bool {
        let keys = self.keys();
        !keys.is_empty() && keys.contains_key(key)
    }

    /// Parks a key. Answers whether this event of it is still to be put aside: after a crash events
    /// come again that are among the parked ones already, and a second time they would be behind
    /// later ones.
    pub(super) fn hold(&self, key: &str, (partition, offset): Place) -> bool {
        let mut keys = self.keys();
        if let Some(last) = keys.get(key) {
            return last.partition != partition || last.offset.is_none_or(|at| at < offset);
        }
        let held = Last {
            partition,
            offset: None,
        };
        keys.insert(SmolStr::new(key), held);
        true
    }

    /// The event was put aside.
    pub(super) fn parked(&self, key: &str, (partition, offset): Place) {
        if let Some(last) = self.keys().get_mut(key) {
            *last = Last {
                partition,
                offset: Some(offset),
            };
        }
    }

    pub(super) fn remove(&self, key: &str) {
        self.keys().remove(key);
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<SmolStr, Last>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_parked_already_is_not_parked_again() {
        let keys = ParkedKeys::default();
        assert!(!keys.contains("k"));
        assert!(keys.hold("k", (0, 5)));
        assert!(keys.contains("k"));
        assert!(keys.hold("k", (0, 5)), "it was held, and not yet put aside");
        keys.parked("k", (0, 5));
        assert!(!keys.hold("k", (0, 4)));
        assert!(!keys.hold("k", (0, 5)));
        assert!(keys.hold("k", (0, 6)));
        assert!(keys.hold("k", (1, 0)), "the topic has grown");
        keys.remove("k");
        assert!(!keys.contains("k"));
    }
}
