//! The other members of a group: what they say of themselves, and how long ago they last did.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use async_nats::jetstream::kv::{self, Operation};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::names;
use super::rebalance::Holder;
use super::server::Nats;
use crate::broker::BrokerError;
use crate::topic::TopicName;

/// What a member says of itself.
#[derive(Default, Serialize, Deserialize)]
struct Description {
    group: String,
    held: BTreeSet<u32>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    leaving: BTreeSet<u32>,
    /// How long it may be silent, in milliseconds.
    #[serde(default)]
    lease_ms: Option<u64>,
}

/// The other members, as they were last seen.
#[derive(Default)]
pub(super) struct Peers(HashMap<String, Seen>);

struct Seen {
    holder: Holder,
    /// What it says that its lease is.
    lease: Option<Duration>,
    revision: u64,
    since: Instant,
}

impl Peers {
    pub(super) fn note(&mut self, id: &str, value: Option<&Bytes>, revision: u64) {
        let Some(value) = value else {
            self.0.remove(id);
            return;
        };
        if self.0.get(id).is_some_and(|seen| seen.revision >= revision) {
            return;
        }
        // One that cannot be read is there all the same.
        let description: Description = serde_json::from_slice(value).unwrap_or_default();
        let seen = Seen {
            holder: Holder {
                id: id.to_owned(),
                held: description.held,
                leaving: description.leaving,
            },
            lease: description.lease_ms.map(Duration::from_millis),
            revision,
            since: Instant::now(),
        };
        self.0.insert(id.to_owned(), seen);
    }

    /// Notes an entry of the bucket.
    pub(super) fn note_entry(&mut self, me: &str, entry: &kv::Entry) {
        let Some(id) = entry.key.rsplit('.').next().filter(|id| *id != me) else {
            return;
        };
        let value = (entry.operation == Operation::Put).then_some(&entry.value);
        self.note(id, value, entry.revision);
    }

    /// The members that have been silent for longer than their own lease allows, whatever ours is: until then
    /// their leases may be valid.
    pub(super) fn silent_for(&self, lease: Duration) -> Vec<(String, u64)> {
        let silent = self
            .0
            .iter()
            .filter(|(_, seen)| seen.since.elapsed() > silence(seen.lease.unwrap_or(lease)));
        silent
            .map(|(id, seen)| (id.clone(), seen.revision))
            .collect()
    }

    /// How long until the next one has been.
    pub(super) fn next_silent(&self, lease: Duration) -> Option<Duration> {
        let left = self.0.values().map(|seen| {
            let silence = silence(seen.lease.unwrap_or(lease));
            silence.saturating_sub(seen.since.elapsed())
        });
        left.min()
    }

    /// A member whose lease is none of these, with the revision of its entry.
    pub(super) fn with_other_lease(&self, known: &[Duration]) -> Option<(String, u64, Duration)> {
        self.0.iter().find_map(|(id, seen)| {
            let lease = seen.lease.filter(|lease| !known.contains(lease))?;
            Some((id.clone(), seen.revision, lease))
        })
    }

    pub(super) fn knows(&self, id: &str) -> bool {
        self.0.contains_key(id)
    }

    pub(super) fn forget(&mut self, id: &str) {
        self.0.remove(id);
    }

    /// What each of them holds.
    pub(super) fn holders(&self) -> impl Iterator<Item = Holder> {
        self.0.values().map(|seen| seen.holder.clone())
    }
}

/// What a member that holds so much says of itself.
pub(super) fn encode(group: &str, lease: Duration, holder: Holder) -> Bytes {
    let description = Description {
        group: group.to_owned(),
        held: holder.held,
        leaving: holder.leaving,
        lease_ms: u64::try_from(lease.as_millis()).ok(),
    };
    serde_json::to_vec(&description).unwrap_or_default().into()
}

impl Nats {
    /// An error if a group reads the topic. `check_unread` waits until a member that crashed has been silent for its
    /// whole lease.
    pub(super) async fn check_unread(&self, topic: &TopicName) -> Result<(), BrokerError> {
        let in_use = |group: String| BrokerError::InUseBy {
            topic: topic.clone(),
            group,
        };
        if let Some(group) = self.subscriptions.group_reading(topic) {
            return Err(in_use(group));
        }
        let before = self.members_of(topic).await?;
        if before.is_empty() {
            return Ok(());
        }
        let leases = before.values().filter_map(|(_, value)| {
            let description: Description = serde_json::from_slice(value).ok()?;
            description.lease_ms.map(Duration::from_millis)
        });
        let longest = leases.fold(self.options.session_or_default(), Duration::max);
        sleep(silence(longest)).await;
        let after = self.members_of(topic).await?;
        for (key, (revision, value)) in after {
            if before.get(&key).is_none_or(|(known, _)| *known != revision) {
                let description: Description = serde_json::from_slice(&value).unwrap_or_default();
                return Err(in_use(description.group));
            }
            // Evicted, so that it does not come back when another topic has the name.
            let _ = self.members.remove(&key, revision).await;
        }
        Ok(())
    }

    async fn members_of(
        &self,
        topic: &TopicName,
    ) -> Result<HashMap<String, (u64, Bytes)>, BrokerError> {
        let failed = |error| self.failed_with(error);
        let keys = self.members.keys(&names::all_of_topic(topic)).await;
        let mut members = HashMap::new();
        for key in keys.map_err(failed)? {
            let entry = self.members.read(&key).await.map_err(failed)?;
            if let Some(value) = entry.value {
                members.insert(key, (entry.revision, value));
            }
        }
        Ok(members)
    }
}

/// How long a member may send no heartbeat before it is evicted: its lease, and a margin for clocks that differ in
/// speed.
pub(super) fn silence(lease: Duration) -> Duration {
    lease + (lease / 10).max(Duration::from_millis(50))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixture_of_a_description_is_what_is_read_and_written() {
        let lease = Duration::from_secs(30);
        let holder = Holder {
            id: "m1".to_owned(),
            held: BTreeSet::from([0, 3]),
            leaving: BTreeSet::from([3]),
        };
        let written = encode("billing", lease, holder.clone());
        let written = String::from_utf8(written.to_vec()).expect("JSON");
        let text = fixtures::text("nats-member-1.json", || written.clone() + "\n");
        assert_eq!(written, text.trim());
        let mut peers = Peers::default();
        peers.note("m1", Some(&text.into()), 1);
        let seen = &peers.0["m1"];
        assert_eq!((&seen.holder, seen.lease), (&holder, Some(lease)));
    }
}
