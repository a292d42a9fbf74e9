//! The one place from which a member commits.
//!
//! One commit is under way at a time, for all partitions that have something new. So a later one never
//! overtakes an earlier one, and whoever lets a partition go can wait until nothing of ours is under way.
//!
//! A commit is also how a member learns that it still is one: the coordinator refuses those of anybody who
//! is not. It is therefore repeated now and then, also when there is nothing new. See
//! [`Session`] for what an answer is worth.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::consumer::{CommitMode, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};

use super::claim::Holding;
use super::cluster::{blocking, lock};
use super::consumer::Client;
use super::mark::Mark;
use crate::broker::BrokerError;

/// While members come and go, the coordinator takes no commits for a moment.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// Brokers keep every commit for a while. So large ones are made less often: this many bytes a second.
const BYTES_A_SECOND: u32 = 1 << 20;

/// A position with no more than these is short.
const FEW_RANGES: usize = 64;

/// For how long an answered commit makes a member sure of what it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    /// After a commit was sent that went through.
    pub(super) sure_for: Duration,
}

impl Session {
    /// How often a member asks.
    fn confirm_every(self) -> Duration {
        self.sure_for / 3
    }
}

/// What waits to be committed.
struct Waiting {
    holding: Arc<Holding>,
    mark: Mark,
    /// Those who want to know. They learn when it was sent.
    callers: Vec<oneshot::Sender<Result<Instant, BrokerError>>>,
}

type Batch = BTreeMap<u32, Waiting>;

pub(super) struct Commits {
    /// Gone when the membership is over: claims may be kept for longer, and would keep the client.
    client: Mutex<Option<Arc<Client>>>,
    session: Session,
    at: String,
    waiting: Mutex<Batch>,
    /// What is ours, and to be confirmed.
    held: Mutex<BTreeMap<u32, Arc<Holding>>>,
    news: Notify,
    /// Held while a commit is under way.
    under_way: tokio::sync::Mutex<()>,
}

impl Commits {
    pub(super) fn new(client: Arc<Client>, session: Session, at: String) -> Self {
        Self {
            client: Mutex::new(Some(client)),
            session,
            at,
            waiting: Mutex::default(),
            held: Mutex::default(),
            news: Notify::new(),
            under_way: tokio::sync::Mutex::default(),
        }
    }

    /// The membership is over: nothing is committed any more.
    pub(super) fn end(&self) {
        lock(&self.client).take();
        lock(&self.waiting).clear();
        lock(&self.held).clear();
    }

    /// A partition became ours.
    pub(super) fn add(&self, holding: &Arc<Holding>) {
        lock(&self.held).insert(holding.partition, holding.clone());
    }

    /// Commits, and answers when that was sent. [`BrokerError::NotOurs`] if the partition is let go or lost
    /// meanwhile.
    pub(super) async fn commit(
        &self,
        holding: &Arc<Holding>,
        mark: Mark,
    ) -> Result<Instant, BrokerError> {
        if holding.is_over() {
            return Err(holding.not_ours());
        }
        let (caller, answer) = oneshot::channel();
        {
            let mut waiting = lock(&self.waiting);
            match waiting.get_mut(&holding.partition) {
                Some(waiting) if Arc::ptr_eq(&waiting.holding, holding) => {
                    if !is_behind(&mark, &waiting.mark) {
                        waiting.mark = mark;
                    }
                    waiting.callers.push(caller);
                }
                // One of an earlier owner is dropped: nobody waits for it but in vain.
                _ => {
                    let new = Waiting {
                        holding: holding.clone(),
                        mark,
                        callers: vec![caller],
                    };
                    waiting.insert(holding.partition, new);
                }
            }
        }
        self.news.notify_one();
        let answer = answer.await;
        answer.unwrap_or_else(|_| Err(holding.not_ours()))
    }

    /// Forgets partitions that are let go; resolves when nothing of them is under way.
    pub(super) async fn forget(&self, partitions: &[u32]) {
        for partition in partitions {
            lock(&self.held).remove(partition);
            lock(&self.waiting).remove(partition);
        }
        drop(self.under_way.lock().await);
    }

    /// Commits what comes, for ever.
    pub(super) async fn run(&self) {
        let every = self.session.confirm_every();
        let mut last = Instant::now();
        loop {
            let due = every.saturating_sub(last.elapsed());
            let _ = timeout(due, self.news.notified()).await;
            let under_way = self.under_way.lock().await;
            let batch = self.take(last.elapsed() >= every);
            if batch.is_empty() {
                if last.elapsed() >= every {
                    // Nothing is ours, so there is nothing to confirm.
                    last = Instant::now();
                }
                continue;
            }
            let mut bytes = 0;
            let mut result = Ok(());
            for some in apart(batch) {
                let sent = Instant::now();
                match self.send(&some).await {
                    Ok(written) => {
                        bytes += written;
                        last = sent;
                        self.confirmed(sent);
                        done(some, sent);
                    }
                    Err(error) => {
                        self.refused(some, error);
                        result = Err(error);
                    }
                }
            }
            drop(under_way);
            let pause = match result {
                Ok(()) => Duration::from_secs(1) * bytes / BYTES_A_SECOND,
                Err(error) => {
                    tracing::debug!(%error, "a commit was refused; it is tried again");
                    self.news.notify_one();
                    TRY_AGAIN
                }
            };
            sleep(pause).await;
        }
    }

