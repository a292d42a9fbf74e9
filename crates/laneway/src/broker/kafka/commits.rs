//! The one place from which a member commits.
//!
//! [`Commits::run`] has one commit under way at a time, for all partitions that have something new. So a later commit
//! never overtakes an earlier one, and [`Commits::forget`] can wait until no commit of a released partition is under
//! way.
//!
//! A commit is also how a member confirms its leases: the coordinator refuses the commits of every client that is no
//! member. `run` therefore repeats the last one now and then, also when there is nothing new. [`Session`] says for how
//! long an answer extends the leases.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};

use super::assignment::OwnedPartition;
use super::consumer::{self, Client};
use super::mark::Mark;
use crate::broker::BrokerError;

/// While members come and go, the coordinator takes no commits for a moment.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// Brokers keep every commit for a while. So large ones are made less often: this many bytes a second.
const BYTES_A_SECOND: u32 = 1 << 20;

/// A position with no more than these is short.
const FEW_RANGES: usize = 64;

/// For how long an answered commit extends the leases of a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    /// For how long a member may be silent before the coordinator evicts it.
    pub(super) whole: Duration,
    /// For how long leases are valid after a commit was sent that went through.
    pub(super) valid_for: Duration,
}

impl Session {
    /// How often a member commits at least.
    fn confirm_every(self) -> Duration {
        self.valid_for / 3
    }
}

/// What waits to be committed.
struct Waiting {
    owned: Arc<OwnedPartition>,
    mark: Mark,
    /// The calls that wait for it. They learn when it was sent.
    callers: Vec<oneshot::Sender<Result<Instant, BrokerError>>>,
}

type Batch = BTreeMap<u32, Waiting>;

pub(super) struct Commits {
    /// `None` when the membership is over: assignments may be kept for longer, and would keep the client.
    client: Mutex<Option<Arc<Client>>>,
    session: Session,
    at: String,
    waiting: Mutex<Batch>,
    /// The partitions whose leases a commit extends.
    held: Mutex<BTreeMap<u32, Arc<OwnedPartition>>>,
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

    /// Ones that nothing sends.
    #[cfg(test)]
    pub(super) fn unsent() -> Self {
        let session = Session {
            whole: Duration::from_secs(9),
            valid_for: Duration::from_secs(8),
        };
        Self {
            client: Mutex::default(),
            session,
            at: String::new(),
            waiting: Mutex::default(),
            held: Mutex::default(),
            news: Notify::new(),
            under_way: tokio::sync::Mutex::default(),
        }
    }

    /// The membership is over: nothing is committed any more.
    pub(super) fn end(&self) {
        self.client.lock().take();
        self.waiting.lock().clear();
        self.held.lock().clear();
    }

    /// A partition was assigned.
    pub(super) fn add(&self, owned: &Arc<OwnedPartition>) {
        self.held.lock().insert(owned.partition, owned.clone());
    }

    /// Commits, and answers when that was sent. [`BrokerError::NotOurs`] if the partition is released or lost
    /// meanwhile.
    pub(super) async fn commit(
        &self,
        owned: &Arc<OwnedPartition>,
        mark: Mark,
    ) -> Result<Instant, BrokerError> {
        if owned.is_over() {
            return Err(owned.not_ours());
        }
        let (caller, answer) = oneshot::channel();
        {
            let mut waiting = self.waiting.lock();
            match waiting.get_mut(&owned.partition) {
                Some(waiting) if Arc::ptr_eq(&waiting.owned, owned) => {
                    if !is_behind(&mark, &waiting.mark) {
                        waiting.mark = mark;
                    }
                    waiting.callers.push(caller);
                }
                // A commit of an earlier assignment is dropped, and its callers get `NotOurs`.
                _ => {
                    let new = Waiting {
                        owned: owned.clone(),
                        mark,
                        callers: vec![caller],
                    };
                    waiting.insert(owned.partition, new);
                }
            }
        }
        self.news.notify_one();
        let answer = answer.await;
        answer.unwrap_or_else(|_| Err(owned.not_ours()))
    }

    /// Forgets partitions that are released; resolves when no commit of them is under way.
    pub(super) async fn forget(&self, partitions: &[u32]) {
        for partition in partitions {
            self.held.lock().remove(partition);
            self.waiting.lock().remove(partition);
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
                    // Nothing is held, so there is no lease to extend.
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
                    tracing::debug!(%error, "commit refused, retrying");
                    self.news.notify_one();
                    TRY_AGAIN
                }
            };
            sleep(pause).await;
        }
    }

    /// What is to be committed now; if there is nothing, and it is time to, what was committed last.
    fn take(&self, is_due: bool) -> Batch {
        let mut batch = std::mem::take(&mut *self.waiting.lock());
        // The callers of what is released or lost get `NotOurs`: their channels are dropped.
        batch.retain(|_, waiting| !waiting.owned.is_over());
        for waiting in batch.values_mut() {
            let known = waiting.owned.mark.lock();
            if let Some(known) = known
                .as_ref()
                .filter(|known| is_behind(&waiting.mark, known))
            {
                waiting.mark = known.clone();
            }
        }
        if batch.is_empty() && is_due {
            let held = self.held.lock();
            let all = held.values().filter(|owned| !owned.is_over());
            for owned in all {
                let Some(mark) = owned.mark.lock().clone() else {
                    continue;
                };
                // One is enough to be confirmed, and those that are at an end by now need it.
                let is_new = owned.at_the_end(mark.position.clone()) != mark.position;
                if is_new || batch.is_empty() {
                    let again = Waiting {
                        owned: owned.clone(),
                        mark,
                        callers: Vec::new(),
                    };
                    batch.insert(owned.partition, again);
                }
            }
        }
        for waiting in batch.values_mut() {
            let position = std::mem::take(&mut waiting.mark.position);
            waiting.mark.position = waiting.owned.at_the_end(position);
        }
        batch
    }

    /// Commits; answers how many bytes that were.
    async fn send(&self, batch: &Batch) -> Result<u32, RDKafkaErrorCode> {
        let (list, bytes) = list(batch).map_err(|error| code(&error))?;
        let Some(client) = self.client.lock().clone() else {
            return Err(RDKafkaErrorCode::BrokerDestroy);
        };
        let committed = consumer::commit(&client, list).await;
        committed.map_err(|error| code(&error))?;
        Ok(bytes)
    }

    /// A commit went through: this was a member of the group when it was sent.
    fn confirmed(&self, sent: Instant) {
        for owned in self.held.lock().values() {
            if owned.is_taken() {
                owned.lease.extend(sent + self.session.valid_for);
            }
        }
    }

    fn refused(&self, batch: Batch, code: RDKafkaErrorCode) {
        let passes = passes_by_itself(code);
        let mut all = self.waiting.lock();
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
                Some(waiting) if Arc::ptr_eq(&waiting.owned, &before.owned) => {
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
        *waiting.owned.mark.lock() = Some(waiting.mark);
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
        let mut element = list.add_partition(&waiting.owned.handle.name, number);
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
