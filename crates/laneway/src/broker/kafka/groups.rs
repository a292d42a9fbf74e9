//! What the catalog remembers of groups.
//!
//! Kafka forgets what a group has committed when it had no member for `offsets.retention.minutes`. The
//! catalog forgets nothing: it knows that a group has read a topic, so that one that starts at the newest
//! event does so once; and where its partitions were, as of some minutes ago.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::server::Kafka;
use super::topics::TopicHandle;
use crate::broker::BrokerError;

/// What is kept of a group that reads a topic.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Remembered {
    /// The birth of the topic.
    born: u64,
    /// Everything below is settled, by partition.
    lows: BTreeMap<u32, u64>,
    /// What a later version of this program has to say.
    #[serde(flatten)]
    later: Map<String, Value>,
}

impl Remembered {
    fn read(value: Option<&Value>, born: u64) -> Option<Self> {
        let entry = Self::deserialize(value?).ok()?;
        (entry.born == born).then_some(entry)
    }

    /// The entry with these, too; nothing if it knows them.
    fn with(before: Option<&Value>, born: u64, lows: &BTreeMap<u32, u64>) -> Option<Value> {
        let known = Self::read(before, born);
        let is_known = known.is_some();
        let mut entry = known.unwrap_or_else(|| Self {
            born,
            lows: BTreeMap::new(),
            later: Map::new(),
        });
        let mut is_news = !is_known;
        for (partition, low) in lows {
            let known = entry.lows.entry(*partition).or_default();
            is_news |= low > known;
            *known = (*known).max(*low);
        }
        is_news.then(|| serde_json::to_value(entry).unwrap_or_default())
    }
}

/// What the entries of all groups of a topic begin with.
pub(super) fn group_entries(handle: &TopicHandle) -> String {
    format!("group/{}/", handle.name)
}

fn group_entry(handle: &TopicHandle, group: &str) -> String {
    format!("{}{group}", group_entries(handle))
}

impl Kafka {
    /// Where a group was, if it has read the topic before.
    pub(super) async fn remembered(
        &self,
        handle: &TopicHandle,
        group: &str,
    ) -> Result<Option<BTreeMap<u32, u64>>, BrokerError> {
        let read = self.catalog.read(&group_entry(handle, group)).await;
        let value = read.map_err(|error| self.failed("reading the catalog", error))?;
        Ok(Remembered::read(value.as_ref(), handle.born).map(|entry| entry.lows))
    }

    /// The same, as it was when the catalog was last read.
    pub(super) fn last_remembered(&self, handle: &TopicHandle, group: &str) -> BTreeMap<u32, u64> {
        let value = self.catalog.known(&group_entry(handle, group));
        let entry = Remembered::read(value.as_ref(), handle.born);
        entry.map_or_else(BTreeMap::new, |entry| entry.lows)
    }

    /// Remembers that a group reads a topic, and where it is. It never goes back.
    pub(super) async fn remember(
        &self,
        handle: &TopicHandle,
        group: &str,
        lows: &BTreeMap<u32, u64>,
    ) -> Result<(), BrokerError> {
        let entry = group_entry(handle, group);
        let with = |before: Option<&Value>| Remembered::with(before, handle.born, lows);
        let changed = self.catalog.change(&entry, with).await;
        changed
            .map(drop)
            .map_err(|error| self.failed("writing to the catalog", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(before: Option<&Value>, born: u64, lows: &[(u32, u64)]) -> Option<Value> {
        Remembered::with(before, born, &lows.iter().copied().collect())
    }

    #[test]
    fn the_fixture_of_an_entry_is_what_is_read_and_written() {
        let written = with(None, 7, &[(0, 5), (11, 7)]).expect("news").to_string();
        let text = fixtures::text("kafka-group-entry-1.json", || written.clone() + "\n");
        assert_eq!(written, text.trim());
        let value = serde_json::from_str(&text).expect("JSON");
        let entry = Remembered::read(Some(&value), 7).expect("an entry");
        assert_eq!(entry.lows, BTreeMap::from([(0, 5), (11, 7)]));
    }

    #[test]
    fn a_group_is_remembered_once_and_never_goes_back() {
        let first = with(None, 1, &[]).expect("it is news that it reads the topic");
        assert_eq!(with(Some(&first), 1, &[]), None);
        let at = with(Some(&first), 1, &[(0, 5), (1, 7)]).expect("news");
        assert_eq!(with(Some(&at), 1, &[(0, 4), (1, 7)]), None);
        let later = with(Some(&at), 1, &[(0, 4), (1, 8)]).expect("news");
        let entry = Remembered::read(Some(&later), 1).expect("an entry");
        assert_eq!(entry.lows, BTreeMap::from([(0, 5), (1, 8)]));
    }

    #[test]
    fn what_is_remembered_is_about_one_topic() {
        let before = with(None, 1, &[(0, 5)]).expect("news");
        let next = with(Some(&before), 2, &[]).expect("another topic begins");
        let entry = Remembered::read(Some(&next), 2).expect("an entry");
        assert!(entry.lows.is_empty());
    }

    #[test]
    fn what_a_later_version_remembers_is_kept() {
        let entry = serde_json::json!({ "born": 1, "lows": { "0": 5 }, "paused": true });
        let changed = with(Some(&entry), 1, &[(0, 6)]).expect("news");
        assert_eq!(changed["paused"], true);
        assert_eq!(changed["lows"]["0"], 6);
    }
}
