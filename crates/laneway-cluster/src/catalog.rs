//! What operators have set for a cluster: which workers topics have, which instances are drained or removed, which
//! records are passed over.
//!
//! The catalog is kept in a log of its own, of one partition. Each entry has the whole catalog, and names as its *base* the offset
//! of the entry that its author took for the current one. **Of all entries the one with the highest base counts; of several with
//! the same base, the first.** So two authors at the same time do not undo each other: the second one sees that its entry did not
//! count, and begins anew. What is before the current entry can be removed at any time, and a reader may begin anywhere before it.
//!
//! ```
//! use laneway_cluster::balance::{Placement, Strategy};
//! use laneway_cluster::catalog::{Catalog, Chain};
//!
//! let mut chain = Chain::default();
//! let mut wanted = chain.catalog().clone();
//! let placement = Placement { strategy: Strategy::RoundRobin, ..Placement::default() };
//! wanted.topics.insert("reminders".to_owned(), placement);
//! let (mine, theirs) = (chain.entry("a", wanted), chain.entry("b", Catalog::default()));
//! assert!(chain.note(0, mine));
//! assert!(!chain.note(1, theirs), "it was made without having seen the first");
//! assert_eq!(chain.catalog().placement("reminders").strategy, Strategy::RoundRobin);
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::balance::Placement;

/// The most instances that are remembered as drained, and as removed. Ids begin with the time at which they were drawn: the oldest
/// go first.
const MOST_INSTANCES: usize = 1_000;

/// So many authors are remembered whose entries counted.
const MOST_COUNTED: usize = 256;

/// What operators have set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Catalog {
    /// Topics of delayed messages for which something was set.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub topics: BTreeMap<String, Placement>,
    /// Instances that take nothing new, by their ids.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub drained: BTreeSet<String>,
    /// Instances that are members no more, by their ids.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub removed: BTreeSet<String>,
    /// What a later version has set: it is kept when this one changes something else.
    #[serde(flatten)]
    pub others: BTreeMap<String, Value>,
}

impl Catalog {
    /// What is set for a topic, or what is without.
    #[must_use]
    pub fn placement(&self, topic: &str) -> Placement {
        self.topics.get(topic).cloned().unwrap_or_default()
    }

    /// Drains an instance.
    pub fn drain(&mut self, id: impl Into<String>) {
        remember(&mut self.drained, id.into());
    }

    /// Removes an instance.
    pub fn remove(&mut self, id: impl Into<String>) {
        let id = id.into();
        self.drained.remove(&id);
        remember(&mut self.removed, id);
    }
}

fn remember(ids: &mut BTreeSet<String>, id: String) {
    ids.insert(id);
    while ids.len() > MOST_INSTANCES {
        ids.pop_first();
    }
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The offset of the entry that it follows; nothing if there was none.
    base: Option<u64>,
    /// Drawn by its author, to know it by.
    token: String,
    catalog: Catalog,
}

/// The entries that were read, as far as they matter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chain {
    current: Option<Current>,
    catalog: Catalog,
    /// The tokens of entries that counted, the latest ones last.
    counted: VecDeque<String>,
}

/// The entry that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Current {
    offset: u64,
    base: Option<u64>,
}

impl Chain {
    /// What is set.
    #[must_use]
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Where the current entry is. What is before it is not needed any more.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.current.map(|current| current.offset)
    }

    /// An entry that sets this, if nothing else was set meanwhile.
    #[must_use]
    pub fn entry(&self, token: impl Into<String>, catalog: Catalog) -> Entry {
        Entry {
            base: self.offset(),
            token: token.into(),
            catalog,
        }
    }

    /// The next entry of the log. Whether it counts.
    pub fn note(&mut self, offset: u64, entry: Entry) -> bool {
        let is_late = |current: Current| entry.base <= current.base;
        if self.current.is_some_and(is_late) {
            return false;
        }
        let base = entry.base;
        self.current = Some(Current { offset, base });
        self.catalog = entry.catalog;
        self.counted.push_back(entry.token);
        if self.counted.len() > MOST_COUNTED {
            self.counted.pop_front();
        }
        true
    }

    /// Whether the entry with this token has counted, lately.
    #[must_use]
    pub fn has_counted(&self, token: &str) -> bool {
        self.counted.iter().any(|counted| counted == token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::{Mapping, Strategy};

    fn entry(base: Option<u64>, topic: &str) -> Entry {
        let mut catalog = Catalog::default();
        catalog
            .topics
            .insert(topic.to_owned(), Placement::default());
        Entry {
            base,
            token: topic.to_owned(),
            catalog,
        }
    }

    fn topics(chain: &Chain) -> Vec<&str> {
        chain.catalog().topics.keys().map(String::as_str).collect()
    }

    #[test]
    fn of_two_with_the_same_base_the_first_counts_wherever_a_reader_begins() {
        let log = [
            (0, entry(None, "a")),
            (1, entry(None, "lost-1")),
            (4, entry(Some(0), "b")),
            (5, entry(Some(0), "lost-2")),
            (9, entry(Some(4), "c")),
            (10, entry(Some(0), "lost-3")),
        ];
        for from in 0..=4 {
            let mut chain = Chain::default();
            for (offset, entry) in &log[from..] {
                chain.note(*offset, entry.clone());
            }
            assert_eq!(topics(&chain), ["c"], "from {from}");
            assert_eq!(chain.offset(), Some(9));
            assert!(chain.has_counted("c") && !chain.has_counted("lost-3"));
        }
    }

    #[test]
    fn what_a_later_version_has_set_is_kept() {
        let later = r#"{"topics":{"t":{"mapping":{"some":["a"]},"strategy":"round-robin"}},"colours":{"t":"red"}}"#;
        let mut catalog: Catalog = serde_json::from_str(later).expect("it can be read");
        let placement = catalog.placement("t");
        assert_eq!(placement.strategy, Strategy::RoundRobin);
        assert_eq!(placement.mapping, Mapping::Some(["a".to_owned()].into()));
        catalog.topics.clear();
        let written = serde_json::to_string(&catalog).expect("JSON");
        assert_eq!(written, r#"{"colours":{"t":"red"}}"#);
        let default = Catalog::default().placement("other");
        assert_eq!(default.mapping, Mapping::All);
        assert_eq!(default.strategy, Strategy::SmoothWeightedRoundRobin);
    }

    #[test]
    fn instances_are_forgotten_in_the_order_of_their_ids() {
        let mut catalog = Catalog::default();
        for number in 0..1_500 {
            catalog.drain(format!("{number:04}"));
        }
        assert_eq!(catalog.drained.len(), 1_000);
        assert!(!catalog.drained.contains("0499") && catalog.drained.contains("0500"));
        catalog.remove("1499");
        assert!(!catalog.drained.contains("1499") && catalog.removed.contains("1499"));
    }
}
