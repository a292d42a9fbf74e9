//! Who is in a group: what members say of themselves, and how long ago they last did.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use async_nats::jetstream::kv::{self, Operation};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::names;
use super::server::Server;
use super::share::Holder;
use crate::broker::BrokerError;
use crate::topic::TopicName;

/// What a member says of itself.
#[derive(Default, Serialize, Deserialize)]
struct Description {
    group: String,
    held: BTreeSet<u32>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    leaving: BTreeSet<u32>,
}

/// The other members, as they were last seen.
#[derive(Default)]
pub(super) struct Others(HashMap<String, Seen>);

struct Seen {
    holder: Holder,
    revision: u64,
    since: Instant,
}

impl Others {
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

    /// Those who have been silent for so long.
    pub(super) fn silent_for(&self, silence: Duration) -> Vec<(String, u64)> {
        let silent = self
            .0
            .iter()
            .filter(|(_, seen)| seen.since.elapsed() > silence);
        silent
            .map(|(id, seen)| (id.clone(), seen.revision))
            .collect()
    }

    /// When the next one will have been.
    pub(super) fn next_silent(&self, silence: Duration) -> Option<Duration> {
        let left = self
            .0
            .values()
            .map(|seen| silence.saturating_sub(seen.since.elapsed()));
        left.min()
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
pub(super) fn encode(group: &str, holder: Holder) -> Bytes {
    let description = Description {
        group: group.to_owned(),
        held: holder.held,
        leaving: holder.leaving,
    };
    serde_json::to_vec(&description).unwrap_or_default().into()
}

impl Server {
    /// Whether nobody reads a topic. A member that crashed is waited for until it is silent for sure.
    pub(super) async fn check_unread(&self, topic: &TopicName) -> Result<(), BrokerError> {
        let in_use = |group: String| BrokerError::InUseBy {
            topic: topic.clone(),
            group,
        };
        if let Some(group) = self.seats.group_at(topic) {
            return Err(in_use(group));
        }
        let before = self.members_of(topic).await?;
        if before.is_empty() {
            return Ok(());
        }
        sleep(silence(self.options.lease)).await;
        let after = self.members_of(topic).await?;
        for (key, (revision, value)) in after {
            if before.get(&key).is_none_or(|(known, _)| *known != revision) {
                let description: Description = serde_json::from_slice(&value).unwrap_or_default();
                return Err(in_use(description.group));
            }
            // It must not come back when the topic is another one.
            let _ = self.members.remove(&key, revision).await;
        }
        Ok(())
    }

    async fn members_of(
        &self,
        topic: &TopicName,
    ) -> Result<HashMap<String, (u64, Bytes)>, BrokerError> {
        let trouble = |trouble| self.trouble(trouble);
        let keys = self.members.keys(&names::all_of_topic(topic)).await;
        let mut members = HashMap::new();
        for key in keys.map_err(trouble)? {
            let entry = self.members.read(&key).await.map_err(trouble)?;
            if let Some(value) = entry.value {
                members.insert(key, (entry.revision, value));
            }
        }
        Ok(members)
    }
}

/// So long nothing may be heard of a member before it is taken for dead. Clocks may differ in speed,
/// a little.
pub(super) fn silence(lease: Duration) -> Duration {
    lease + (lease / 10).max(Duration::from_millis(50))
}
