//! A topic gets more partitions, while processes publish to it.
//!
//! Of a key's events, those that are published by the old number and those by the new one are in two partitions,
//! and not in order with each other. That cannot be helped for what is there already. But it must end: no event may
//! be published by the old number after one was by the new one. So the process that lets a topic grow says so in
//! the catalog first, and waits for longer than processes go without looking there. From when a process has seen it,
//! it publishes nothing to the topic until the catalog says that the topic has grown, and then by the new number.
//!
//! A process that cannot read the catalog goes by what it knows: to publish must not depend on that. So its events may be
//! by the old number until it can.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rdkafka::admin::NewPartitions;
use rdkafka::error::KafkaError;
use tokio::time::sleep;

use super::cluster::{done, wait_for, within};
use super::refresh::EVERY;
use super::server::Kafka;
use super::topics::{Declared, TopicHandle};
use crate::broker::BrokerError;
use crate::topic::{Kind, Partitions, TopicName};

/// By then all processes have looked at the catalog, if they can.
const NOTICED_AFTER: Duration = EVERY.saturating_mul(3);

/// A process that lets a topic grow is waited for no longer: it died on the way.
const GROWN_WITHIN: Duration = Duration::from_secs(30);

/// Between two looks whether a topic has grown.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Topics that are about to have more partitions.
#[derive(Default)]
pub(super) struct Growing(Mutex<HashMap<TopicName, Target>>);

struct Target {
    partitions: Partitions,
    seen: Instant,
}

impl Growing {
    /// Notes what the catalog says.
    fn note(&self, topic: &TopicName, to: Option<Partitions>) {
        let mut all = self.all();
        match to {
            None => {
                all.remove(topic);
            }
            Some(partitions) => {
                let seen = Instant::now();
                let target = all
                    .entry(topic.clone())
                    .or_insert(Target { partitions, seen });
                if target.partitions != partitions {
                    *target = Target { partitions, seen };
                }
            }
        }
    }

    /// How many partitions a topic is about to have, if it is.
    pub(super) fn to(&self, topic: &TopicName) -> Option<Partitions> {
        let all = self.all();
        let target = all.get(topic)?;
        (target.seen.elapsed() < GROWN_WITHIN).then_some(target.partitions)
    }

    fn all(&self) -> MutexGuard<'_, HashMap<TopicName, Target>> {
        self.0.lock()
    }

    /// All of them.
    pub(super) fn topics(&self) -> Vec<TopicName> {
        self.all().keys().cloned().collect()
    }

    /// Whether there are any.
    pub(super) fn is_some(&self) -> bool {
        let all = self.all();
        all.values()
            .any(|target| target.seen.elapsed() < GROWN_WITHIN)
    }

    /// Waits until a topic has grown.
    pub(super) async fn wait(&self, topic: &TopicName) {
        while self.to(topic).is_some() {
            sleep(LOOK_AGAIN).await;
        }
    }
}

impl Kafka {
    /// Notes whether the catalog, as it was last read, says that a topic is about to grow.
    pub(super) fn note_growth(&self, topic: &TopicName) {
        let declared = self.last_declared(topic);
        let growing = declared
            .filter(|declared| declared.topic.kind() == Kind::Domain)
            .and_then(|declared| Partitions::new(declared.growing?).ok());
        self.growing.note(topic, growing);
    }

    /// Gives a topic so many partitions.
    pub(super) async fn grow(
        &self,
        handle: &TopicHandle,
        to: Partitions,
    ) -> Result<(), BrokerError> {
        let topic = handle.topic.name();
        self.announce(topic, Some(to)).await?;
        sleep(NOTICED_AFTER).await;
        let grown = self.create_partitions(handle, to).await;
        if let Err(error) = grown {
            self.announce(topic, None).await?;
            return Err(self.failed("changing a topic", error));
        }
        Ok(())
    }

    async fn create_partitions(
        &self,
        handle: &TopicHandle,
        to: Partitions,
    ) -> Result<(), KafkaError> {
        let count = to.get() as usize;
        let more = [NewPartitions::new(&handle.name, count)];
        let grown = self.admin.create_partitions(&more, &within()).await;
        grown.and_then(done)?;
        wait_for(&self.asker, &handle.name, count).await
    }

    async fn announce(&self, topic: &TopicName, to: Option<Partitions>) -> Result<(), BrokerError> {
        let growing = to.map(Partitions::get);
        let announcing = self.change_entry(topic, |before| {
            let declared = before.and_then(|value| Declared::read(value).ok())?;
            Some(
                Declared {
                    growing,
                    ..declared
                }
                .write(),
            )
        });
        announcing.await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_topic_that_grows_is_waited_for() {
        let growing = Growing::default();
        let topic = TopicName::new("orders").expect("a name");
        let eight = Partitions::new(8).ok();
        growing.wait(&topic).await;
        growing.note(&topic, eight);
        growing.note(&topic, eight);
        assert_eq!(growing.to(&topic), eight);
        let waiting = growing.wait(&topic);
        let grown = async {
            sleep(Duration::from_secs(1)).await;
            growing.note(&topic, None);
        };
        tokio::join!(waiting, grown);
        assert!(!growing.is_some());
    }
}
