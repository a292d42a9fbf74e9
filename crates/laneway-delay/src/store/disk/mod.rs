//! A store on disk, for one process.
//!
//! # What is where
//!
//! | table | key | row |
//! |---|---|---|
//! | `line` | when it may fire, number | a message that waits |
//! | `ids` | id | where its message is |
//! | `ended` | state, when it ended, number | a message that has ended; of delivered and withdrawn ones without payload |
//! | `topics` | topic, state, and where it stands in `line` or `ended` | nothing: messages by topic |
//! | `keys` | idempotency key, and by age | what it was used for |
//! | `meta` | | the last commit, the floor of the due index, how far claims have come, counts |
//!
//! The due index (the table `line`) is read from its floor on, which is kept with it: what fired is never walked over again, not
//! even after a restart.
//!
//! # Who decides
//!
//! One writer makes all changes, many at a time: one batch, one sync, all answers. Claims do not wait for
//! it. They are in memory only ([`Claims`](claims)): `claim` first notes the message and then looks at the
//! row; a change notes the message, unless it is claimed, and removes the row before it removes the note.
//! So of a claim and a withdraw that meet, one finds the other. A crash forgets claims, and what was
//! firing fires again; what may have been firing counts as in [doubt].
//!
//! # Layout
//!
//! | file | what it is |
//! |---|---|
//! | `tables` | the tables, and opening them |
//! | `keys`, `codec` | rows as bytes |
//! | `claims` | who is firing, and who is being changed |
//! | `doubt` | which messages a process may have sent that did not end in order |
//! | `request`, `writer` | what is committed together; group commit itself is in `laneway_disk` |
//! | `ahead` | what changes need, read before it is their turn |
//! | `batch` | what changes make of the tables |
//! | `read` | looking something up |
//! | `leaving` | messages that leave for a cluster, and the note that they do |
//! | `walk`, `damage` | going past what cannot be read, and telling of it |
//! | `mend` | going on after the engine gave up on what it could not read |

mod ahead;
mod batch;
mod claims;
mod codec;
mod damage;
mod doubt;
#[cfg(test)]
mod fixture_tests;
mod keys;
mod leaving;
mod mend;
#[cfg(test)]
mod mend_tests;
#[cfg(test)]
mod outcome_tests;
mod read;
mod request;
mod tables;
#[cfg(test)]
mod tests;
mod walk;
mod writer;

use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use laneway_disk::{
    CommitLimits, Commits, Committer, Directory, Disk, Format, RealDisk, StoreError,
};
use parking_lot::{Mutex, MutexGuard, RwLockReadGuard};
use tokio::sync::oneshot;

use self::claims::Claims;
use self::damage::Damage;
use self::doubt::Doubt;
pub use self::leaving::{Leaving, LeavingKey, MoveNote, MoveStage};
use self::request::{Entry, QueuedRequest, Request, Settle};
pub use self::tables::Sizes;
use self::tables::{Tables, open_tables};
use self::writer::Writer;
use super::{Change, Claim, Draft, DueIndex, DueKey, Outcome, Scheduled, Settlement, Store};
use crate::{
    Accepted, BoxFuture, Counts, Error, Health, Message, MessageId, Page, Query, Timestamp,
    TopicCounts,
};

/// What is in the directory, and in which version.
///
/// Version 1 was never released, and no step leads from it.
const FORMAT: Format = Format {
    name: "laneway-delay-store",
    version: 2,
    steps: &[],
};

/// How long what no caller waits for may stay unsynced: a power cut repeats it. Much at once would hold up
/// others who sync on the same disk.
const SYNC_EVERY: Duration = Duration::from_millis(100);

/// How often the last commit is noted where damage to the engine's files does not reach it.
const NOTE_EVERY: Duration = Duration::from_secs(10);

/// How long a write or sync may take before the store counts as unwell.
const SLOW_AFTER: Duration = Duration::from_secs(5);

