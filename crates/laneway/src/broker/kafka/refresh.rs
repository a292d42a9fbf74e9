//! Topics that were looked up are looked at again: a publisher has to know how many partitions there are.
//!
//! A process that went by an old number would put the events of a key into another partition than the others
//! do, and their order would be lost for as long as it lives. What is changed through a bus is announced by the
//! catalog; what is changed with other tools is found out less often.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::cluster::shape;
use super::server::Kafka;
use super::topics::TopicHandle;
use crate::broker::BrokerError;

/// How often the catalog is looked at.
pub(super) const EVERY: Duration = Duration::from_secs(1);

/// And how often while a call waits for a topic that grows.
const SOON: Duration = Duration::from_millis(100);

/// How often the cluster is.
const ASK_EVERY: Duration = Duration::from_secs(30);

/// Keeps what is known of topics up to date, for as long as the server is there.
pub(super) async fn keep_up(server: Weak<Kafka>) {
    let mut asked = Instant::now();
    loop {
        let Some(server) = server.upgrade() else {
            return;
        };
        if server.check_open().is_err() {
            return;
        }
        let asks = asked.elapsed() >= ASK_EVERY;
        if asks {
            asked = Instant::now();
        }
        if let Err(error) = server.refresh(asks).await {
            tracing::debug!(%error, "refreshing topics failed, retrying");
        }
        let pause = if server.growing.is_some() {
            SOON
        } else {
            EVERY
        };
        drop(server);
        sleep(pause).await;
    }
}

impl Kafka {
    async fn refresh(&self, asks: bool) -> Result<(), BrokerError> {
        let topic_handles = self.known_topics();
        let growing = self.growing.topics();
        if topic_handles.is_empty() && growing.is_empty() {
            return Ok(());
        }
        let failed = |error| self.failed("reading the catalog", error);
        self.catalog.read_on().await.map_err(failed)?;
        for topic in growing {
            self.note_growth(&topic);
        }
        for handle in topic_handles {
            self.note_growth(handle.topic.name());
            if self.growing.to(handle.topic.name()).is_some() {
                // What it is going to be is known when it is.
                continue;
            }
            let is_other = self.is_announced(&handle) || asks && self.is_grown(&handle).await;
            if is_other {
                self.look_up(handle.topic.name()).await?;
            }
        }
        Ok(())
    }

    /// Whether the catalog says that a topic is another one, or has other partitions.
    fn is_announced(&self, handle: &Arc<TopicHandle>) -> bool {
        let declared = self.last_declared(handle.topic.name());
        declared.is_some_and(|declared| {
            declared.born != handle.born || declared.topic.partitions() != handle.topic.partitions()
        })
    }

    async fn is_grown(&self, handle: &TopicHandle) -> bool {
        match shape(&self.asker, &handle.name).await {
            Ok(Some(shape)) => shape.partitions != handle.topic.partitions().get() as usize,
            // It is gone, or no broker answers: the next call that uses it finds out.
            Ok(None) | Err(_) => false,
        }
    }
}
