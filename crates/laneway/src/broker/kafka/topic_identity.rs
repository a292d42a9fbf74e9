//! The identity of a topic: which one of its name it is, and how it is created once.
//!
//! Topics of one name that follow one another are told apart by their *birth*, a number in the catalog.
//! What groups have settled names the birth of its topic, and counts for no other. So a birth must change
//! when a topic is made anew, or old positions would skip new events; and it must not change while the topic
//! is there, or everything would be handled again.
//!
//! - Whether a topic is gone is asked of the controller. A partition without a leader is there; and a broker
//!   may not have heard of a topic yet.
//! - A birth is noted *before* its topic is made, as *pending*, by compare-and-set on the entry that was read
//!   before the controller was asked. If the controller said that the topic was gone, no topic of the old
//!   birth can come back, whatever happens next. Of several processes that find it gone one gets through;
//!   the others read its birth.
//! - A process that finds a pending birth without a topic makes the topic, under that birth. One that finds the topic
//!   says so in the catalog before it uses it; from then on the birth changes only by the rule above.

use super::cluster::{Plan, wait_until};
use super::server::{Kafka, TRIES};
use super::topics::{self, Declared, TopicHandle};
use crate::broker::BrokerError;
use crate::planted::planted;
use crate::topic::{Topic, TopicName};

impl Kafka {
    /// A topic that is in the catalog.
    pub(super) async fn ours(&self, declared: Declared) -> Result<TopicHandle, BrokerError> {
        let topic = declared.topic.name().clone();
        let name = self.names.topic(&topic);
        let mut declared = declared;
        for _ in 0..TRIES {
            let actual = self.actual(&topic, &name).await?;
            if actual.is_some() && declared.pending {
                // Before it is used, so that it is not taken for one that is still to come.
                let made = Declared {
                    pending: false,
                    ..declared.clone()
                };
                self.replace(&declared, &made).await?;
                declared = self.declared_still(&topic).await?;
                continue;
            }
            if let Some(actual) = actual {
                return Ok(TopicHandle {
                    topic: actual.of(declared.topic),
                    name,
                    born: declared.born,
                    is_foreign: declared.foreign,
                });
            }
            if declared.foreign {
                return Err(BrokerError::UnknownTopic(topic));
            }
            if !declared.pending {
                if !planted("A3") && !self.is_absent(&declared.topic, &name).await? {
                    continue;
                }
                // It was deleted with other tools: another one begins.
                let next = Declared {
                    born: new_birth(),
                    pending: true,
                    ..declared.clone()
                };
                self.replace(&declared, &next).await?;
                declared = self.declared_still(&topic).await?;
                continue;
            }
            self.create(&declared.topic, &name).await?;
        }
        Err(self.failed("looking up a topic", "it is deleted all the time"))
    }

    /// Notes a topic in the catalog and makes it; if we fail in between, it is made when it is looked up.
    /// Nothing if another process was faster, or if others have made a topic of that name meanwhile.
    pub(super) async fn create_declared(
        &self,
        topic: &Topic,
    ) -> Result<Option<Topic>, BrokerError> {
        let name = self.names.topic(topic.name());
        if !self.is_absent(topic, &name).await? {
            return Ok(None);
        }
        let entry = Declared::new(topic.clone(), new_birth(), false);
        let noting = self.change_entry(topic.name(), |before| {
            before.is_none().then(|| entry.write())
        });
        if !noting.await? {
            return Ok(None);
        }
        self.ours(entry).await?;
        Ok(Some(self.fresh_handle(topic.name()).await?.topic.clone()))
    }

    /// Changes an entry, if it still is the one that was read.
    async fn replace(&self, before: &Declared, after: &Declared) -> Result<bool, BrokerError> {
        let changing = self.change_entry(before.topic.name(), |entry| {
            before.is_same_birth(entry).then(|| after.write())
        });
        changing.await
    }

    async fn declared_still(&self, topic: &TopicName) -> Result<Declared, BrokerError> {
        let declared = self.declared(topic).await?;
        declared.ok_or_else(|| BrokerError::UnknownTopic(topic.clone()))
    }

    /// Whether the controller has no such topic. If it has, waits until brokers know of it.
    async fn is_absent(&self, topic: &Topic, name: &str) -> Result<bool, BrokerError> {
        let config = topics::config(topic, &self.options);
        let plan = self.plan(topic, name, &config);
        let failed = |error| self.failed("looking up a topic", error);
        let is_absent = plan.is_absent(&self.admin).await.map_err(failed)?;
        if !is_absent {
            wait_until(&self.asker, name, |shape| shape.is_some())
                .await
                .map_err(failed)?;
        }
        Ok(is_absent)
    }

    async fn create(&self, topic: &Topic, name: &str) -> Result<(), BrokerError> {
        let config = topics::config(topic, &self.options);
        let plan = self.plan(topic, name, &config);
        let creating = plan.create(&self.admin, &self.asker);
        creating
            .await
            .map_err(|error| self.failed("creating a topic", error))
    }

    fn plan<'a>(
        &self,
        topic: &Topic,
        name: &'a str,
        config: &'a [(&'static str, String)],
    ) -> Plan<'a> {
        Plan {
            name,
            partitions: topic.partitions().get(),
            copies: topic.replicas().or(self.options.replicas),
            config,
        }
    }
}

/// Never zero, which stands for topics of others.
fn new_birth() -> u64 {
    rand::random_range(1..u64::MAX)
}