/// The counts of how many topics are copied at a time.
const COUNTS_AT_A_TIME: usize = 1000;

/// How long a caller waits for a disk that hangs. The engine itself waits for longer, and says so.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Messages in a directory, for one process. Dropped without being closed, it closes itself soon after.
pub struct DiskStore {
    shared: Arc<Shared>,
}

impl Drop for DiskStore {
    fn drop(&mut self) {
        self.shared.commits.close_soon();
    }
}

/// What the store and its writer share.
struct Shared {
    commits: Arc<Commits<Tables, QueuedRequest>>,
    identity: u64,
    sizes: Sizes,
    claims: Claims,
    due_index: OnceLock<Arc<dyn DueIndex>>,
    next_serial: AtomicU64,
    /// How many batches were written since it was opened.
    batches: AtomicU64,
    contents: Mutex<Contents>,
    damage: Damage,
    /// How many wait for the disk for longer than the limit.
    overdue: AtomicUsize,
    /// What earlier processes may have sent.
    doubt: Doubt,
    /// Before which moment messages may be claimed, in milliseconds.
    covered: AtomicU64,
    /// Whether that is being raised.
    is_covering: AtomicBool,
}

/// What is known without looking at the disk. Only the writer changes it.
#[derive(Clone, Debug)]
struct Contents {
    floor: DueKey,
    /// Those that fire are counted as scheduled here.
    counts: Counts,
}

impl std::fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskStore")
            .field("path", &self.shared.commits.path())
            .finish_non_exhaustive()
    }
}

impl DiskStore {
    /// Opens a directory, and makes it if it is not there. Within a tokio runtime.
    ///
    /// # Errors
    /// When it is in use or damaged, its messages have left for a cluster ([`Error::Moved`]), or the system says no.
    pub async fn open(directory: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_on(directory.as_ref(), Box::new(RealDisk), Sizes::default()).await
    }

    /// The same, on a disk and with sizes of a test's own.
    #[doc(hidden)]
    pub async fn open_on(
        directory: &Path,
        disk: Box<dyn Disk>,
        sizes: Sizes,
    ) -> Result<Self, Error> {
        leaving::expect_here(directory)?;
        let store = Self::open_anyway(directory, disk, sizes).await?;
        // IMPORTANT: once more now that the directory is ours: a move may have begun and ended since.
        if let Err(error) = leaving::expect_here(directory) {
            store.close().await?;
            return Err(error);
        }
        Ok(store)
    }

    async fn open_anyway(
        directory: &Path,
        disk: Box<dyn Disk>,
        sizes: Sizes,
    ) -> Result<Self, Error> {
        let path = directory.to_owned();
        let runtime = tokio::runtime::Handle::current();
        let opening = tokio::task::spawn_blocking(move || open(&path, disk, sizes, runtime));
        opening.await.unwrap_or_else(|error| {
            // The engine gives up like that on some of what it cannot read.
            Err(Error::Damaged {
                what: directory.display().to_string(),
                detail: error.to_string(),
            })
        })
    }