    /// What is to be committed now; if there is nothing, and it is time to, what was committed last.
    fn take(&self, is_due: bool) -> Batch {
        let mut batch = std::mem::take(&mut *lock(&self.waiting));
        // Whoever waits for one that is over learns that it is not ours.
        batch.retain(|_, waiting| !waiting.holding.is_over());
        for waiting in batch.values_mut() {
            let known = lock(&waiting.holding.mark);
            if let Some(known) = known
                .as_ref()
                .filter(|known| is_behind(&waiting.mark, known))
            {
                waiting.mark = known.clone();
            }
        }
        if batch.is_empty() && is_due {
            let held = lock(&self.held);
            let one = held.values().filter(|holding| !holding.is_over());
            let mut one = one.filter_map(|holding| Some((holding, lock(&holding.mark).clone()?)));
            if let Some((holding, mark)) = one.next() {
                let again = Waiting {
                    holding: holding.clone(),
                    mark,
                    callers: Vec::new(),
                };
                batch.insert(holding.partition, again);
            }
        }
        batch
    }

    /// Commits; answers how many bytes that were. The client gives up some time, so it ends.
    async fn send(&self, batch: &Batch) -> Result<u32, RDKafkaErrorCode> {
        let (list, bytes) = list(batch).map_err(|error| code(&error))?;
        let Some(client) = lock(&self.client).clone() else {
            return Err(RDKafkaErrorCode::BrokerDestroy);
        };
        let committing = blocking(move || client.commit(&list, CommitMode::Sync));
        committing.await.map_err(|error| code(&error))?;
        Ok(bytes)
    }

    /// We are a member, and were when this was sent.
    fn confirmed(&self, sent: Instant) {
        for holding in lock(&self.held).values() {
            if holding.is_taken() {
                holding.tenure.extend(sent + self.session.sure_for);
            }
        }
    }

    fn refused(&self, batch: Batch, code: RDKafkaErrorCode) {
        let passes = passes_by_itself(code);
        let mut all = lock(&self.waiting);
        for (partition, mut before) in batch {
            if !passes {
                for caller in before.callers {
                    let _ = caller.send(Err(BrokerError::Server {
                        server: self.at.clone(),
                        doing: "committing",
                        detail: code.to_string(),
                    }));
                }
                continue;
            }
            match all.get_mut(&partition) {
                Some(waiting) if Arc::ptr_eq(&waiting.holding, &before.holding) => {
                    waiting.callers.append(&mut before.callers);
                }
                Some(_) => {}
                None => {
                    all.insert(partition, before);
                }
            }
        }
    }
}

/// What is committed together. A client says only that all of a commit was refused, or not. Brokers refuse
/// members, and then all of it; or a text that is too long for them. So long ones go alone.
fn apart(batch: Batch) -> Vec<Batch> {
    let (mut together, mut apart) = (Batch::new(), Vec::new());
    for (partition, waiting) in batch {
        if waiting.mark.position.done_above().len() > FEW_RANGES {
            apart.push(Batch::from([(partition, waiting)]));
        } else {
            together.insert(partition, waiting);
        }
    }
    if !together.is_empty() {
        apart.insert(0, together);
    }
    apart
}

fn done(batch: Batch, sent: Instant) {
    for waiting in batch.into_values() {
        *lock(&waiting.holding.mark) = Some(waiting.mark);
        for caller in waiting.callers {
            let _ = caller.send(Ok(sent));
        }
    }
}

fn is_behind(mark: &Mark, other: &Mark) -> bool {
    mark.epoch < other.epoch || mark.position.is_behind(&other.position)
}

/// The commit, and how many bytes it has.
fn list(batch: &Batch) -> Result<(TopicPartitionList, u32), KafkaError> {
    let mut list = TopicPartitionList::new();
    let mut bytes = 0;
    for (partition, waiting) in batch {
        let number = i32::try_from(*partition).unwrap_or_default();
        let low = waiting.mark.position.low();
        let text = waiting.mark.encode();
        bytes += u32::try_from(text.len()).unwrap_or(0);
        let mut element = list.add_partition(&waiting.holding.place.name, number);
        element.set_offset(Offset::Offset(i64::try_from(low).unwrap_or(i64::MAX)))?;
        element.set_metadata(text);
    }
    Ok((list, bytes))
}

fn code(error: &KafkaError) -> RDKafkaErrorCode {
    error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail)
}

/// Whether it is a matter of time: members come and go, brokers too.
fn passes_by_itself(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::RebalanceInProgress
            | Code::IllegalGeneration
            | Code::UnknownMemberId
            | Code::FencedMemberEpoch
            | Code::StaleMemberEpoch
            | Code::CoordinatorNotAvailable
            | Code::CoordinatorLoadInProgress
            | Code::NotCoordinator
            | Code::WaitingForCoordinator
            | Code::RequestTimedOut
            | Code::OperationTimedOut
            | Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::NetworkException
            | Code::UnstableOffsetCommit
            | Code::NotEnoughReplicas
            | Code::NotEnoughReplicasAfterAppend
    )
}
