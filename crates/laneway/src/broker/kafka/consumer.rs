//! A client that is a member of a group, and the thread that polls it.
//!
//! The thread does nothing else, so it always polls, however long handlers take. What the client tells
//! while it is polled (that partitions come or go) is passed on and dealt with elsewhere: nothing waits in
//! there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{
    BaseConsumer, CommitMode, Consumer as _, ConsumerContext, RebalanceProtocol,
};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::TopicPartitionList;
use rdkafka::types::RDKafkaRespErr;
use tokio::sync::{mpsc, oneshot};

use super::client::Telling;
use super::statistics::handed_out;

/// Looks this often whether it is to end.
const POLL: Duration = Duration::from_millis(100);

/// Leaving a group takes no longer; then it is left when the session is over.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// A commit that was under way when the client was to leave is waited for no longer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// That partitions come or go.
#[derive(Debug)]
pub(super) enum Change {
    Assigned(Vec<u32>),
    Revoked {
        partitions: Vec<u32>,
        /// Others may have them already.
        is_lost: bool,
    },
    /// Up to where partitions were fetched and handed out.
    HandedOut(BTreeMap<u32, u64>),
    /// The client cannot go on.
    Broken(KafkaError),
}

/// Passes on what the client tells.
pub(super) struct GroupContext {
    pub(super) telling: Telling,
    /// The topic that is read, as it is called on the cluster.
    topic: String,
    changes: mpsc::UnboundedSender<Change>,
    /// The member does not receive changes any more: the context answers the client by itself.
    is_closing: AtomicBool,
    /// Held while a commit is under way.
    committing: Mutex<()>,
    commits: std::sync::mpsc::Sender<Commit>,
}

impl ClientContext for GroupContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.telling.log(level, facility, message);
    }

    fn stats_raw(&self, statistics: &[u8]) {
        self.telling.stats_raw(statistics);
        let handed_out = handed_out(statistics, &self.topic);
        let _ = self.changes.send(Change::HandedOut(handed_out));
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
        tracing::debug!(?change, "group changed the assignment");
        if self.is_closing.load(Ordering::SeqCst) || self.changes.send(change).is_err() {
            let answered = match (is_assigned, consumer.rebalance_protocol()) {
                (true, RebalanceProtocol::Cooperative) => consumer.incremental_assign(list),
                (true, _) => consumer.assign(list),
                (false, RebalanceProtocol::Cooperative) => consumer.incremental_unassign(list),
                (false, _) => consumer.unassign(),
            };
            if let Err(error) = answered {
                tracing::debug!(%error, "closing consumer failed");
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
        topic: &str,
    ) -> Result<(Self, mpsc::UnboundedReceiver<Change>), KafkaError> {
        let (change, changes) = mpsc::unbounded_channel();
        let (commits, waiting) = std::sync::mpsc::channel();
        let told = telling.clone();
        let context = GroupContext {
            telling,
            topic: topic.to_owned(),
            changes: change.clone(),
            is_closing: AtomicBool::new(false),
            committing: Mutex::default(),
            commits,
        };
        let client: Client = config.create_with_context(context)?;
        spawn("laneway-kafka-commits", move || {
            // Until the client is gone, and the sender with it.
            waiting.into_iter().for_each(Commit::send);
        })?;
        let client = Arc::new(client);
        let end = Arc::new(AtomicBool::new(false));
        let (end_now, polled) = (end.clone(), client.clone());
        let (sender, ended) = oneshot::channel();
        let polling = move || {
            poll(&polled, &end_now, &change);
            close(&polled);
            leave(&polled);
            drop(polled);
            told.gauges.forget(&told.who);
            let _ = sender.send(());
        };
        spawn("laneway-kafka", polling)?;
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
        // Wakes the thread that polls, which sees to the rest.
        close_unless_committing(&self.client);
    }
}

/// A commit that waits for its turn.
struct Commit {
    client: Arc<Client>,
    list: TopicPartitionList,
    answer: oneshot::Sender<Result<(), KafkaError>>,
}

impl Commit {
    fn send(self) {
        let Self {
            client,
            list,
            answer,
        } = self;
        let result = {
            let context = client.context();
            let _committing = context.committing.lock();
            if context.is_closing.load(Ordering::SeqCst) {
                Err(destroyed())
            } else {
                client.commit(&list, CommitMode::Sync)
            }
        };
        let _ = answer.send(result);
    }
}

/// Commits. A caller that does not wait for the answer stops nothing.
///
/// IMPORTANT: not in a thread of the runtime. The client may wait for the coordinator for as long as that is away, and a
/// runtime that is dropped waits for its threads: the process would not end.
pub(super) async fn commit(
    client: &Arc<Client>,
    list: TopicPartitionList,
) -> Result<(), KafkaError> {
    let (answer, answered) = oneshot::channel();
    let commit = Commit {
        client: client.clone(),
        list,
        answer,
    };
    let sent = client.context().commits.send(commit);
    sent.map_err(|_| destroyed())?;
    answered.await.unwrap_or_else(|_| Err(destroyed()))
}

fn destroyed() -> KafkaError {
    KafkaError::ConsumerCommit(RDKafkaErrorCode::BrokerDestroy)
}

/// Begins to leave the group, when the commit that is under way is answered. If it is not in time, the client leaves all
/// the same: one that stays would be a member, with partitions that are not read. The commit is never answered then, and
/// its thread and the rest of the client stay for as long as the process.
fn close(client: &Client) {
    let deadline = Instant::now() + ANSWERED_WITHIN;
    while !close_unless_committing(client) {
        if Instant::now() >= deadline {
            let _ = client.close_queue();
            return;
        }
        client.poll(POLL);
    }
}

/// Begins to leave the group, unless a commit is under way, which the client would forget; answers whether it has begun.
fn close_unless_committing(client: &Client) -> bool {
    let Some(_none) = client.context().committing.try_lock() else {
        return false;
    };
    // An error means that it has begun before.
    let _ = client.close_queue();
    true
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), KafkaError> {
    let thread = thread::Builder::new().name(name.to_owned());
    let spawned = thread.spawn(work).map(drop);
    spawned.map_err(|error| KafkaError::ClientCreation(error.to_string()))
}

fn poll(client: &Client, end: &AtomicBool, changes: &mpsc::UnboundedSender<Change>) {
    while !end.load(Ordering::SeqCst) {
        match client.poll(POLL) {
            Some(Err(error @ KafkaError::MessageConsumptionFatal(_))) => {
                let _ = changes.send(Change::Broken(error));
                thread::sleep(POLL);
            }
            Some(Err(error)) => tracing::debug!(%error, "consumer error"),
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