    /// Asks the writer, and does not wait for ever. What was asked for stays in the queue.
    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
    ) -> Result<T, Error> {
        in_time(self.shared.ask(request)).await
    }

    /// Waits for as long as it takes: what the engine asks for may not be left half done. A disk that hangs is
    /// told about, and the store counts as unwell meanwhile.
    async fn however_long<T>(&self, what: &'static str, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        if let Ok(done) = tokio::time::timeout(ANSWER_WITHIN, &mut work).await {
            return done;
        }
        let directory = self.shared.commits.path().display();
        tracing::error!(%directory, what, "the disk does not answer, waiting for it");
        let _overdue = Overdue::note(&self.shared.overdue);
        let done = work.await;
        tracing::info!(%directory, what, "the disk has answered");
        done
    }

    /// Makes the first of some changes, as many as fit into memory; answers those that are left, too.
    async fn change_some(
        &self,
        changes: Vec<Change>,
        leave_out_payloads: bool,
    ) -> Result<(Vec<Result<Message, Error>>, Vec<Change>), Error> {
        let ahead = move |shared: &Shared| {
            let found = shared.look_ahead(&changes);
            let mut changes = changes;
            let rest = changes.split_off(found.len());
            Ok((changes.into_iter().zip(found).collect(), rest))
        };
        let (changes, rest) = self.blocking(ahead).await?;
        let asking = self.shared.ask(|ack| Request::Change(changes, ack));
        let mut answers = asking.await?;
        if leave_out_payloads {
            for message in answers.iter_mut().flatten() {
                message.payload = bytes::Bytes::new();
            }
        }
        Ok((answers, rest))
    }

    /// Does something where it may block.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let shared = self.shared.clone();
        let working = tokio::task::spawn_blocking(move || work(&shared));
        let broke_off = |error: tokio::task::JoinError| Error::Failed(error.to_string());
        working.await.map_err(broke_off)?
    }
}

/// Counts one that waits for too long, until it is dropped.
struct Overdue<'a>(&'a AtomicUsize);

impl<'a> Overdue<'a> {
    fn note(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Overdue<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn in_time<T>(answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let answer = tokio::time::timeout(ANSWER_WITHIN, answer).await;
    answer.unwrap_or(Err(Error::Unanswered(ANSWER_WITHIN)))
}

fn open(
    path: &Path,
    disk: Box<dyn Disk>,
    sizes: Sizes,
    runtime: tokio::runtime::Handle,
) -> Result<DiskStore, Error> {
    let mut directory = Directory::take(path, &FORMAT)?;
    let identity = directory.seal.identity;
    directory.make_log(|draft| match Tables::open(draft, sizes) {
        Ok(_) => Ok(()),
        Err(error) => Err(laneway_disk::Error::opening(directory.path(), error)),
    })?;
    let (tables, found) = open_tables(&mut directory, sizes)?;
    let limits = CommitLimits {
        queue: sizes.queue,
        note_every: NOTE_EVERY,
        sync_every: SYNC_EVERY,
        slow_after: SLOW_AFTER,
    };
    let path = directory.path().to_owned();
    let commits = Arc::new(Commits::new(path, disk, limits, tables));
    let shared = Arc::new(Shared {
        commits: commits.clone(),
        identity,
        sizes,
        claims: Claims::default(),
        due_index: OnceLock::new(),
        next_serial: AtomicU64::new(found.next_serial),
        batches: AtomicU64::new(0),
        contents: Mutex::new(Contents {
            floor: found.floor,
            counts: found.counts,
        }),
        damage: Damage::default(),
        overdue: AtomicUsize::new(0),
        doubt: Doubt::after(found.doubt, found.claimed, found.next_serial),
        covered: AtomicU64::new(found.claimed),
        is_covering: AtomicBool::new(false),
    });
    let writer = Writer::new(shared.clone(), runtime);
    Committer::spawn("laneway-delay", writer, commits, directory, found.commit)
        .map_err(|error| Error::Failed(format!("starting the thread that writes: {error}")))?;
    Ok(DiskStore { shared })
}

impl Shared {
    fn tables(&self) -> RwLockReadGuard<'_, Option<Tables>> {
        self.commits.engine()
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock()
    }

    /// Why nothing is done now.
    fn failure(&self) -> Option<Error> {
        self.commits.failure().map(|failure| self.error(&failure))
    }

    /// What a request is answered with that got no answer.
    fn refusal(&self) -> Error {
        self.error(&self.commits.refusal())
    }

    fn error(&self, failure: &StoreError) -> Error {
        match failure {
            StoreError::Full => Error::DiskFull {
                directory: self.commits.path().display().to_string(),
            },
            StoreError::NoDescriptor => Error::Unavailable(
                "the process has no free file descriptor: allow it more of them".to_owned(),
            ),
            StoreError::Unavailable(reason) => Error::Unavailable(reason.clone()),
            StoreError::Failed(reason) => Error::Failed(reason.clone()),
            StoreError::Closed => Error::Closed,
        }
    }

    /// Asks the writer, and waits for as long as it takes.
    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
    ) -> Result<T, Error> {
        let (ack, answer) = oneshot::channel();
        let request = request(ack);
        let permit = self.commits.permit(request.bytes()).await;
        let permit = Some(permit.map_err(|failure| self.error(&failure))?);
        let pushed = self.commits.push(QueuedRequest { request, permit });
        pushed.map_err(|failure| self.error(&failure))?;
        answer.await.map_err(|_| self.refusal())
    }

