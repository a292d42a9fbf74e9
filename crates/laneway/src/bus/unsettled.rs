//! What is not settled yet: what tests wait for.

use tokio::sync::watch;

use super::error::Error;
use super::state::State;
use super::{Bus, Receipt};
use crate::record::Record;
use crate::topic::{TopicName, partition_of};

/// What a subscription has still to do, and how it is doing.
#[derive(Clone, Debug)]
pub(crate) struct Unsettled {
    pub(crate) topic: TopicName,
    pub(crate) group: String,
    pub(crate) records: u64,
    pub(crate) state: State,
}

impl Bus {
    /// The subscriptions that have something to do. Nothing is missed that one handler publishes for
    /// another one.
    pub(crate) async fn unsettled(&self) -> Result<Vec<Unsettled>, Error> {
        let progress = &self.shared.progress;
        loop {
            let before = progress.count();
            let unsettled = self.unsettled_now().await?;
            // If something was settled while we looked, its handler may have published to a topic
            // that we had looked at before.
            if !unsettled.is_empty() || progress.count() == before {
                return Ok(unsettled);
            }
        }
    }

    async fn unsettled_now(&self) -> Result<Vec<Unsettled>, Error> {
        let mut unsettled = Vec::new();
        for subscription in self.shared.subscriptions() {
            let flow = &subscription.flow;
            let lags = self.backlog(flow.topic.as_str(), &flow.group).await?;
            let records = lags.iter().map(|lag| lag.records).sum::<u64>()
                + subscription.open_messages() as u64;
            if records > 0 {
                unsettled.push(Unsettled {
                    topic: flow.topic.clone(),
                    group: flow.group.to_string(),
                    records,
                    state: flow.condition.state(),
                });
            }
        }
        Ok(unsettled)
    }

    /// Changes whenever something was settled.
    pub(crate) fn progress(&self) -> watch::Receiver<()> {
        self.shared.progress.watch()
    }

    /// Publishes a record as it is, to the partition of its key.
    pub(crate) async fn publish_record(
        &self,
        topic: &str,
        record: Record,
    ) -> Result<Receipt, Error> {
        self.shared.check_open()?;
        let topic = self.existing(topic).await?;
        let key = record.key.clone().unwrap_or_default();
        let partition = partition_of(key.as_bytes(), topic.partitions());
        let publishing = self
            .shared
            .broker
            .publish(topic.name(), partition, vec![record]);
        let offset = self.ask("publishing", publishing).await?.at(0);
        Ok(Receipt { partition, offset })
    }
}
