//! A client that is a member of a group, and the thread that polls it.
//!
//! The thread does nothing else, so it always polls, however long handlers take. What the client tells
//! while it is polled (that partitions come or go) is passed on and dealt with elsewhere: nothing waits in
//! there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext, RebalanceProtocol};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::TopicPartitionList;
use rdkafka::types::RDKafkaRespErr;
use tokio::sync::{mpsc, oneshot};

use super::client::Telling;

/// Looks this often whether it is to end.
const POLL: Duration = Duration::from_millis(100);

/// Leaving a group takes no longer; then it is left when the session is over.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// That partitions come or go.
#[derive(Debug)]
pub(super) enum Change {
    Assigned(Vec<u32>),
    Revoked {
        partitions: Vec<u32>,
        /// Others may have them already.
        is_lost: bool,
    },
    /// The client cannot go on.
    Broken(KafkaError),
}

/// Passes on what the client tells.
pub(super) struct GroupContext {
    telling: Telling,
    changes: mpsc::UnboundedSender<Change>,
    /// Nobody listens any more: what has to be answered is answered here.
    is_closing: AtomicBool,
}

impl ClientContext for GroupContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.telling.log(level, facility, message);
    }

    fn stats_raw(&self, statistics: &[u8]) {
        self.telling.stats_raw(statistics);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.telling.error(error, reason);
    }
}

impl ConsumerContext for GroupContext {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        what: RDKafkaRespErr,
        list: &mut TopicPartitionList,
    ) {
        let partitions = numbers(list);
        let is_assigned = what == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        let change = if is_assigned {
            Change::Assigned(partitions)
        } else {
            Change::Revoked {
                partitions,
                is_lost: consumer.assignment_lost(),
            }
        };
        tracing::debug!(?change, "partitions change");
        if self.is_closing.load(Ordering::SeqCst) || self.changes.send(change).is_err() {
            let answered = match (is_assigned, consumer.rebalance_protocol()) {
                (true, RebalanceProtocol::Cooperative) => consumer.incremental_assign(list),
                (true, _) => consumer.assign(list),
                (false, RebalanceProtocol::Cooperative) => consumer.incremental_unassign(list),
                (false, _) => consumer.unassign(),
            };
            if let Err(error) = answered {
                tracing::debug!(%error, "closing a member of a group");
            }
        }
    }
}

fn numbers(list: &TopicPartitionList) -> Vec<u32> {
    let partitions = list.elements().into_iter();
    partitions
        .filter_map(|element| u32::try_from(element.partition()).ok())
        .collect()
}

/// The client.
pub(super) type Client = BaseConsumer<GroupContext>;

/// A client that is polled for as long as this is there.
pub(super) struct Consumer {
    pub(super) client: Arc<Client>,
    end: Arc<AtomicBool>,
    ended: Option<oneshot::Receiver<()>>,
}

impl Consumer {
    pub(super) fn start(
        config: &ClientConfig,
        telling: Telling,
    ) -> Result<(Self, mpsc::UnboundedReceiver<Change>), KafkaError> {
        let (change, changes) = mpsc::unbounded_channel();
        let told = telling.clone();
        let context = GroupContext {
            telling,
            changes: change.clone(),
            is_closing: AtomicBool::new(false),
        };
        let client: Client = config.create_with_context(context)?;
        let client = Arc::new(client);
        let end = Arc::new(AtomicBool::new(false));
        let (end_now, polled) = (end.clone(), client.clone());
        let (sender, ended) = oneshot::channel();
        let polling = move || {
            poll(&polled, &end_now, &change);
            leave(&polled);
            drop(polled);
            told.gauges.forget(&told.who);
            let _ = sender.send(());
        };
        let thread = thread::Builder::new().name("laneway-kafka".to_owned());
        thread
            .spawn(polling)
            .map_err(|error| KafkaError::ClientCreation(error.to_string()))?;
        let consumer = Self {
            client,
            end,
            ended: Some(ended),
        };
        Ok((consumer, changes))
    }

    /// Leaves the group; resolves when that is done, or taking too long.
    pub(super) async fn close(mut self) {
        let ended = self.ended.take();
        drop(self);
        if let Some(ended) = ended {
            let _ = tokio::time::timeout(2 * LEAVE_WITHIN, ended).await;
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.client
            .context()
            .is_closing
            .store(true, Ordering::SeqCst);
        self.end.store(true, Ordering::SeqCst);
        // Wakes the thread, which sees to the rest.
        let _ = self.client.close_queue();
    }
}

fn poll(client: &Client, end: &AtomicBool, changes: &mpsc::UnboundedSender<Change>) {
    while !end.load(Ordering::SeqCst) {
        match client.poll(POLL) {
            Some(Err(error @ KafkaError::MessageConsumptionFatal(_))) => {
                let _ = changes.send(Change::Broken(error));
                thread::sleep(POLL);
            }
            Some(Err(error)) => tracing::debug!(%error, "a member of a group has trouble"),
            // Records come on the queues of their partitions.
            Some(Ok(_)) | None => {}
        }
    }
}

/// The client is closing: answers what it asks until it has.
fn leave(client: &Client) {
    let deadline = Instant::now() + LEAVE_WITHIN;
    while !client.closed() && Instant::now() < deadline {
        client.poll(Duration::from_millis(10));
    }
}