    fn with_tables<T>(&self, work: impl FnOnce(&Tables) -> Result<T, Error>) -> Result<T, Error> {
        match self.tables().as_ref() {
            Some(tables) => work(tables),
            None => Err(self.refusal()),
        }
    }

    /// The counts of the next topics after this one; `None` if there are no more. The writer waits no longer than for these, however
    /// many topics there are. So the counts of all are those of several moments.
    fn some_counts(
        &self,
        after: Option<(&String, &TopicCounts)>,
    ) -> Option<Vec<(String, TopicCounts)>> {
        let from = after.map_or(Bound::Unbounded, |(topic, _)| {
            Bound::Excluded(topic.as_str())
        });
        let contents = self.contents();
        let some = contents.counts.range::<str, _>((from, Bound::Unbounded));
        let some: Vec<_> = some
            .take(COUNTS_AT_A_TIME)
            .map(|(topic, counts)| (topic.clone(), *counts))
            .collect();
        (!some.is_empty()).then_some(some)
    }

    fn admit(&self, waiting: &[Scheduled]) {
        if !waiting.is_empty()
            && let Some(due_index) = self.due_index.get()
        {
            due_index.admit(waiting);
        }
    }
}

impl Store for DiskStore {
    fn attach(&self, due_index: Arc<dyn DueIndex>) {
        // A second one would be a mistake of ours; the first one stays.
        let _ = self.shared.due_index.set(due_index);
    }

    fn submit(&self, drafts: Vec<Draft>) -> BoxFuture<'_, Vec<Result<Accepted, Error>>> {
        Box::pin(async move {
            let count = drafts.len();
            if count == 0 {
                return Vec::new();
            }
            // Encoded here, where many can do so at once.
            let entries = drafts.into_iter().map(|draft| {
                let serial = self.shared.next_serial.fetch_add(1, Ordering::Relaxed);
                Entry::new(draft, serial, self.shared.identity)
            });
            let entries = entries.collect();
            match self.ask(|ack| Request::Submit(entries, ack)).await {
                Ok(answers) => answers,
                Err(error) => vec![Err(error); count],
            }
        })
    }

    fn change(&self, changes: Vec<Change>) -> BoxFuture<'_, Vec<Result<Message, Error>>> {
        Box::pin(async move {
            let count = changes.len();
            if count == 0 {
                return Vec::new();
            }
            let mut changes = changes;
            let mut answers = Vec::with_capacity(count);
            // As many at a time as fit into memory; nearly always that is all of them.
            while !changes.is_empty() {
                match in_time(self.change_some(changes, count > 1)).await {
                    Ok((some, rest)) => {
                        answers.extend(some);
                        changes = rest;
                    }
                    Err(error) => {
                        answers.resize_with(count, || Err(error.clone()));
                        break;
                    }
                }
            }
            answers
        })
    }

    fn claim(
        &self,
        waiting: Vec<Scheduled>,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Vec<Claim>, Error>> {
        let claiming = async move {
            // IMPORTANT: before anything is claimed. After a crash it must not look as if it had never been tried.
            self.shared.cover(&waiting, now).await?;
            self.blocking(move |shared| shared.claim(&waiting, now))
                .await
        };
        Box::pin(self.however_long("claim", claiming))
    }

    fn settle(&self, settlements: Vec<Settlement>) -> BoxFuture<'_, Result<(), Error>> {
        let (released, settled): (Vec<_>, Vec<_>) = settlements
            .into_iter()
            .partition(|settlement| matches!(settlement.outcome, Outcome::Released));
        let due_keys = released.iter().map(|released| released.claim.due_key);
        self.shared.claims.end(due_keys);
        Box::pin(async move {
            if settled.is_empty() {
                return Ok(());
            }
            // IMPORTANT: however long it takes. The engine lets the floor of the due index rise over these
            // messages then, which must not happen before their rows are gone.
            let asking = self.shared.ask(|ack| {
                Request::Settle(Settle {
                    settlements: settled,
                    ack,
                    is_again: false,
                })
            });
            self.however_long("settle", asking).await?
        })
    }

    fn scan(
        &self,
        from: DueKey,
        until: DueKey,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Scheduled>, Error>> {
        let scanning = self.blocking(move |shared| shared.scan(from, until, limit));
        Box::pin(self.however_long("scan", scanning))
    }

    fn floor(&self) -> DueKey {
        self.shared.contents().floor
    }

    fn get<'a>(&'a self, id: &'a MessageId) -> BoxFuture<'a, Result<Option<Message>, Error>> {
        let id = id.clone();
        Box::pin(in_time(self.blocking(move |shared| shared.get(&id))))
    }

    fn list<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Page, Error>> {
        let query = query.clone();
        Box::pin(in_time(self.blocking(move |shared| shared.list(&query))))
    }

    fn counts(&self) -> Counts {
        let mut counts = Counts::new();
        while let Some(some) = self.shared.some_counts(counts.last_key_value()) {
            counts.extend(some);
        }
        for message in self.shared.claims.messages() {
            if let Some(counts) = counts.get_mut(&message.topic) {
                counts.scheduled = counts.scheduled.saturating_sub(1);
                counts.firing += 1;
            }
        }
        counts
    }

    fn forget(
        &self,
        keys_before: Timestamp,
        ended_before: Timestamp,
    ) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            self.ask(|ack| Request::Forget {
                keys_before,
                ended_before,
                ack,
            })
            .await?
        })
    }

    fn health(&self) -> Result<(), Error> {
        if let Some(failure) = self.shared.commits.health() {
            return Err(self.shared.error(&failure));
        }
        if self.shared.overdue.load(Ordering::SeqCst) > 0 {
            return Err(Error::Unanswered(ANSWER_WITHIN));
        }
        Ok(())
    }

    fn report(&self, health: &mut Health) {
        health.refuses = self.health().err();
        health.has_failed = matches!(health.refuses, Some(Error::Failed(_)));
        (health.unreadable, health.first_unreadable) = self.shared.damage.told();
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(in_time(async {
            let closed = self.shared.commits.close().await;
            closed.map_err(|failure| self.shared.error(&failure))
        }))
    }
}

impl From<laneway_disk::Error> for Error {
    fn from(error: laneway_disk::Error) -> Self {
        match error {
            laneway_disk::Error::InUse { directory } => Self::InUse { directory },
            laneway_disk::Error::Full { directory } => Self::DiskFull { directory },
            laneway_disk::Error::Damaged { what, detail } => Self::Damaged { what, detail },
            // However often a sector is read that cannot be read, the rest of the disk works.
            laneway_disk::Error::Io { doing, source }
                if source.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) =>
            {
                let detail = source.to_string();
                Self::Damaged {
                    what: doing,
                    detail,
                }
            }
            laneway_disk::Error::Io { doing, source } => {
                Self::Unavailable(format!("{doing}: {source}"))
            }
            laneway_disk::Error::Format {
                what,
                found,
                supported,
            } => Self::Format {
                what,
                found,
                supported,
            },
            error => Self::Failed(error.to_string()),
        }
    }
}
